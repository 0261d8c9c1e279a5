#include "kernels/ops/kv_compress/kv_compress.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/support/kv_pool.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/rope_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/kernels/support/slot_state.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kDrafts = 5;
constexpr int32_t kWidth = 16;
constexpr int32_t kRope = 4;
constexpr int32_t kSlots = 3;
constexpr int32_t kEntriesPerSlot = 32;
constexpr int32_t kEntriesPerBlock = 4;
constexpr int32_t kBlocksPerSlot = kEntriesPerSlot / kEntriesPerBlock;
constexpr int32_t kMaxTokens = 1700;

size_t N(int64_t i) { return static_cast<size_t>(i); }

struct Scheme {
  int32_t ratio;
  bool overlap;
  int32_t pool() const { return ratio * (overlap ? 2 : 1); }
};

// Tokens [start, start + count) of stream `text` for `slot`; from `garbage_from` on they are
// rejected drafts.
struct Chunk {
  int32_t slot;
  int32_t text;
  int32_t start;
  int32_t count;
  int32_t garbage_from = kMaxTokens;
};

// One compressor with its ring and pool; the projections are functions of (text, position,
// channel).
class Compressor {
 public:
  Compressor(Scheme scheme, KvFormat format)
      : scheme_(scheme),
        channels_(kWidth * (scheme.overlap ? 2 : 1)),
        ring_(scheme.pool() + kDrafts),
        rope_(kMaxTokens, kRope),
        pool_(format, kWidth, kRope, kEntriesPerBlock, kSlots * kBlocksPerSlot),
        ring_kv_(PoisonedFloats(int64_t{kSlots} * ring_ * channels_)),
        ring_score_(ring_kv_),
        tail_kv_(PoisonedFloats(int64_t{kSlots} * kBlocksPerSlot * scheme.ratio * kWidth)),
        tail_score_(tail_kv_),
        slots_({.slots = kSlots,
                .max_blocks = kBlocksPerSlot,
                .context_tokens = kEntriesPerBlock * scheme.ratio}) {
    for (int32_t b = 0; b < kSlots * kBlocksPerSlot; ++b) slots_.context_table[N(b)] = b;
    TestRandom random(100);
    weight_ = RandomBf16(random, kWidth, 0.5F, 2.0F);
    ape_ = RandomFloats(random, int64_t{scheme.ratio} * channels_, -1.0F, 1.0F);
  }

  static float Value(int32_t kind, int32_t text, int32_t position, int32_t channel) {
    TestRandom random(static_cast<uint64_t>(((text * 2 + kind) * 2048 + position) * 64 + channel));
    return random.Uniform(-2.0F, 2.0F);
  }

  void Step(OpFixture& ops, const std::vector<Chunk>& chunks, int32_t padding = 3) {
    int32_t live = 0;
    for (const Chunk& c : chunks) live += c.count;
    const int32_t rows = live + padding;
    std::vector<float> kv = PoisonedFloats(int64_t{rows} * channels_);
    std::vector<float> score = kv;
    std::vector<int32_t> entry_row(N(rows), -1);
    RowState meta(rows);
    SequenceState sequences(static_cast<int32_t>(chunks.size()));
    int32_t row = 0;
    for (size_t s = 0; s < chunks.size(); ++s) {
      const Chunk& c = chunks[s];
      sequences.slot[s] = c.slot;
      sequences.first_row[s] = row;
      sequences.num_rows[s] = c.count;
      sequences.start[s] = c.start;
      for (int32_t i = 0; i < c.count; ++i, ++row) {
        const int32_t p = c.start + i;
        const int32_t text = p >= c.garbage_from ? c.text + 50 : c.text;
        for (int32_t ch = 0; ch < channels_; ++ch) {
          kv[N(row * channels_ + ch)] = Value(0, text, p, ch);
          score[N(row * channels_ + ch)] = Value(1, text, p, ch);
        }
        meta.slot[N(row)] = c.slot;
        meta.position[N(row)] = p;
        meta.sequence[N(row)] = static_cast<int32_t>(s);
        if ((p + 1) % scheme_.ratio == 0) {
          const int32_t entry = (p + 1) / scheme_.ratio - 1;
          entry_row[N(row)] = Block(c.slot, entry) * kEntriesPerBlock + entry % kEntriesPerBlock;
        }
      }
    }
    KvCompressArgs a{};
    a.kv = kv.data();
    a.score = score.data();
    a.ape = ape_.data();
    a.ring_kv = ring_kv_.data();
    a.ring_score = ring_score_.data();
    if (scheme_.overlap) a.tail = {tail_kv_.data(), tail_score_.data()};
    a.weight = weight_.data();
    a.entry_row = entry_row.data();
    a.meta = meta.meta();
    a.sequences = sequences.meta();
    a.slots = slots_.tables();
    a.context_group = kContextGroup;
    a.rope = rope_.table();
    a.pages = pool_.pages();
    a.live = &live;
    a.rows = rows;
    a.ratio = scheme_.ratio;
    a.ring = ring_;
    a.overlap = scheme_.overlap;
    a.eps = 1e-6F;
    ops.device().kernels().kv_compress(ops.stream(), a);
  }

