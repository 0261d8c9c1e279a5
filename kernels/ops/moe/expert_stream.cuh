// Expert products for bf16 rows and fp4 weights: the weights stream past rows that stay in shared memory.
//
// An item is an expert's next tile of outputs for up to 8 or 16 of its pairs; blocks take equal runs of the items, which are in
// expert order. Weights are the A operand of the tensor core. A step is 16 outputs times 256 columns: lane quarter t takes 32
// columns of each half, so that a lane meets whole vectors and two scales a row. The steps of a warp follow each other across
// tiles and experts through a ring of its own in shared memory, most of them in flight.
// The order of summation is: per warp, its slices of 256 columns ascending; then the warps' sums in order. How many warps share
// the columns depends on the number of columns alone.
#pragma once

#include "kernels/core/math.h"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/moe/expert_step.cuh"
#include "kernels/ops/moe/moe.h"

namespace firesteel {

inline constexpr int kStreamWarps = 16;
inline constexpr int kStreamThreads = kStreamWarps * 32;  // of a group
inline constexpr int kStreamTileRows = 8;                 // pairs of one tensor-core product
inline constexpr int kStreamPartial = 4 * 33;  // sums of one product, padded against bank conflicts
inline constexpr int kStreamMaxExperts = 1024;

// Long rows are shared by 16 warps, which then work on the same 16 outputs; a block has one or two such groups. Of short rows
// each warp takes whole ones, and a block 256 outputs.
__host__ __device__ inline bool IsLongRow(int32_t in) { return in >= kStreamWarps * kStreamSlice; }
__host__ __device__ inline int32_t StreamTileOutputs(int32_t in) {
  return IsLongRow(in) ? 32 : 16 * kStreamWarps;
}

// A row of x in shared memory: its 16-byte units permuted within a slice, 64 bytes of padding against bank conflicts.
__host__ __device__ inline int64_t StreamRowBytes(int32_t in) { return int64_t{in} * 2 + 64; }

// What a kernel is compiled for. Any number of row tiles gives the same bits.
template <bool kLongRow, int kRowTilesOfPass>
struct StreamTraits {
  static constexpr bool kLong = kLongRow;
  static constexpr int kRowTiles = kRowTilesOfPass;
  static constexpr int kRows = kRowTiles * kStreamTileRows;
  // Long rows of 16 pairs leave room for less.
  static constexpr bool kCrowded = kLong && kRowTiles > 1;
  static constexpr int kGroups = kLong && !kCrowded ? 2 : 1;  // of warps that share rows
  static constexpr int kThreads = kGroups * kStreamThreads;
  static constexpr int kBlocks = kLong || kRowTiles > 1 ? 1 : 2;  // of a multiprocessor
  static constexpr int kDepth = 2;                                // steps of a warp's ring
  static constexpr int kTileOutputs = kLong ? 16 * kGroups : 16 * kStreamWarps;
};

// Shared memory, in this order.
struct StreamLayout {
  int64_t scales;   // [experts] addresses, after [experts] addresses of data
  int64_t offsets;  // [experts + 1] int32
  int64_t partial;  // [groups][kStreamWarps][row tiles][kStreamPartial] float, for long rows
  int64_t x;        // [kRows] rows
  int64_t ring;     // [warps][depth] steps
  int64_t bytes;

