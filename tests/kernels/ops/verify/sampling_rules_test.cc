// Every sampling rule against its definition, with greedy choices: which token wins after the rules, row by row.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/support/ruled_slot.h"
#include "tests/kernels/support/test_random.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kVocab = 13;
constexpr int32_t kDrafts = 3;

std::vector<OracleRules> AllRules() {
  std::vector<OracleRules> all(8);
  all[0].presence = 1.5;
  all[1].frequency = 0.75;
  all[2].repetition = 1.75;
  all[3].repetition = 0.5;
  all[4].bias = {{2, 3.0F}, {7, -4.0F}, {12, 1.5F}};
  all[5].bad_words = {{3}, {5, 6}, {1, 2, 4}, {7, 7}, {8, 9}};
  all[6].stops = {0, 11, 5};
  all[6].min_tokens = 5;
  all[7] = all[5];
  all[7].presence = -0.5;
  all[7].frequency = 0.25;
  all[7].repetition = 1.25;
  all[7].bias = all[4].bias;
  all[7].stops = all[6].stops;
  all[7].min_tokens = 4;
  for (OracleRules& r : all) r.temperature = 0.0;
  return all;
}

// What a block emits when each row takes the best token after the rules.
std::vector<int32_t> OracleBlock(const OracleRules& rules, const std::vector<int32_t>& prompt,
                                 std::vector<int32_t> output, const std::vector<int32_t>& drafts,
                                 const std::vector<std::vector<float>>& rows) {
  std::vector<int32_t> emitted;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<double> l = OracleRuled(rules, rows[i], prompt, output);
    const auto token = static_cast<int32_t>(std::max_element(l.begin(), l.end()) - l.begin());
    emitted.push_back(token);
    output.push_back(token);
    if (i == drafts.size() || drafts[i] != token) break;
  }
  return emitted;
}

TEST_CASE("each rule changes greedy blocks as defined and counts the drafts before a row",
          "[sampling][rules]") {
  OpFixture ops(1);
  TestRandom random(300);
  const std::vector<OracleRules> all = AllRules();
  for (size_t which = 0; which < all.size(); ++which) {
    int32_t longest = 0;
    int32_t changed = 0;
    for (int32_t trial = 0; trial < 200; ++trial) {
      std::vector<int32_t> prompt;
      std::vector<int32_t> output;
      for (int32_t i = 1 + random.Below(70); i > 0; --i) prompt.push_back(random.Below(kVocab));
      for (int32_t i = 1 + random.Below(6); i > 0; --i) output.push_back(random.Below(kVocab));
      std::vector<std::vector<float>> rows;
      for (int32_t i = 0; i <= kDrafts; ++i) {
        rows.push_back(RandomFloats(random, kVocab, -2.0F, 2.0F));
      }
      // Mostly right drafts: what the rules emit when nothing is rejected.
      std::vector<int32_t> drafts;
      for (int32_t i = 0; i < kDrafts; ++i) {
        const std::vector<int32_t> best = OracleBlock(all[which], prompt, output, drafts, rows);
        drafts.push_back(random.Below(4) == 0 ? random.Below(kVocab) : best.back());
      }
      const auto known = static_cast<int32_t>(prompt.size() + output.size());
      VerifyFixture f(1, kDrafts, kVocab);
      SetRules(&f, 0, all[which], prompt, output);
      for (int32_t i = 0; i < kDrafts; ++i) {
        SetRuledDraft(&f, 0, known, i, drafts[static_cast<size_t>(i)], {});
      }
      f.AddDecode(0, known - 1, rows, kDrafts);
      f.Run(ops);
      const std::vector<int32_t> wanted = OracleBlock(all[which], prompt, output, drafts, rows);
      INFO("rules " << which << ", trial " << trial);
      REQUIRE(f.Tokens(0) == wanted);
      longest = std::max(longest, static_cast<int32_t>(wanted.size()));
      OracleRules none;
      none.temperature = 0.0;
      changed += wanted != OracleBlock(none, prompt, output, drafts, rows) ? 1 : 0;
      if (!f.slots.sampling[0].counts_tokens()) continue;
      // Emitted tokens are counted, rejected drafts are not.
      output.insert(output.end(), wanted.begin(), wanted.end());
      for (int32_t t = 0; t < kVocab; ++t) {
        REQUIRE(f.slots.OutputCount(0, t) == std::count(output.begin(), output.end(), t));
      }
    }
    CHECK(longest == kDrafts + 1);
    CHECK(changed > 10);
  }
}

