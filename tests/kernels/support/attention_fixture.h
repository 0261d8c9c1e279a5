// Two pools of keys, index lists whose padding is poison, and the double-precision attention over
// them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/ops/sparse_attention/sparse_attention.h"
#include "tests/kernels/support/kv_pool.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"

namespace firesteel {

struct AttentionShape {
  int32_t heads = 4;
  int32_t head_dim = 32;
  int32_t rows = 6;
  int32_t rows_per_list = 1;
  int32_t window_keys = 40;
  int32_t extra_keys = -1;  // -1: no second pool
  KvFormat format = KvFormat::kF32;
  DType dtype = DType::kF32;
  int32_t rope = 16;  // trailing values that an fp8 row keeps in bf16
  int32_t gap = 5;    // values between rows of q and of the output
};

class AttentionFixture {
 public:
  static constexpr int32_t kWidth = 256;  // padded columns of an index row
  static constexpr int32_t kPoolRows = 320;

  AttentionFixture(const AttentionShape& shape, uint64_t seed)
      : s(shape),
        q(shape.rows + Padding(shape), shape.heads * shape.head_dim, shape.dtype, shape.gap),
        sink(static_cast<size_t>(shape.heads), 0.5F),
        window_(shape.format, shape.head_dim, shape.rope, 16, kPoolRows / 16),
        extra_(shape.format, shape.head_dim, shape.rope, 4, kPoolRows / 4) {
    TestRandom random(seed);
    q.Randomize(random, shape.rows, -2.0F, 2.0F);
    const int32_t lists = (shape.rows + Padding(shape)) / shape.rows_per_list;
    for (int32_t l = 0; l < lists; ++l) {
      const bool live = l * shape.rows_per_list < shape.rows;
      AddList(random, window_, live ? shape.window_keys : 0, &window_index_, &window_valid_);
      AddList(random, extra_, live && shape.extra_keys > 0 ? shape.extra_keys : 0, &extra_index_,
              &extra_valid_);
    }
  }

  RowMatrix Run(OpFixture& ops) { return Run(ops, s.rows); }
  RowMatrix Run(OpFixture& ops, int32_t live) {
    RowMatrix out = Output();
    ops.device().kernels().sparse_attention(ops.stream(), Args(out, &live));
    return out;
  }
  RowMatrix Output() const {
    return RowMatrix(s.rows + Padding(s), s.heads * s.head_dim, s.dtype, s.gap);
  }
  SparseAttentionArgs Args(RowMatrix& out, LiveCount live) {
    SparseAttentionArgs a{};
    a.q = q.rows();
    a.out = out.rows();
    a.window = window_.pages();
    a.window_rows = {window_index_.data(), window_valid_.data(), kWidth, s.window_keys};
    if (s.extra_keys >= 0) {
      a.extra = extra_.pages();
      a.extra_rows = {extra_index_.data(), extra_valid_.data(), kWidth};
    }
    a.sink = sink.data();
    a.live = live;
    a.rows = s.rows + Padding(s);
    a.rows_per_list = s.rows_per_list;
    a.heads = s.heads;
    a.head_dim = s.head_dim;
    a.scale = Scale();
    return a;
  }

  // One head of one row, over the keys as the pools decode them.
  std::vector<double> Oracle(int32_t row, int32_t head) const {
    const size_t list = static_cast<size_t>(row / s.rows_per_list);
    std::vector<std::vector<float>> keys;
    for (int32_t t = 0; t < window_valid_[list]; ++t) keys.push_back(window_.Read(Window(row, t)));
    for (int32_t t = 0; s.extra_keys >= 0 && t < extra_valid_[list]; ++t) {
      keys.push_back(extra_.Read(extra_index_[list * kWidth + static_cast<size_t>(t)]));
    }
    const double sink_logit = static_cast<double>(sink[static_cast<size_t>(head)]);
    std::vector<double> score;
    double top = sink_logit;
    for (const std::vector<float>& key : keys) {
      double dot = 0.0;
      for (int32_t c = 0; c < s.head_dim; ++c) {
        dot += static_cast<double>(q.Get(row, head * s.head_dim + c)) *
               static_cast<double>(key[static_cast<size_t>(c)]);
      }
      score.push_back(dot * static_cast<double>(Scale()));
      top = std::max(top, score.back());
    }
    std::vector<double> out(static_cast<size_t>(s.head_dim), 0.0);
    double sum = std::exp(sink_logit - top);
    for (size_t t = 0; t < keys.size(); ++t) {
      const double e = std::exp(score[t] - top);
      sum += e;
      for (size_t c = 0; c < out.size(); ++c) out[c] += e * static_cast<double>(keys[t][c]);
    }
    for (double& v : out) v = keys.empty() ? 0.0 : v / sum;
    return out;
  }
  int CountWrong(const RowMatrix& out, double tolerance) const {
    int wrong = 0;
    for (int32_t r = 0; r < s.rows; ++r) {
      for (int32_t h = 0; h < s.heads; ++h) {
        const std::vector<double> wanted = Oracle(r, h);
        for (int32_t c = 0; c < s.head_dim; ++c) {
          const double found = static_cast<double>(out.Get(r, h * s.head_dim + c));
          if (!(std::fabs(found - wanted[static_cast<size_t>(c)]) <= tolerance)) ++wrong;
        }
      }
    }
    return wrong;
  }

