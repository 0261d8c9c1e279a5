// What the observer of a router is told.
#include "server/http/router.h"

#include <vector>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

class NullWriter : public ResponseWriter {
 public:
  void Send(HttpResponse response) override { status = response.status; }
  void StartStream(StreamStart) override { started = true; }
  bool Write(std::string_view) override { return true; }
  bool gone() const override { return is_gone; }
  void End() override {}
  void OnDisconnect(std::function<void()>) override {}

  int status = 0;
  bool started = false;
  bool is_gone = false;
};

struct Fixture {
  Fixture()
      : router([](int status, const std::string&) {
          return HttpResponse{status, "", {}, ""};
        }) {
    router.SetObserver([this](const std::string& handler, const std::string& method, int status) {
      seen.push_back(method + " " + handler + " " + std::to_string(status));
    });
    router.Add("POST", "/answer", [](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
      writer->Send({429, "", {}, ""});
    });
    router.Add("GET", "/things/*", [](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
      writer->Send({200, "", {}, ""});
    });
    router.Add("POST", "/stream", [](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
      writer->StartStream({"text/event-stream", {}, ""});
      writer->End();
    });
  }
  std::shared_ptr<NullWriter> Dispatch(const std::string& method, const std::string& path,
                                       bool is_gone = false) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    auto writer = std::make_shared<NullWriter>();
    writer->is_gone = is_gone;
    router.Dispatch(std::move(request), writer);
    return writer;
  }

  Router router;
  std::vector<std::string> seen;
};

using Seen = std::vector<std::string>;

TEST_CASE("each answer is observed with its route, method and status, and passed on") {
  Fixture fixture;
  CHECK(fixture.Dispatch("POST", "/answer")->status == 429);
  CHECK(fixture.Dispatch("POST", "/stream")->started);
  CHECK(fixture.Dispatch("GET", "/answer")->status == 405);
  CHECK(fixture.seen == Seen{"POST /answer 429", "POST /stream 200", "GET /answer 405"});
}

TEST_CASE("an answer whose client left is observed as 499") {
  Fixture fixture;
  fixture.Dispatch("POST", "/answer", true);
  CHECK(fixture.seen == Seen{"POST /answer 499"});
}

TEST_CASE("a path below a route with a star is taken by it and observed under its name") {
  Fixture fixture;
  CHECK(fixture.Dispatch("GET", "/things/a")->status == 200);
  CHECK(fixture.Dispatch("HEAD", "/things/a/b")->status == 200);
  CHECK(fixture.Dispatch("GET", "/things/")->status == 404);
  CHECK(fixture.Dispatch("POST", "/things/a")->status == 405);
  CHECK(fixture.seen ==
        Seen{"GET /things/* 200", "HEAD /things/* 200", "GET unmatched 404", "POST /things/* 405"});
}

TEST_CASE("paths and methods that clients make up are observed under one name each") {
  Fixture fixture;
  fixture.Dispatch("BREW", "/pot/1");
  fixture.Dispatch("BREW", "/pot/2");
  CHECK(fixture.seen == Seen{"other unmatched 404", "other unmatched 404"});
}

}  // namespace
}  // namespace firesteel
