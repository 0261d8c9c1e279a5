// The sampling rules by their definition: double precision, one step after the other, nothing shared with the kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

namespace firesteel {

struct OracleRules {
  double temperature = 1.0;
  double top_p = 1.0;
  int32_t top_k = 0;
  double min_p = 0.0;
  double presence = 0.0;
  double frequency = 0.0;
  double repetition = 1.0;
  std::map<int32_t, float> bias;
  std::vector<std::vector<int32_t>> bad_words;
  std::vector<int32_t> stops;
  int32_t min_tokens = 0;
};

inline std::vector<double> OracleRuled(const OracleRules& r, const std::vector<float>& logits,
                                       const std::vector<int32_t>& prompt,
                                       const std::vector<int32_t>& output) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  std::vector<double> l(logits.begin(), logits.end());
  std::vector<int32_t> known = prompt;
  known.insert(known.end(), output.begin(), output.end());
  for (const std::vector<int32_t>& word : r.bad_words) {
    const size_t tail = word.size() - 1;
    if (tail <= known.size() &&
        std::vector<int32_t>(known.end() - static_cast<int64_t>(tail), known.end()) ==
            std::vector<int32_t>(word.begin(), word.end() - 1)) {
      l[static_cast<size_t>(word.back())] = kNever;
    }
  }
  if (static_cast<int32_t>(output.size()) < r.min_tokens) {
    for (const int32_t t : r.stops) l[static_cast<size_t>(t)] = kNever;
  }
  for (const auto& [t, b] : r.bias) l[static_cast<size_t>(t)] += static_cast<double>(b);
  for (size_t t = 0; t < l.size(); ++t) {
    int in_prompt = 0;
    int in_output = 0;
    for (const int32_t x : prompt) in_prompt += x == static_cast<int32_t>(t) ? 1 : 0;
    for (const int32_t x : output) in_output += x == static_cast<int32_t>(t) ? 1 : 0;
    if (in_prompt + in_output > 0) l[t] = l[t] > 0 ? l[t] / r.repetition : l[t] * r.repetition;
    l[t] -= r.frequency * in_output;
    if (in_output > 0) l[t] -= r.presence;
  }
  return l;
}

inline void Renormalise(std::vector<double>* p) {
  const double sum = std::accumulate(p->begin(), p->end(), 0.0);
  for (double& v : *p) v /= sum;
}

// Position of token t when the likeliest comes first; ties go to the lower token.
inline int32_t RankOf(const std::vector<double>& p, size_t t) {
  int32_t rank = 0;
  for (size_t x = 0; x < p.size(); ++x) rank += p[x] > p[t] || (p[x] == p[t] && x < t) ? 1 : 0;
  return rank;
}

inline std::vector<double> OracleDistribution(const OracleRules& r,
                                              const std::vector<double>& ruled) {
  double best = ruled[0];
  for (const double l : ruled) best = std::max(best, l);
  std::vector<double> p;
  for (const double l : ruled) p.push_back(std::exp((l - best) / r.temperature));
  Renormalise(&p);
  double top = 0.0;
  for (const double v : p) top = std::max(top, v);
  for (double& v : p) v = v < r.min_p * top ? 0.0 : v;
  Renormalise(&p);
  if (r.top_k > 0) {
    std::vector<double> kept = p;
    for (size_t t = 0; t < p.size(); ++t) kept[t] = RankOf(p, t) < r.top_k ? p[t] : 0.0;
    p = kept;
    Renormalise(&p);
  }
  if (r.top_p < 1.0) {
    std::vector<double> kept(p.size(), 0.0);
    for (size_t t = 0; t < p.size(); ++t) {
      double before = 0.0;  // mass of the likelier ones: t is kept while they do not reach top_p
      for (size_t x = 0; x < p.size(); ++x) before += RankOf(p, x) < RankOf(p, t) ? p[x] : 0.0;
      if (before < r.top_p) kept[t] = p[t];
    }
    p = kept;
    Renormalise(&p);
  }
  return p;
}

}  // namespace firesteel