TEST_CASE("a draft that a rule forbids is rejected at any temperature", "[sampling][rules]") {
  OpFixture ops(1);
  OracleRules masked;
  masked.bad_words = {{5}};
  OracleRules unfinished;
  unfinished.stops = {5};
  unfinished.min_tokens = 3;
  for (OracleRules rules : {masked, unfinished}) {
    for (const double temperature : {0.0, 1.0}) {
      rules.temperature = temperature;
      VerifyFixture f(1, 1, kVocab);
      SetRules(&f, 0, rules, {1, 2}, {3});
      SetRuledDraft(&f, 0, 3, 0, 5, std::vector<float>(kVocab, 1.0F / kVocab));
      std::vector<float> sure(kVocab, -40.0F);
      sure[5] = 40.0F;
      sure[9] = 0.0F;
      f.AddDecode(0, 2, {sure, sure}, 1);
      f.Run(ops);
      CHECK(f.Tokens(0) == std::vector<int32_t>{9});
    }
  }
}

TEST_CASE("stop tokens are free again at exactly min_tokens", "[sampling][rules]") {
  OpFixture ops(1);
  OracleRules rules;
  rules.temperature = 0.0;
  rules.stops = {4};
  rules.min_tokens = 3;
  for (int32_t emitted = 0; emitted < 5; ++emitted) {
    VerifyFixture f(1, 1, kVocab);
    std::vector<float> row = Favor(kVocab, 4);
    row[6] = 1.0F;
    SetRules(&f, 0, rules, {1, 2, 3}, std::vector<int32_t>(static_cast<size_t>(emitted), 6));
    f.AddDecode(0, 2 + emitted, {row}, 0);
    f.Run(ops);
    CHECK(f.Tokens(0) == std::vector<int32_t>{emitted < 3 ? 6 : 4});
  }
}

TEST_CASE("ties after the rules go to the lower token", "[sampling][rules]") {
  OpFixture ops(1);
  OracleRules rules;
  rules.temperature = 0.0;
  rules.bias = {{9, 1.0F}, {3, 1.0F}, {6, 1.0F}};
  VerifyFixture f(2, 1, kVocab);
  SetRules(&f, 0, rules, {1}, {2});
  f.AddDecode(0, 1, {std::vector<float>(kVocab, 0.0F)}, 0);
  // Of equal tokens, top-k keeps the lowest: with one left there is no choice.
  f.slots.sampling[1].temperature = 1.0F;
  f.slots.sampling[1].top_k = 1;
  std::vector<float> tie(kVocab, 0.0F);
  tie[8] = tie[4] = tie[11] = 2.0F;
  f.AddDecode(1, 1, {tie}, 0);
  f.Run(ops);
  CHECK(f.Tokens(0) == std::vector<int32_t>{3});
  CHECK(f.Tokens(1) == std::vector<int32_t>{4});
}

TEST_CASE("extreme penalties still leave a token to draw", "[sampling][rules]") {
  OpFixture ops(1);
  OracleRules rules;
  rules.repetition = 1e-38;
  VerifyFixture f(1, 1, kVocab);
  SetRules(&f, 0, rules, {7}, {7});
  std::vector<float> row(kVocab, -1.0F);
  row[7] = 5.0F;
  f.AddDecode(0, 1, {row}, 0);
  f.Run(ops);
  CHECK(f.Tokens(0) == std::vector<int32_t>{7});
}

void CheckRecord(const LogprobRecord& record, const std::vector<float>& logits, int32_t token,
                 int32_t top) {
  double sum = 0.0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  const auto logprob = [&](int32_t t) {
    return static_cast<double>(logits[static_cast<size_t>(t)]) - std::log(sum);
  };
  CHECK(record.token == token);
  CHECK(std::fabs(static_cast<double>(record.logprob) - logprob(token)) < 1e-5);
  REQUIRE(record.num_top == std::min(top, kVocab));
  const std::vector<double> values(logits.begin(), logits.end());
  for (int32_t i = 0; i < record.num_top; ++i) {
    CHECK(RankOf(values, static_cast<size_t>(record.top_token[i])) == i);
    CHECK(std::fabs(static_cast<double>(record.top_logprob[i]) - logprob(record.top_token[i])) <
          1e-5);
  }
}