  template <typename Traits>
  __host__ __device__ static StreamLayout For(int32_t experts, int32_t in) {
    constexpr int64_t kPartialBytes = int64_t{Traits::kLong ? Traits::kGroups : 0} * kStreamWarps *
                                      Traits::kRowTiles * kStreamPartial * 4;
    StreamLayout l{};
    l.scales = int64_t{experts} * 8;
    l.offsets = l.scales * 2;
    l.partial = RoundUp<int64_t>(l.offsets + (int64_t{experts} + 1) * 4, 128);
    l.x = RoundUp<int64_t>(l.partial + kPartialBytes, 128);
    l.ring = RoundUp<int64_t>(l.x + Traits::kRows * StreamRowBytes(in), 128);
    l.bytes = l.ring + int64_t{Traits::kThreads / 32} * Traits::kDepth * kStepBytes;
    return l;
  }
};

// Whether the kernel serves this product; a property of the weights and the row type alone.
inline bool CanStream(const GroupedLinearArgs& a) {
  const Weight& w = a.weights.first;
  const auto aligned = [](const void* p, uintptr_t to) {
    return reinterpret_cast<uintptr_t>(p) % to == 0;
  };
  const int32_t unit = IsLongRow(w.in) ? kStreamWarps * kStreamSlice : kStreamSlice;
  constexpr int64_t kSharedLimit = 227 << 10;
  return w.dtype == DType::kF4E2M1x2 && a.x.dtype == DType::kBf16 && w.in % unit == 0 &&
         w.out % StreamTileOutputs(w.in) == 0 && aligned(w.data, 16) && aligned(w.scale, 8) &&
         aligned(a.x.data, 16) && a.x.stride % 8 == 0 && a.experts <= kStreamMaxExperts &&
         (IsLongRow(w.in)
              ? Max(StreamLayout::For<StreamTraits<true, 1>>(a.experts, w.in).bytes,
                    StreamLayout::For<StreamTraits<true, 2>>(a.experts, w.in).bytes)
              : StreamLayout::For<StreamTraits<false, 2>>(a.experts, w.in).bytes) <= kSharedLimit;
}

// The experts, in shared memory: their weights, and where their pairs are.
struct StreamTable {
  const uint8_t** data;
  const uint8_t** scales;
  int32_t* offset;  // [experts + 1]

  // By the whole block, which may then read it. Waits for the kernels ahead.
  __device__ static StreamTable Load(const GroupedLinearArgs& a, const StreamLayout& layout,
                                     std::byte* shared) {
    const StreamTable t{reinterpret_cast<const uint8_t**>(shared),
                        reinterpret_cast<const uint8_t**>(shared + layout.scales),
                        reinterpret_cast<int32_t*>(shared + layout.offsets)};
    const auto thread = static_cast<int32_t>(threadIdx.x);
    for (int32_t e = thread; e < a.experts; e += static_cast<int32_t>(blockDim.x)) {
      t.data[e] = static_cast<const uint8_t*>(a.weights.table[e].data);
      t.scales[e] = a.weights.table[e].scale;
    }
    AllowNextKernel();
    WaitForEarlierKernels();
    for (int32_t e = thread; e <= a.experts; e += static_cast<int32_t>(blockDim.x)) {
      t.offset[e] = __ldcg(a.offset + e);
    }
    __syncthreads();
    return t;
  }
};

// Where a walk over the items of a block is.
struct StreamPlace {
  int32_t expert;
  int32_t pass;  // kRows pairs of the expert
  int32_t tile;
  int32_t left;  // items of this block from here on

  template <int kRows>
  __device__ void Advance(const int32_t* offset, int32_t tiles) {
    --left;
    if (++tile < tiles) return;
    tile = 0;
    ++pass;
    if (left == 0 || pass * kRows < offset[expert + 1] - offset[expert]) return;
    pass = 0;
    do {
      ++expert;
    } while (offset[expert + 1] == offset[expert]);
  }
};

template <int kRows>
__device__ int32_t StreamPasses(const int32_t* offset, int32_t expert) {
  return CeilDiv(offset[expert + 1] - offset[expert], kRows);
}

// The first item of this block's equal share. Called by whole warps; every lane gets it.
template <int kRows>
__device__ StreamPlace FirstItem(const int32_t* offset, int32_t experts, int32_t tiles) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t share = CeilDiv(experts, 32);
  const int32_t first = Min(lane * share, experts);
  const int32_t end = Min(first + share, experts);
  int32_t own = 0;
  for (int32_t e = first; e < end; ++e) own += StreamPasses<kRows>(offset, e);
  int32_t through = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t before = __shfl_up_sync(0xffffffffU, through, step);
    if (lane >= step) through += before;
  }
  const int64_t items = int64_t{__shfl_sync(0xffffffffU, through, 31)} * tiles;
  const int64_t begin = items * blockIdx.x / gridDim.x;
  const auto left = static_cast<int32_t>(items * (blockIdx.x + 1) / gridDim.x - begin);
  const auto segment = static_cast<int32_t>(begin / tiles);
  int32_t pass = segment - (through - own);
  const bool here = pass >= 0 && segment < through;
  int32_t expert = first;
  while (here && pass >= StreamPasses<kRows>(offset, expert)) {
    pass -= StreamPasses<kRows>(offset, expert);
    ++expert;
  }
  const int source = Max(__ffs(static_cast<int>(__ballot_sync(0xffffffffU, here))) - 1, 0);
  return {__shfl_sync(0xffffffffU, expert, source), __shfl_sync(0xffffffffU, pass, source),
          static_cast<int32_t>(begin % tiles), left};
}