  // Physical window row of key `t` in the list of `row`.
  int32_t Window(int32_t row, int32_t t) const {
    return window_index_[static_cast<size_t>(row / s.rows_per_list * kWidth + t)];
  }
  void WriteWindow(int32_t physical, float value) {
    window_.Write(physical, std::vector<float>(static_cast<size_t>(s.head_dim), value));
  }
  // Gives both pools keys that depend on nothing but the row, so that fixtures of other sizes can share them.
  void FillPools() {
    for (int32_t row = 0; row < kPoolRows - 20; ++row) {
      TestRandom random(static_cast<uint64_t>(row));
      window_.Write(row, RandomFloats(random, s.head_dim, -1.0F, 1.0F));
      extra_.Write(row, RandomFloats(random, s.head_dim, -1.0F, 1.0F));
    }
  }
  // Makes `row` of this fixture see what `row_from` of another one of the same pools sees.
  void TakeRow(int32_t row, const AttentionFixture& from, int32_t row_from) {
    q.CopyRow(row, from.q, row_from);
    const int32_t to_list = row / s.rows_per_list;
    const int32_t from_list = row_from / s.rows_per_list;
    const auto copy = [&](std::vector<int32_t>& to, const std::vector<int32_t>& source,
                          int32_t width) {
      for (int32_t i = 0; i < width; ++i) {
        to[static_cast<size_t>(to_list * width + i)] =
            source[static_cast<size_t>(from_list * width + i)];
      }
    };
    copy(window_index_, from.window_index_, kWidth);
    copy(window_valid_, from.window_valid_, 1);
    copy(extra_index_, from.extra_index_, kWidth);
    copy(extra_valid_, from.extra_valid_, 1);
  }
  void SetValid(int32_t list, int32_t window, int32_t extra) {
    window_valid_[static_cast<size_t>(list)] = window;
    extra_valid_[static_cast<size_t>(list)] = extra;
  }

  AttentionShape s;
  RowMatrix q;
  std::vector<float> sink;

 private:
  // Rows past the live ones, of whole lists.
  static int32_t Padding(const AttentionShape& shape) { return RoundUp(3, shape.rows_per_list); }
  float Scale() const { return 1.0F / std::sqrt(static_cast<float>(s.head_dim)); }

  // Distinct pool rows with random keys; the padding alternates between rows that were never
  // written, which hold NaN, and rows far outside the pool.
  void AddList(TestRandom& random, KvPool& pool, int32_t valid, std::vector<int32_t>* index,
               std::vector<int32_t>* counts) {
    const int32_t first = random.Below(kPoolRows / 2);
    const int32_t usable = kPoolRows - 20;
    for (int32_t t = 0; t < kWidth; ++t) {
      if (t < valid) {
        const int32_t row = (first + t * 7) % usable;
        pool.Write(row, RandomFloats(random, s.head_dim, -1.0F, 1.0F));
        index->push_back(row);
      } else {
        index->push_back(t % 2 == 0 ? kPoolRows - 1 - t % 20 : (t % 4 == 1 ? -1 : 1 << 28));
      }
    }
    counts->push_back(valid);
  }

  KvPool window_, extra_;
  std::vector<int32_t> window_index_, window_valid_, extra_index_, extra_valid_;
};

}  // namespace firesteel
