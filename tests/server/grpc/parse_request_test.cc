// GenerateRequest to GenerationCall: what is taken, what is refused and how the refusal reads.
#include "server/grpc/parse_request.h"

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/table_tokenizer.h"

namespace firesteel {
namespace {

using Ids = std::vector<int32_t>;

struct Fixture {
  Fixture() : tokenizer({"", "a", "b", "c"}), info(ScriptedModelInfo()) {
    info.vocab_size = 4;
    model.name = "toy";
    model.info = &info;
    model.tokenizer = &tokenizer;
    request.set_text("ab");
  }
  Result<GenerationCall> Parse() const { return ParseGenerate(request, model); }
  // The refusal, or "accepted".
  std::string Refusal() const {
    const Result<GenerationCall> call = Parse();
    return call.ok() ? "accepted" : call.status().message();
  }

  TableTokenizer tokenizer;
  ModelInfo info;
  GrpcModel model;
  v1::GenerateRequest request;
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a bare prompt gets the documented defaults") {
  Fixture fixture;
  const GenerationCall call = fixture.Parse().value();
  CHECK(call.prompt_ids == Ids{1, 2});
  CHECK(call.sampling.temperature == 1.0F);
  CHECK(call.sampling.top_p == 1.0F);
  CHECK(call.sampling.max_tokens == 126);  // 128 positions
  CHECK_FALSE(call.sampling.ignore_eos);
  CHECK(call.stop.empty());
}

TEST_CASE("every sampling option reaches the call") {
  Fixture fixture;
  v1::SamplingOptions* options = fixture.request.mutable_sampling();
  options->set_temperature(0.0F);
  options->set_top_p(0.5F);
  options->set_seed(UINT64_MAX);
  options->set_max_tokens(9);
  options->add_stop("END");
  options->set_ignore_eos(true);
  const GenerationCall call = fixture.Parse().value();
  CHECK(call.sampling.temperature == 0.0F);
  CHECK(call.sampling.top_p == 0.5F);
  CHECK(call.sampling.seed == UINT64_MAX);
  CHECK(call.sampling.max_tokens == 9);
  CHECK(call.stop == std::vector<std::string>{"END"});
  CHECK(call.sampling.ignore_eos);
}

TEST_CASE("an absent seed is drawn for each call") {
  Fixture fixture;
  CHECK(fixture.Parse().value().sampling.seed != fixture.Parse().value().sampling.seed);
}

TEST_CASE("token ids are taken as they are and refused outside the vocabulary") {
  Fixture fixture;
  fixture.request.mutable_tokens()->add_ids(3);
  CHECK(fixture.Parse().value().prompt_ids == Ids{3});
  fixture.request.mutable_tokens()->add_ids(GENERATE(-1, 4));
  CHECK(Has(fixture.Refusal(), "tokens.ids[1]"));
}

TEST_CASE("values out of range are refused by name") {
  Fixture fixture;
  v1::SamplingOptions* options = fixture.request.mutable_sampling();
  SECTION("temperature") {
    options->set_temperature(GENERATE(-0.1F, 2.1F, NAN, INFINITY));
    CHECK(Has(fixture.Refusal(), "sampling.temperature"));
  }
  SECTION("top_p") {
    options->set_top_p(GENERATE(0.0F, 1.5F, NAN));
    CHECK(Has(fixture.Refusal(), "sampling.top_p"));
  }
  SECTION("max_tokens") {
    options->set_max_tokens(GENERATE(0, -5));
    CHECK(Has(fixture.Refusal(), "sampling.max_tokens"));
  }
  SECTION("an empty stop string") {
    options->add_stop("");
    CHECK(Has(fixture.Refusal(), "sampling.stop"));
  }
  SECTION("too many stop strings") {
    for (size_t i = 0; i <= kMaxStopStrings; ++i) options->add_stop(std::string(1, 'x'));
    CHECK(Has(fixture.Refusal(), "sampling.stop"));
  }
}

TEST_CASE("the bounds themselves are allowed") {
  Fixture fixture;
  v1::SamplingOptions* options = fixture.request.mutable_sampling();
  options->set_temperature(2.0F);
  options->set_top_p(0.000001F);
  options->set_max_tokens(1);
  options->add_stop(std::string(kMaxStopBytes, 'x'));
  CHECK(fixture.Refusal() == "accepted");
}

TEST_CASE("a missing, empty or too long prompt is refused") {
  Fixture fixture;
  fixture.request.clear_prompt();
  CHECK(Has(fixture.Refusal(), "prompt is missing"));
  fixture.request.mutable_tokens();
  CHECK(Has(fixture.Refusal(), "tokens.ids has no tokens"));
  fixture.request.set_text(std::string(128, 'a'));
  CHECK(Has(fixture.Refusal(), "text has 128 tokens"));
}

TEST_CASE("chat is refused without a chat format, and another model's name is not found") {
  Fixture fixture;
  fixture.request.mutable_chat()->add_messages()->set_role("user");
  CHECK(Has(fixture.Refusal(), "chat"));
  fixture.request.set_model("other");
  CHECK(fixture.Parse().status().code() == StatusCode::kNotFound);
}

}  // namespace
}  // namespace firesteel
