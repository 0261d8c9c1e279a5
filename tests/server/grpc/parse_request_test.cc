// GenerateRequest to GenerationCall: what is taken, what is refused and how the refusal reads.
#include "server/grpc/parse_request.h"

#include <cmath>
#include <map>

#include "tests/support/catch.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/table_tokenizer.h"

namespace firesteel {
namespace {

using Ids = std::vector<int32_t>;

struct Fixture {
  Fixture() : tokenizer({"", "a", "b", "c", " ", " b"}), info(ScriptedModelInfo()) {
    info.vocab_size = 6;
    model.name = "toy";
    model.info = &info;
    model.tokenizer = &tokenizer;
    request.set_text("ab");
  }
  Result<GrpcGeneration> Parse() const { return ParseGenerate(request, model); }
  GenerationCall Call() const { return Parse().value().calls.at(0); }
  // The refusal, or "accepted".
  std::string Refusal() const {
    const Result<GrpcGeneration> parsed = Parse();
    return parsed.ok() ? "accepted" : parsed.status().message();
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
  const GrpcGeneration generation = fixture.Parse().value();
  CHECK(generation.calls.size() == 1);
  CHECK(generation.echo.empty());
  CHECK_FALSE(generation.drop_output);
  const GenerationCall call = generation.calls[0];
  CHECK(call.prompt_ids == Ids{1, 2});
  CHECK(call.sampling.temperature == 1.0F);
  CHECK(call.sampling.top_p == 1.0F);
  CHECK(call.sampling.top_k == 0);
  CHECK(call.sampling.min_p == 0.0F);
  CHECK_FALSE(call.sampling.HasPenalties());
  CHECK(call.sampling.logit_bias.empty());
  CHECK(call.sampling.bad_words.empty());
  CHECK(call.sampling.max_tokens == 126);  // 128 positions
  CHECK(call.sampling.min_tokens == 0);
  CHECK_FALSE(call.sampling.ignore_eos);
  CHECK(call.sampling.logprobs == -1);
  CHECK(call.sampling.prompt_logprobs == -1);
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
  options->set_top_k(7);
  options->set_min_p(0.25F);
  options->set_presence_penalty(-2.0F);
  options->set_frequency_penalty(1.5F);
  options->set_repetition_penalty(1.25F);
  (*options->mutable_logit_bias())[3] = -100.0F;
  options->add_bad_words(" ab");
  options->add_bad_words("b");
  options->set_min_tokens(4);
  options->set_logprobs(0);
  options->set_prompt_logprobs(20);
  options->add_stop_token_ids(5);
  const GenerationCall call = fixture.Call();
  CHECK(call.sampling.temperature == 0.0F);
  CHECK(call.sampling.top_p == 0.5F);
  CHECK(call.sampling.seed == UINT64_MAX);
  CHECK(call.sampling.max_tokens == 9);
  CHECK(call.stop == std::vector<std::string>{"END"});
  CHECK(call.sampling.ignore_eos);
  CHECK(call.sampling.top_k == 7);
  CHECK(call.sampling.min_p == 0.25F);
  CHECK(call.sampling.presence_penalty == -2.0F);
  CHECK(call.sampling.frequency_penalty == 1.5F);
  CHECK(call.sampling.repetition_penalty == 1.25F);
  CHECK(call.sampling.logit_bias == std::map<int32_t, float>{{3, -100.0F}});
  // " b" is one token of its own, and " ab" ends like "ab".
  CHECK(call.sampling.bad_words == std::vector<Ids>{{1, 2}, {2}, {5}});
  CHECK(call.sampling.min_tokens == 4);
  CHECK(call.sampling.logprobs == 0);
  CHECK(call.sampling.prompt_logprobs == 20);
  CHECK(call.stop_token_ids == Ids{5});
}

TEST_CASE("top_k of 0 and -1 keep every token") {
  Fixture fixture;
  fixture.request.mutable_sampling()->set_top_k(GENERATE(0, -1));
  CHECK(fixture.Call().sampling.top_k == 0);
}

TEST_CASE("the choices of a call differ by their seeds, and the first one reports the prompt") {
  Fixture fixture;
  v1::SamplingOptions* options = fixture.request.mutable_sampling();
  options->set_n(3);
  options->set_seed(UINT64_MAX);
  options->set_logprobs(2);
  options->set_prompt_logprobs(1);
  const std::vector<GenerationCall> calls = fixture.Parse().value().calls;
  REQUIRE(calls.size() == 3);
  for (size_t i = 0; i < calls.size(); ++i) {
    CHECK(calls[i].prompt_ids == Ids{1, 2});
    CHECK(calls[i].sampling.seed == UINT64_MAX + i);
    CHECK(calls[i].sampling.logprobs == 2);
    CHECK(calls[i].sampling.prompt_logprobs == (i == 0 ? 1 : -1));
  }
}

TEST_CASE("more choices than the server's slots and queue are refused") {
  Fixture fixture;
  fixture.info.max_live_requests = 4;
  fixture.request.mutable_sampling()->set_n(4);
  CHECK(fixture.Refusal() == "accepted");
  fixture.request.mutable_sampling()->set_n(5);
  CHECK(fixture.Refusal() == "sampling.n is 5, needs 1 to 4");
}

TEST_CASE("no output tokens are allowed when the prompt is scored") {
  Fixture fixture;
  v1::SamplingOptions* options = fixture.request.mutable_sampling();
  options->set_max_tokens(0);
  CHECK(fixture.Refusal() == "sampling.max_tokens is 0, needs 1 to 2147483647");
  options->set_prompt_logprobs(0);
  const GrpcGeneration generation = fixture.Parse().value();
  CHECK(generation.drop_output);
  CHECK(generation.calls[0].sampling.max_tokens == 1);
}

TEST_CASE("an echo is the text of the prompt, whatever form that had") {
  Fixture fixture;
  fixture.request.mutable_tokens()->add_ids(3);
  fixture.request.mutable_tokens()->add_ids(1);
  fixture.request.mutable_sampling()->set_echo(true);
  CHECK(fixture.Parse().value().echo == "ca");
}

TEST_CASE("an absent seed is drawn for each call") {
  Fixture fixture;
  CHECK(fixture.Call().sampling.seed != fixture.Call().sampling.seed);
}

TEST_CASE("token ids are taken as they are and refused outside the vocabulary") {
  Fixture fixture;
  fixture.request.mutable_tokens()->add_ids(3);
  CHECK(fixture.Call().prompt_ids == Ids{3});
  fixture.request.mutable_tokens()->add_ids(GENERATE(-1, 6));
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
  SECTION("top_k") {
    options->set_top_k(-2);
    CHECK(fixture.Refusal() == "sampling.top_k is -2, needs -1 to 2147483647");
  }
  SECTION("min_p") {
    options->set_min_p(GENERATE(-0.1F, 1.5F, NAN));
    CHECK(Has(fixture.Refusal(), "sampling.min_p is "));
  }
  SECTION("presence_penalty") {
    options->set_presence_penalty(GENERATE(-2.5F, 2.5F, NAN));
    CHECK(Has(fixture.Refusal(), "sampling.presence_penalty is "));
  }
  SECTION("frequency_penalty") {
    options->set_frequency_penalty(GENERATE(-2.5F, 2.5F, INFINITY));
    CHECK(Has(fixture.Refusal(), "sampling.frequency_penalty is "));
  }
  SECTION("repetition_penalty") {
    options->set_repetition_penalty(GENERATE(0.0F, -1.0F, 1001.0F));
    CHECK(Has(fixture.Refusal(), "needs 0.001000 to 1000.000000"));
  }
  SECTION("a logit bias") {
    (*options->mutable_logit_bias())[2] = GENERATE(-101.0F, 101.0F, NAN);
    CHECK(Has(fixture.Refusal(), "sampling.logit_bias: logit_bias of token 2 is "));
  }
  SECTION("a logit bias outside the vocabulary") {
    (*options->mutable_logit_bias())[GENERATE(-1, 6)] = 1.0F;
    CHECK(Has(fixture.Refusal(), "needs a token id in 0..5"));
  }
  SECTION("too many logit biases") {
    fixture.info.vocab_size = 1000;
    for (int32_t token = 0; token < 301; ++token) (*options->mutable_logit_bias())[token] = 1.0F;
    CHECK(Has(fixture.Refusal(), "number of logit_bias tokens is 301, needs 0..300"));
  }
  SECTION("a bad word of spaces") {
    options->add_bad_words(GENERATE("", "  "));
    CHECK(Has(fixture.Refusal(), "sampling.bad_words: "));
  }
  SECTION("too many bad words") {
    for (int i = 0; i < 65; ++i) options->add_bad_words("ab");
    CHECK(Has(fixture.Refusal(), "more than 64 forms"));
  }
  SECTION("too long a bad word") {
    options->add_bad_words(std::string(33, 'a'));
    CHECK(Has(fixture.Refusal(), "sampling.bad_words: number of tokens"));
  }
  SECTION("min_tokens") {
    options->set_max_tokens(5);
    options->set_min_tokens(GENERATE(-1, 6));
    CHECK(Has(fixture.Refusal(), "sampling.min_tokens is "));
  }
  SECTION("a stop token id") {
    options->add_stop_token_ids(GENERATE(-1, 6));
    CHECK(Has(fixture.Refusal(), "sampling.stop_token_ids[0] is "));
  }
  SECTION("too many stop token ids") {
    for (size_t i = 0; i <= kMaxStopTokenIds; ++i) options->add_stop_token_ids(1);
    CHECK(Has(fixture.Refusal(), "sampling.stop_token_ids has 33 ids, needs at most 32"));
  }
  SECTION("n") {
    options->set_n(GENERATE(0, -1, 129));
    CHECK(Has(fixture.Refusal(), "sampling.n is "));
  }
  SECTION("logprobs") {
    options->set_logprobs(GENERATE(-1, 21));
    CHECK(Has(fixture.Refusal(), "sampling.logprobs is "));
  }
  SECTION("prompt_logprobs") {
    options->set_prompt_logprobs(GENERATE(-1, 21));
    CHECK(Has(fixture.Refusal(), "sampling.prompt_logprobs is "));
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
  options->set_min_tokens(1);
  options->set_min_p(1.0F);
  options->set_presence_penalty(2.0F);
  options->set_frequency_penalty(-2.0F);
  options->set_repetition_penalty(GENERATE(0.001F, 1000.0F));
  options->set_n(kMaxChoices);
  options->set_logprobs(kMostLogprobs);
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
