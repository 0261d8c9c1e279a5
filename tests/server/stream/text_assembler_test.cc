// The per-token bookkeeping behind every answer: text, ids and acceptance counts.
#include "server/stream/text_assembler.h"

#include "tests/support/catch.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/table_tokenizer.h"

namespace firesteel {
namespace {

using Ids = std::vector<int32_t>;

TableTokenizer Pieces() {
  return TableTokenizer({"", "a", "b", "EN", "D", "c", "\xF0\x9F", "\x98\x80", "xENDy"});
}

TEST_CASE("a stop string inside an accepted block cuts text, ids and acceptance at its token") {
  const TableTokenizer tokenizer = Pieces();
  TextAssembler assembler(&tokenizer, {"END"}, 3);
  const std::string text = assembler.Consume(ScriptedEvent({1, 3, 4, 2, 5}, true, 4));
  CHECK(text == "a");
  CHECK(assembler.done());
  CHECK(assembler.stopped_by_string());
  CHECK(assembler.result().finish == FinishReason::kStop);
  CHECK(assembler.result().output_ids == Ids{1, 3, 4});
  CHECK(assembler.result().accepted_per_step == Ids{3});
}

TEST_CASE("the token that ended the text is one of its ids and not part of it") {
  const TableTokenizer tokenizer = Pieces();
  TextAssembler assembler(&tokenizer, {"ab"}, 3);
  CHECK(assembler.Consume(ScriptedEvent({5, 1, 2}, true, 2, FinishReason::kStop)) == "ca");
  CHECK(assembler.result().output_ids == Ids{5, 1, 2});
  CHECK(assembler.result().finish == FinishReason::kStop);
  CHECK_FALSE(assembler.stopped_by_string());
}

TEST_CASE("log-probabilities are cut with the tokens, and those of the prompt are kept in order") {
  const TableTokenizer tokenizer = Pieces();
  TextAssembler assembler(&tokenizer, {"END"}, 3);
  TokenEvent prompt = ScriptedEvent({}, false, 0);
  prompt.prompt_logprobs = {ScriptedLogprobs(1, -0.5F, 1)};
  CHECK(assembler.Consume(prompt).empty());
  TokenEvent event = ScriptedEvent({1, 3, 4, 2}, true, 3);
  event.prompt_logprobs = {ScriptedLogprobs(2, -1.5F, 1)};
  for (const int32_t token : event.tokens) {
    event.logprobs.push_back(ScriptedLogprobs(token, -2.0F, 1));
  }
  assembler.Consume(event);
  const GenerationResult& result = assembler.result();
  REQUIRE(result.logprobs.size() == 3);
  CHECK(result.logprobs[2].token == 4);
  REQUIRE(result.prompt_logprobs.size() == 2);
  CHECK(result.prompt_logprobs[0].token == 1);
  CHECK(result.prompt_logprobs[1].token == 2);
}

TEST_CASE("a stop string that spans two rounds leaks nothing of its first half") {
  const TableTokenizer tokenizer = Pieces();
  TextAssembler assembler(&tokenizer, {"END"}, 1);
  CHECK(assembler.Consume(ScriptedEvent({1, 3}, true, 1)) == "a");
  CHECK_FALSE(assembler.done());
  CHECK(assembler.Consume(ScriptedEvent({4, 5}, true, 1)).empty());
  CHECK(assembler.result().text == "a");
  CHECK(assembler.result().accepted_per_step == Ids{1, 1});
  CHECK(assembler.result().output_ids == Ids{1, 3, 4});
}

TEST_CASE("text before a stop string inside one token is released") {
  const TableTokenizer tokenizer = Pieces();
  TextAssembler assembler(&tokenizer, {"END"}, 1);
  CHECK(assembler.Consume(ScriptedEvent({8, 1}, true, 1)) == "x");
  CHECK(assembler.result().output_ids == Ids{8});
}

TEST_CASE("a stop string wins over the length limit that the same event reports") {
  const TableTokenizer tokenizer = Pieces();
  TextAssembler assembler(&tokenizer, {"b"}, 1);
  assembler.Consume(ScriptedEvent({1, 2, 5}, true, 2, FinishReason::kLength));
  CHECK(assembler.result().finish == FinishReason::kStop);
  CHECK(assembler.result().text == "a");
}

TEST_CASE("a character split across tokens appears once it is whole") {
  const TableTokenizer tokenizer = Pieces();
  TextAssembler assembler(&tokenizer, {}, 1);
  CHECK(assembler.Consume(ScriptedEvent({1, 6}, true, 1)) == "a");
  CHECK(assembler.Consume(ScriptedEvent({7}, true, 0)) == "\xF0\x9F\x98\x80");
}

TEST_CASE("half a stop string is released when the length limit ends the text") {
  const TableTokenizer tokenizer = Pieces();
  TextAssembler assembler(&tokenizer, {"END"}, 1);
  CHECK(assembler.Consume(ScriptedEvent({1, 3}, true, 1)) == "a");
  CHECK(assembler.Consume(ScriptedEvent({}, false, 0, FinishReason::kLength)) == "EN");
  CHECK(assembler.result().finish == FinishReason::kLength);
  CHECK(assembler.result().text == "aEN");
}

TEST_CASE("half a character at the end becomes one replacement character") {
  const TableTokenizer tokenizer = Pieces();
  TextAssembler assembler(&tokenizer, {}, 1);
  assembler.Consume(ScriptedEvent({1, 6}, true, 1, FinishReason::kLength));
  CHECK(assembler.result().text == "a\xEF\xBF\xBD");
}

TEST_CASE("the step that ends the prompt is not a round") {
  const TableTokenizer tokenizer = Pieces();
  TextAssembler assembler(&tokenizer, {}, 1);
  assembler.Consume(ScriptedEvent({1}, false, 0));
  assembler.Consume(ScriptedEvent({2, 5, 0}, true, 2, FinishReason::kStop));
  CHECK(assembler.result().accepted_per_step == Ids{2});
  CHECK(assembler.result().drafted == 5);
  CHECK(assembler.result().text == "abc");
}

}  // namespace
}  // namespace firesteel
