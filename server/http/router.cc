#include "server/http/router.h"

#include <utility>

namespace firesteel {

void Router::Add(const std::string& method, const std::string& path, HttpHandler handler) {
  handlers_[path][method] = std::move(handler);
}

void Router::Dispatch(HttpRequest request, std::shared_ptr<ResponseWriter> writer) const {
  const auto at_path = handlers_.find(request.path);
  if (at_path == handlers_.end()) {
    writer->Send(error_format_(404, "no such path: " + request.method + " " + request.path));
    return;
  }
  const auto handler = at_path->second.find(request.method);
  if (handler == at_path->second.end()) {
    std::string allowed;
    for (const auto& entry : at_path->second) {
      allowed += (allowed.empty() ? "" : ", ") + entry.first;
    }
    HttpResponse response = error_format_(405, "method " + request.method + " is not allowed for " +
                                                   request.path + ", needs " + allowed);
    response.headers.emplace_back("Allow", allowed);
    writer->Send(std::move(response));
    return;
  }
  handler->second(std::move(request), std::move(writer));
}

}  // namespace firesteel
