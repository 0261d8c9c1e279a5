// Method and path to handler; what no handler takes is answered 404 or 405 in the caller's error format.
//
// Threads: routes and the observer are set before the server starts; Dispatch is called from any thread afterwards.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "server/http/message.h"
#include "server/http/response_writer.h"

namespace firesteel {

// The writer is shared by the connection, which fills it with the socket's fate, and by whatever the handler starts.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<ResponseWriter>)>;
// Told the route ("unmatched" for a path that is none), the method ("other" for an unusual one) and the status code
// of every answer, when its status line is settled; kClientGone for an answer that nobody was there to get. The values are few, so that they can be labels. Any thread.
using HttpObserver =
    std::function<void(const std::string& handler, const std::string& method, int status)>;
inline constexpr int kClientGone = 499;
using HttpErrorFormat = std::function<HttpResponse(int status, const std::string& message)>;

class Router {
 public:
  explicit Router(HttpErrorFormat error_format) : error_format_(std::move(error_format)) {}

  // A path that ends in "/*" takes every path below it that has no route of its own. HEAD is answered by GET's handler.
  void Add(const std::string& method, const std::string& path, HttpHandler handler);
  void SetObserver(HttpObserver observer) { observer_ = std::move(observer); }
  void Dispatch(HttpRequest request, std::shared_ptr<ResponseWriter> writer) const;

 private:
  using Methods = std::map<std::string, HttpHandler>;
  using Routes = std::map<std::string, Methods>;  // by path

  Routes::const_iterator FindRoute(const std::string& path) const;

  HttpErrorFormat error_format_;
  HttpObserver observer_;  // may be empty
  Routes handlers_;
};

}  // namespace firesteel