// What a warp multiplies: where its steps are, relative to an expert's weights.
struct StreamWalk {
  int64_t data;  // of the warp's first row and slice, tile 0
  int64_t scale;
  int64_t tile_data;  // from one tile to the next
  int64_t tile_scale;
  int32_t row_data;
  int32_t row_scale;
  int32_t slice_data;  // from one slice of the warp to its next
  int32_t slice_scale;
  int32_t slices;  // steps of a tile
  int32_t tiles;

  template <typename Traits>
  __device__ static StreamWalk Of(const Weight& w) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    constexpr int kSharers = Traits::kLong ? kStreamWarps : 1;
    StreamWalk l{};
    l.row_data = w.in / 2;
    l.row_scale = w.in / 32;
    const int64_t row = warp / kSharers * 16;
    l.data = row * l.row_data + warp % kSharers * kStepRowBytes;
    l.scale = row * l.row_scale + warp % kSharers * (kStreamSlice / 32);
    l.tile_data = int64_t{Traits::kTileOutputs} * l.row_data;
    l.tile_scale = int64_t{Traits::kTileOutputs} * l.row_scale;
    l.slice_data = kSharers * kStepRowBytes;
    l.slice_scale = kSharers * (kStreamSlice / 32);
    l.slices = w.in / kStreamSlice / kSharers;
    l.tiles = w.out / Traits::kTileOutputs;
    return l;
  }
};

// Brings a warp's steps in order through its ring.
template <typename Traits>
class StreamReader {
 public:
  __device__ StreamReader(const StreamWalk& walk, const StreamPlace& first,
                          const StreamTable& table, std::byte* ring)
      : walk_(walk), place_(first), table_(table), ring_(ring) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    lane_data_ = lane / 8 * walk.row_data + lane % 8 * 16;
    lane_scale_ = lane / 2 * walk.row_scale + lane % 2 * 4;
    lane_to_scale_ = kStepScales + lane * 4;
    tile_data_ = static_cast<int32_t>(walk.tile_data) - (walk.slices - 1) * walk.slice_data;
    tile_scale_ = static_cast<int32_t>(walk.tile_scale) - (walk.slices - 1) * walk.slice_scale;
    lane_unit_ = lane / 8 * kStepRowBytes + ((lane % 8) ^ (lane / 8 % 2 * 4)) * 16;
    if (place_.left > 0) Aim();
    for (int d = 0; d < Traits::kDepth; ++d) Start(ring + d * kStepBytes);
  }

  // The next step, in registers. Its place is given to a later one.
  __device__ StreamStep Take() {
    WaitForCopyGroups<Traits::kDepth - 1>();
    __syncwarp();
    std::byte* at = ring_ + slot_ * kStepBytes;
    const StreamStep step = ReadStep(at);
    __syncwarp();
    Start(at);
    slot_ = slot_ + 1 == Traits::kDepth ? 0 : slot_ + 1;
    return step;
  }

 private:
  // Starts copies of a step, if there is one left, as one group.
  __device__ void Start(std::byte* step) {
    if (place_.left > 0) {
      const uint8_t* from = next_data_;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        CopyAsync16(step + lane_unit_ + i * 4 * kStepRowBytes, from);
        from += 4 * walk_.row_data;
      }
      CopyAsync4(step + lane_to_scale_, next_scale_);
      Advance();
    }
    CommitCopies();
  }
  __device__ void Advance() {
    if (++slice_ < walk_.slices) {
      next_data_ += walk_.slice_data;
      next_scale_ += walk_.slice_scale;
      return;
    }
    slice_ = 0;
    const int32_t tile = place_.tile;
    place_.template Advance<Traits::kRows>(table_.offset, walk_.tiles);
    if (place_.tile > tile) {
      next_data_ += tile_data_;
      next_scale_ += tile_scale_;
    } else if (place_.left > 0) {
      Aim();
    }
  }
  __device__ void Aim() {
    next_data_ =
        table_.data[place_.expert] + walk_.data + place_.tile * walk_.tile_data + lane_data_;
    next_scale_ =
        table_.scales[place_.expert] + walk_.scale + place_.tile * walk_.tile_scale + lane_scale_;
  }

  const StreamWalk& walk_;
  StreamPlace place_;
  const StreamTable& table_;
  std::byte* ring_;
  int32_t slot_ = 0;
  const uint8_t* next_data_ = nullptr;
  const uint8_t* next_scale_ = nullptr;
  int32_t slice_ = 0;
  int32_t lane_data_;
  int32_t lane_scale_;
  int32_t lane_unit_;
  int32_t lane_to_scale_;
  int32_t tile_data_;  // from a tile's last slice to the next tile's first
  int32_t tile_scale_;
};