TEST_CASE("log-probabilities are those of the raw logits for every emitted token",
          "[sampling][logprobs]") {
  OpFixture ops(1);
  TestRandom random(310);
  OracleRules rules = AllRules()[7];
  for (const double temperature : {0.0, 0.7}) {
    for (const int32_t top : {0, 1, 5, 20}) {
      rules.temperature = temperature;
      std::vector<std::vector<float>> rows;
      for (int32_t i = 0; i <= kDrafts; ++i) {
        rows.push_back(RandomFloats(random, kVocab, -3.0F, 3.0F));
        rows.back()[4] = rows.back()[9] = 3.5F;  // a tie at the top
      }
      VerifyFixture f(2, kDrafts, kVocab);
      for (const int32_t slot : {0, 1}) {
        SetRules(&f, slot, rules, {1, 2}, {3});
        for (int32_t i = 0; i < kDrafts; ++i) {
          SetRuledDraft(&f, slot, 3, i, 9, std::vector<float>(kVocab, 1.0F / kVocab));
        }
      }
      f.slots.sampling[0].logprobs = top;
      f.AddDecode(0, 2, rows, kDrafts);
      f.AddDecode(1, 2, rows, kDrafts);
      f.Run(ops);
      const std::vector<int32_t> tokens = f.Tokens(0);
      CHECK(tokens == f.Tokens(1));
      for (size_t i = 0; i < tokens.size(); ++i) {
        CheckRecord(f.logprobs[i], rows[i], tokens[i], top);
      }
      // Rows behind the last emitted token and slots that did not ask stay as they were.
      for (size_t i = tokens.size(); i < 2 * (kDrafts + 1); ++i) CHECK(f.logprobs[i].token == -99);
    }
  }
}

TEST_CASE("a nearly certain token has a log-probability below zero", "[sampling][logprobs]") {
  OpFixture ops(1);
  VerifyFixture f(1, 1, kVocab);
  f.slots.sampling[0].logprobs = 0;
  std::vector<float> sure(kVocab, 0.0F);
  sure[5] = 40.0F;
  f.AddDecode(0, 2, {sure}, 0);
  f.Run(ops);
  CHECK(f.logprobs[0].logprob < 0.0F);
  CHECK(f.logprobs[0].logprob > -1e-15F);
}

TEST_CASE("scored prompt rows name the token behind them and only the last chunk emits",
          "[sampling][logprobs]") {
  OpFixture ops(1);
  TestRandom random(320);
  std::vector<std::vector<float>> rows;
  for (int32_t i = 0; i < 4; ++i) rows.push_back(RandomFloats(random, kVocab, -3.0F, 3.0F));
  VerifyFixture f(2, kDrafts, kVocab);
  f.slots.last_token = {8, 8};
  for (SlotSampling& s : f.slots.sampling) s.prompt_logprobs = 3;
  f.AddScoredPrefill(0, 16, {1, 2, 3, 4}, rows, 6);
  f.AddScoredPrefill(1, 16, {1, 2, 3, 4}, rows, -1);
  f.Run(ops);
  CHECK(f.results[0].num_tokens == 0);
  CHECK(f.slots.length == std::vector<int32_t>{20, 20});
  CHECK(f.slots.last_token[0] == 8);
  const auto best = std::max_element(rows[3].begin(), rows[3].end()) - rows[3].begin();
  CHECK(f.Tokens(1) == std::vector<int32_t>{static_cast<int32_t>(best)});
  for (size_t i = 0; i < 3; ++i) {
    CheckRecord(f.logprobs[i], rows[i], static_cast<int32_t>(i) + 2, 3);
    CheckRecord(f.logprobs[4 + i], rows[i], static_cast<int32_t>(i) + 2, 3);
  }
  CheckRecord(f.logprobs[3], rows[3], 6, 3);
  CHECK(f.logprobs[7].token == -99);  // emitted, and its log-probability was not asked for
}

}  // namespace
}  // namespace firesteel