  // Entry j of a text by the definition, in double precision.
  std::vector<double> Oracle(int32_t text, int32_t j) const {
    std::vector<double> pooled(N(kWidth), 0.0);
    double squares = 0.0;
    for (int32_t c = 0; c < kWidth; ++c) {
      double sum = 0.0;
      const int32_t first = scheme_.overlap ? (j - 1) * scheme_.ratio : j * scheme_.ratio;
      for (int32_t t = std::max(0, first); t < (j + 1) * scheme_.ratio; ++t) {
        const int32_t channel = c + (scheme_.overlap && t >= j * scheme_.ratio ? kWidth : 0);
        const double e =
            std::exp(static_cast<double>(Value(1, text, t, channel)) +
                     static_cast<double>(ape_[N(t % scheme_.ratio * channels_ + channel)]));
        sum += e;
        pooled[N(c)] += e * static_cast<double>(Value(0, text, t, channel));
      }
      pooled[N(c)] /= sum;
      squares += pooled[N(c)] * pooled[N(c)];
    }
    for (int32_t c = 0; c < kWidth; ++c) {
      pooled[N(c)] *=
          static_cast<double>(Bf16ToFloat(weight_[N(c)])) / std::sqrt(squares / kWidth + 1e-6);
    }
    rope_.Rotate(pooled, j * scheme_.ratio);
    return pooled;
  }

  std::vector<float> Entry(int32_t slot, int32_t j) const {
    return pool_.Read(Block(slot, j) * kEntriesPerBlock + j % kEntriesPerBlock);
  }
  // Slot `to` maps the first blocks of slot `from`, as after a prefix hit.
  void Share(int32_t from, int32_t to, int32_t blocks) {
    for (int32_t b = 0; b < blocks; ++b) {
      slots_.context_table[N(to * kBlocksPerSlot + b)] = from * kBlocksPerSlot + b;
    }
  }
  const std::vector<std::byte>& bytes() const { return pool_.bytes(); }
  bool RingUntouched(int32_t slot) const {
    const auto at = static_cast<std::ptrdiff_t>(int64_t{slot} * ring_ * channels_);
    const auto end = at + static_cast<std::ptrdiff_t>(int64_t{ring_} * channels_);
    return std::all_of(ring_kv_.begin() + at, ring_kv_.begin() + end, IsPoison) &&
           std::all_of(ring_score_.begin() + at, ring_score_.begin() + end, IsPoison);
  }
  int32_t ring() const { return ring_; }

 private:
  int32_t Block(int32_t slot, int32_t entry) const {
    return slots_.context_table[N(slot * kBlocksPerSlot + entry / kEntriesPerBlock)];
  }

  Scheme scheme_;
  int32_t channels_;
  int32_t ring_;
  RopeFixture rope_;
  KvPool pool_;
  std::vector<float> ring_kv_, ring_score_, tail_kv_, tail_score_;
  SlotState slots_;
  std::vector<uint16_t> weight_;
  std::vector<float> ape_;
};