// Brings `count` rows from `first_pair` on into shared memory. Unit (half, quarter, i) of a slice goes to (half, i, quarter), and
// its columns c and c + 4 become neighbours: what MultiplyStep takes as one vector.
__device__ inline void StageStreamRows(const GroupedLinearArgs& a, int32_t in, int32_t first_pair,
                                       int32_t count, std::byte* x) {
  const int32_t units = in / 8;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count * units;
       i += static_cast<int32_t>(blockDim.x)) {
    const int32_t row = i / units;
    const int32_t unit = i % units;
    const int32_t pair = first_pair + row;
    const int64_t source = a.pair_row == nullptr ? pair : __ldcg(a.pair_row + pair);
    const uint4 v = __ldcg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(a.x.data) +
                                                          source * a.x.stride + unit * 8));
    const uint4 permuted = {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632),
                            __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)};
    const int32_t place = (unit & ~15) | (unit & 3) << 2 | (unit >> 2 & 3);
    *reinterpret_cast<uint4*>(x + row * StreamRowBytes(in) + place * 16) = permuted;
  }
}

// All threads of a group of warps.
__device__ inline void StreamGroupBarrier(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kStreamThreads) : "memory");
}

// Stores a group's 16 outputs of long rows: its warps' sums in order, by a quarter of it. `buffer` has room for all sums.
template <typename Traits>
__device__ void StoreLongTile(const GroupedLinearArgs& a, const float (&acc)[Traits::kRowTiles][4],
                              int32_t first_output, int32_t first_pair, int32_t count,
                              int32_t counter, float* buffer) {
  constexpr int kWarpSums = Traits::kRowTiles * kStreamPartial;
  constexpr int kStorers = kStreamThreads / 4;
  const int group = static_cast<int>(threadIdx.x) / kStreamThreads;
  const int member = static_cast<int>(threadIdx.x) % kStreamThreads;
  float* own = buffer + member / 32 * kWarpSums + member % 32;
#pragma unroll
  for (int n = 0; n < Traits::kRowTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) own[n * kStreamPartial + i * 33] = acc[n][i];
  }
  StreamGroupBarrier(group);
  const int32_t storer = member - counter % 4 * kStorers;
  if (storer >= 0 && storer < kStorers) {
    for (int32_t i = storer; i < count * 16; i += kStorers) {
      const int32_t row = i / 16;
      const int32_t output = i % 16;
      const float* p = buffer + row / 8 * kStreamPartial + (row % 2 + 2 * (output / 8)) * 33 +
                       output % 8 * 4 + row % 8 / 2;
      float sum = p[0];
#pragma unroll
      for (int w = 1; w < kStreamWarps; ++w) sum += p[w * kWarpSums];
      StoreElement(a.y, first_pair + row, first_output + output, sum);
    }
  }
  StreamGroupBarrier(group);  // the sums have been read
}

