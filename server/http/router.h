// Method and path to handler; what no handler takes is answered 404 or 405 in the caller's error format.
//
// Threads: routes are added before the server starts; Dispatch is called from any thread afterwards.
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
using HttpErrorFormat = std::function<HttpResponse(int status, const std::string& message)>;

class Router {
 public:
  explicit Router(HttpErrorFormat error_format) : error_format_(std::move(error_format)) {}

  void Add(const std::string& method, const std::string& path, HttpHandler handler);
  void Dispatch(HttpRequest request, std::shared_ptr<ResponseWriter> writer) const;

 private:
  HttpErrorFormat error_format_;
  std::map<std::string, std::map<std::string, HttpHandler>> handlers_;  // path -> method -> handler
};

}  // namespace firesteel