const std::vector<Scheme>& Schemes() {
  static const std::vector<Scheme> kSchemes = {{4, true}, {128, false}, {2, false}, {3, true}};
  return kSchemes;
}

// A length that completes a group and several entries, and is longer than the ring.
int32_t Length(const Scheme& s) { return s.ratio * (s.ratio == 128 ? 4 : 20); }

TEST_CASE("entries equal channel-wise softmax pooling, the first group included",
          "[ops][kv_compress]") {
  OpFixture ops(3);
  for (const Scheme& s : Schemes()) {
    Compressor run(s, KvFormat::kF32);
    run.Step(ops, {{1, 7, 0, Length(s)}});
    int wrong = 0;
    for (int32_t j = 0; j < Length(s) / s.ratio; ++j) {
      const std::vector<double> wanted = run.Oracle(7, j);
      const std::vector<float> found = run.Entry(1, j);
      for (int32_t c = 0; c < kWidth; ++c) {
        wrong += std::fabs(static_cast<double>(found[N(c)]) - wanted[N(c)]) < 2e-5 ? 0 : 1;
      }
    }
    INFO("ratio " << s.ratio);
    CHECK(wrong == 0);
    CHECK(run.RingUntouched(0));
    CHECK(run.RingUntouched(2));
  }
}

TEST_CASE("streaming, chunked and whole runs give the same bits", "[ops][kv_compress]") {
  OpFixture ops(2);
  const KvFormat format = GENERATE(KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8Index);
  for (const Scheme& s : Schemes()) {
    const int32_t length = Length(s);
    Compressor whole(s, format);
    REQUIRE(length > whole.ring());
    whole.Step(ops, {{1, 7, 0, length}});
    Compressor streamed(s, format);
    for (int32_t p = 0; p < length; ++p) streamed.Step(ops, {{1, 7, p, 1}});
    INFO("ratio " << s.ratio);
    CHECK(streamed.bytes() == whole.bytes());
    TestRandom random(101);
    for (const int32_t most : {3, 9, s.ratio + 1, 2 * whole.ring() + 3}) {
      Compressor chunked(s, format);
      for (int32_t p = 0; p < length;) {
        const int32_t count = std::min(length - p, 1 + random.Below(most));
        chunked.Step(ops, {{1, 7, p, count}});
        p += count;
      }
      INFO("chunks up to " << most);
      CHECK(chunked.bytes() == whole.bytes());
    }
  }
}

TEST_CASE("rejected rows leave no trace in later entries at any phase", "[ops][kv_compress]") {
  OpFixture ops(1);
  const int32_t groups = GENERATE(3, 4);  // a block's last group, and the next one's first
  for (const Scheme& s : Schemes()) {
    const int32_t base = s.ratio * (s.ratio == 128 ? groups - 1 : groups);
    const int32_t length = base + 2 * s.ratio + s.ratio * CeilDiv(12, s.ratio);
    Compressor whole(s, KvFormat::kF32);
    whole.Step(ops, {{0, 7, 0, length}});
    int different = 0;
    for (int32_t phase = 0; phase < s.ratio; phase += (phase >= 8 && phase < 112) ? 13 : 1) {
      for (int32_t accepted = 0; accepted <= kDrafts; ++accepted) {
        Compressor run(s, KvFormat::kF32);
        const int32_t p = base + phase;
        run.Step(ops, {{0, 7, 0, p}});
        run.Step(ops, {{0, 7, p, kDrafts + 1, p + accepted + 1}});
        int32_t next = p + accepted + 1;
        // A second verify step that rejects everything, then plain decoding to the end of the next
        // groups.
        run.Step(ops, {{0, 7, next, kDrafts + 1, next + 1}});
        ++next;
        for (int32_t i = 0; i < 2 && next < length; ++i, ++next) run.Step(ops, {{0, 7, next, 1}});
        run.Step(ops, {{0, 7, next, length - next}});
        if (run.bytes() != whole.bytes()) {
          ++different;
          UNSCOPED_INFO("phase " << phase << " accepted " << accepted);
        }
      }
    }
    INFO("ratio " << s.ratio);
    CHECK(different == 0);
  }
}