// Stores a tile of short rows, of which each warp has its own.
template <int kRowTiles>
__device__ void StoreShortTile(const GroupedLinearArgs& a, const float (&acc)[kRowTiles][4],
                               int32_t first_output, int32_t first_pair, int32_t count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t output = first_output + static_cast<int32_t>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t row = n * 8 + lane % 4 * 2 + i % 2;
      if (row < count) StoreElement(a.y, first_pair + row, output + i / 2 * 8, acc[n][i]);
    }
  }
}

// Grid: any number of blocks.
template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocks)
    ExpertStreamKernel(GroupedLinearArgs a) {
  constexpr bool kLong = Traits::kLong;
  constexpr int kRowTiles = Traits::kRowTiles;
  extern __shared__ __align__(128) std::byte shared[];
  const int32_t in = a.weights.first.in;
  const StreamLayout layout = StreamLayout::For<Traits>(a.experts, in);
  std::byte* x = shared + layout.x;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const StreamTable table = StreamTable::Load(a, layout, shared);
  const StreamWalk walk = StreamWalk::Of<Traits>(a.weights.first);
  StreamPlace place = FirstItem<Traits::kRows>(table.offset, a.experts, walk.tiles);
  StreamReader<Traits> reader(walk, place, table,
                              shared + layout.ring + warp * (Traits::kDepth * kStepBytes));

  const auto tile_bytes = static_cast<int32_t>(kStreamTileRows * StreamRowBytes(in));
  const uint32_t selector = StepScales::Selector();
  const std::byte* x_lane = x + lane / 4 * StreamRowBytes(in) +
                            (kLong ? warp % kStreamWarps * kStreamSlice * 2 : 0) + lane % 4 * 16;
  constexpr int kSliceBytes = (kLong ? kStreamWarps : 1) * kStreamSlice * 2;
  float acc[kRowTiles][4] = {};
  int32_t slice = 0;
  int32_t counter = 0;
  int32_t first_pair = 0;
  int32_t count = 0;
  bool staged = false;
  while (place.left > 0) {
    if (!staged) {
      first_pair = table.offset[place.expert] + place.pass * Traits::kRows;
      count = Min(table.offset[place.expert + 1] - first_pair, Traits::kRows);
      __syncthreads();  // the rows before have been used
      StageStreamRows(a, in, first_pair, count, x);
      __syncthreads();
    }
    const StreamStep step = reader.Take();
    const std::byte* rows = x_lane + slice * kSliceBytes;
    if (kRowTiles == 1 || count <= kStreamTileRows) {
      MultiplyAnyStep<1>(step, selector, rows, tile_bytes, acc);
    } else {
      MultiplyAnyStep<kRowTiles>(step, selector, rows, tile_bytes, acc);
    }
    staged = true;
    if (++slice < walk.slices) continue;
    slice = 0;
    if constexpr (kLong) {
      constexpr int kSums = kStreamWarps * kRowTiles * kStreamPartial;
      const int group = warp / kStreamWarps;
      StoreLongTile<Traits>(a, acc, place.tile * Traits::kTileOutputs + group * 16, first_pair,
                            count, counter,
                            reinterpret_cast<float*>(shared + layout.partial) + group * kSums);
      ++counter;
    } else {
      StoreShortTile<kRowTiles>(a, acc, place.tile * Traits::kTileOutputs, first_pair, count);
    }
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] = 0.0F;
    }
    place.template Advance<Traits::kRows>(table.offset, walk.tiles);
    staged = place.tile != 0;
  }
}

}  // namespace firesteel
