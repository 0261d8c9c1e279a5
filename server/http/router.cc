#include "server/http/router.h"

#include <atomic>
#include <utility>

namespace firesteel {

namespace {

// Passes everything on and reports the status code.
class ObservedWriter : public ResponseWriter {
 public:
  ObservedWriter(std::shared_ptr<ResponseWriter> writer, const HttpObserver* observer,
                 std::string handler, std::string method)
      : writer_(std::move(writer)),
        observer_(observer),
        handler_(std::move(handler)),
        method_(std::move(method)) {}

  void Send(HttpResponse response) override {
    Report(response.status);
    writer_->Send(std::move(response));
  }
  void StartStream(StreamStart start) override {
    Report(200);
    writer_->StartStream(std::move(start));
  }
  bool gone() const override { return writer_->gone(); }
  bool Write(std::string_view piece) override { return writer_->Write(piece); }
  void End() override { writer_->End(); }
  void OnDisconnect(std::function<void()> callback) override {
    writer_->OnDisconnect(std::move(callback));
  }

 private:
  void Report(int status) {
    // A refusal may race a stream's start; the first of them is the answer.
    if (reported_.exchange(true)) return;
    // Whatever ends a request after its client left is no fault of the server.
    (*observer_)(handler_, method_, writer_->gone() ? kClientGone : status);
  }

  const std::shared_ptr<ResponseWriter> writer_;  // shared with the connection
  const HttpObserver* const observer_;
  const std::string handler_;
  const std::string method_;
  std::atomic<bool> reported_{false};
};

// What a message may quote of a method or a path: a client chooses its length.
std::string Quoted(const std::string& text) {
  constexpr size_t kLongest = 200;
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

std::string MethodLabel(const std::string& method) {
  for (const char* usual : {"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"}) {
    if (method == usual) return method;
  }
  return "other";
}

}  // namespace

void Router::Add(const std::string& method, const std::string& path, HttpHandler handler) {
  handlers_[path][method] = std::move(handler);
}

Router::Routes::const_iterator Router::FindRoute(const std::string& path) const {
  const auto exact = handlers_.find(path);
  if (exact != handlers_.end()) return exact;
  for (size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0;
       slash = path.rfind('/', slash - 1)) {
    const auto below = handlers_.find(path.substr(0, slash) + "/*");
    if (below != handlers_.end() && slash + 1 < path.size()) return below;
  }
  return handlers_.end();
}

void Router::Dispatch(HttpRequest request, std::shared_ptr<ResponseWriter> writer) const {
  const auto at_path = FindRoute(request.path);
  if (observer_) {
    const std::string handler = at_path == handlers_.end() ? "unmatched" : at_path->first;
    writer = std::make_shared<ObservedWriter>(std::move(writer), &observer_, handler,
                                              MethodLabel(request.method));
  }
  if (at_path == handlers_.end()) {
    writer->Send(
        error_format_(404, "no such path: " + Quoted(request.method) + " " + Quoted(request.path)));
    return;
  }
  auto handler = at_path->second.find(request.method);
  if (handler == at_path->second.end() && request.method == "HEAD") {
    handler = at_path->second.find("GET");
  }
  if (handler == at_path->second.end()) {
    std::string allowed;
    for (const auto& entry : at_path->second) {
      allowed += (allowed.empty() ? "" : ", ") + entry.first;
      if (entry.first == "GET") allowed += ", HEAD";
    }
    HttpResponse response =
        error_format_(405, "method " + Quoted(request.method) + " is not allowed for " +
                               Quoted(request.path) + ", needs " + allowed);
    response.headers.emplace_back("Allow", allowed);
    writer->Send(std::move(response));
    return;
  }
  handler->second(std::move(request), std::move(writer));
}

}  // namespace firesteel
