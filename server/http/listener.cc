#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>

#include <chrono>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "server/http/connection.h"

namespace firesteel {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

class HttpServer::Impl {
 public:
  Impl(const HttpServerOptions& options, const Router* router, HttpErrorFormat error_format)
      : options_(options),
        workers_(static_cast<size_t>(options.worker_threads)),
        acceptor_(asio::make_strand(io_)),
        retry_timer_(acceptor_.get_executor()) {
    context_.options = &options_;
    context_.router.store(router);
    context_.error_format = std::move(error_format);
    context_.workers = &workers_;
    std::random_device device;
    context_.id_salt = (uint64_t{device()} << 32) | device();
  }

  ~Impl() { Stop(); }

  Status Bind() {
    boost::system::error_code error;
    // The one name that needs no resolver.
    const std::string host = options_.host == "localhost" ? "127.0.0.1" : options_.host;
    const asio::ip::address address = asio::ip::make_address(host, error);
    if (error) {
      return InvalidArgument("host is '" + options_.host +
                             "', needs an IPv4 or IPv6 address or localhost");
    }
    const tcp::endpoint endpoint(address, options_.port);
    const auto failed = [&](const char* what) {
      return Unavailable(std::string("cannot ") + what + " " + options_.host + ":" +
                         std::to_string(options_.port) + ": " + error.message());
    };
    acceptor_.open(endpoint.protocol(), error);
    if (error) return failed("open a socket for");
    acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (error) return failed("set options of");
    acceptor_.bind(endpoint, error);
    if (error) return failed("bind");
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return failed("listen on");
    port_ = acceptor_.local_endpoint(error).port();
    if (error) return failed("read the port of");
    return Status::Ok();
  }

  void Run() {
    Accept();
    for (int i = 0; i < options_.io_threads; ++i) {
      threads_.emplace_back([this] { io_.run(); });
    }
  }

  void Stop() {
    if (stopped_) return;
    stopped_ = true;
    if (!threads_.empty()) {
      // Waited for: a connection accepted after CloseAllConnections would keep io_ running.
      std::promise<void> closed;
      asio::post(acceptor_.get_executor(), [this, &closed] {
        boost::system::error_code ignored;
        acceptor_.close(ignored);
        retry_timer_.cancel();
        closed.set_value();
      });
      closed.get_future().wait();
    }
    workers_.join();
    CloseAllConnections(&context_);
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  void SetRouter(const Router* router) { context_.router.store(router); }
  void BeginDrain() { context_.draining.store(true); }
  uint16_t port() const { return port_; }
  int64_t active_requests() const { return context_.active_requests.load(); }

 private:
  void Accept() {
    acceptor_.async_accept(asio::make_strand(io_),
                           [this](boost::system::error_code error, tcp::socket socket) {
                             OnAccept(error, std::move(socket));
                           });
  }

  void OnAccept(boost::system::error_code error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      ServeConnection(std::move(socket), &context_);
      Accept();
      return;
    }
    ReportAcceptFailure(error);
    // Out of file descriptors, or a client that left in the backlog: go on, but do not spin.
    retry_timer_.expires_after(std::chrono::milliseconds(50));
    retry_timer_.async_wait([this](boost::system::error_code cancelled) {
      if (!cancelled && acceptor_.is_open()) Accept();
    });
  }

  // Runs in the acceptor's strand. A lasting failure comes back twenty times a second and is told once in a while.
  void ReportAcceptFailure(const boost::system::error_code& error) {
    const auto now = std::chrono::steady_clock::now();
    if (!options_.on_accept_failure || now < next_report_) return;
    next_report_ = now + kReportInterval;
    options_.on_accept_failure("cannot accept a connection: " + error.message());
  }

  static constexpr auto kReportInterval = std::chrono::seconds(10);

  const HttpServerOptions options_;
  ConnectionContext
      context_;  // before io_: connections that io_ still holds deregister in it when they are destroyed
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  asio::thread_pool workers_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_timer_;
  std::chrono::steady_clock::time_point next_report_{};
  std::vector<std::thread> threads_;
  uint16_t port_ = 0;
  bool stopped_ = false;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                      const Router* router,
                                                      HttpErrorFormat error_format) {
  auto impl = std::make_unique<Impl>(options, router, std::move(error_format));
  FIRESTEEL_RETURN_IF_ERROR(impl->Bind());
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

void HttpServer::SetRouter(const Router* router) { impl_->SetRouter(router); }
void HttpServer::BeginDrain() { impl_->BeginDrain(); }
uint16_t HttpServer::port() const { return impl_->port(); }
int64_t HttpServer::active_requests() const { return impl_->active_requests(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace firesteel