TEST_CASE("a rejection before the first group is complete is undone", "[ops][kv_compress]") {
  OpFixture ops(1);
  const Scheme s{4, true};
  Compressor whole(s, KvFormat::kF32);
  whole.Step(ops, {{2, 9, 0, 24}});
  for (int32_t p = 1; p < 8; ++p) {
    for (int32_t accepted = 0; accepted <= kDrafts; ++accepted) {
      Compressor run(s, KvFormat::kF32);
      run.Step(ops, {{2, 9, 0, p}});
      run.Step(ops, {{2, 9, p, kDrafts + 1, p + accepted + 1}});
      for (int32_t q = p + accepted + 1; q < 24; ++q) run.Step(ops, {{2, 9, q, 1}});
      INFO("prompt " << p << " accepted " << accepted);
      CHECK(run.bytes() == whole.bytes());
    }
  }
}

TEST_CASE("sequences that share a step do not disturb each other", "[ops][kv_compress]") {
  OpFixture ops(3);
  for (const Scheme& s : Schemes()) {
    const int32_t length = Length(s);
    Compressor wanted(s, KvFormat::kF32);
    wanted.Step(ops, {{2, 7, 0, length}});
    wanted.Step(ops, {{0, 8, 0, length}});
    Compressor run(s, KvFormat::kF32);
    TestRandom random(102);
    int32_t a = 0;
    int32_t b = 0;
    while (a < length || b < length) {
      std::vector<Chunk> chunks;
      const int32_t take_a = std::min(length - a, random.Below(2 * s.ratio));
      const int32_t take_b = std::min(length - b, random.Below(9));
      if (take_b > 0) chunks.push_back({0, 8, b, take_b});
      if (take_a > 0) chunks.push_back({2, 7, a, take_a});
      a += take_a;
      b += take_b;
      if (!chunks.empty()) run.Step(ops, chunks, random.Below(4));
    }
    INFO("ratio " << s.ratio);
    CHECK(run.bytes() == wanted.bytes());
    CHECK(run.RingUntouched(1));
  }
}

TEST_CASE("a slot that starts over ignores what its ring held", "[ops][kv_compress]") {
  OpFixture ops(1);
  const Scheme s{4, true};
  Compressor fresh(s, KvFormat::kF32);
  fresh.Step(ops, {{1, 3, 0, 40}});
  Compressor reused(s, KvFormat::kF32);
  reused.Step(ops, {{1, 4, 0, 40}});
  for (int32_t p = 0; p < 40; ++p) reused.Step(ops, {{1, 3, p, 1}});
  CHECK(reused.bytes() == fresh.bytes());
}

TEST_CASE("a slot that starts behind shared blocks continues with the same bits",
          "[ops][kv_compress]") {
  OpFixture ops(2);
  for (const Scheme& s : Schemes()) {
    const int32_t block = kEntriesPerBlock * s.ratio;
    const int32_t length = 3 * block + s.ratio;
    for (const int32_t shared : {1, 2, 3}) {
      Compressor run(s, KvFormat::kF32);
      // The ring of slot 2 holds another text, and that of slot 0 has moved on.
      run.Step(ops, {{2, 4, 0, 2 * block}});
      run.Step(ops, {{0, 7, 0, block / 2}});
      run.Step(ops, {{0, 7, block / 2, length - block / 2}});
      run.Share(0, 2, shared);
      for (int32_t p = shared * block; p < length;) {
        const int32_t count = std::min(length - p, shared == 2 ? 1 : s.ratio + 1);
        run.Step(ops, {{2, 7, p, count}});
        p += count;
      }
      INFO("ratio " << s.ratio << " shared blocks " << shared);
      for (int32_t j = 0; j < length / s.ratio; ++j) CHECK(run.Entry(2, j) == run.Entry(0, j));
    }
  }
}

}  // namespace
}  // namespace firesteel
