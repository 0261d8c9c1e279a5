// Times single operations of the kernel table on this machine, each beside the floor that the machine's own ceilings set.
// The figures behind `firesteel bench kernels`; needs no checkpoint. Called on any thread, one call at a time per device.
//
// 1. A case runs as a captured graph over rotating input sets, so that what a server would find in memory is in memory.
// 2. Its bytes count each input read once and each output written once: valid keys only, and experts that some row chose.
//    What an operation passes to itself (scratch, activations between the matrices of an expert) is not counted.
// 3. The ceilings are measured in the same run. One that cannot be measured honestly is 0 and sets no floor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/api/engine_options.h"
#include "kernels/core/dtype.h"
#include "kernels/core/status.h"

namespace firesteel {

enum class KernelFamily {
  kDraftAttention,
  kSparseDecode,
  kMoe,
  kGemm,
  kIndexer,
  kMarkov,
  kMhc,
  kSampling
};

inline constexpr KernelFamily kKernelFamilies[] = {KernelFamily::kDraftAttention,
                                                   KernelFamily::kSparseDecode,
                                                   KernelFamily::kMoe,
                                                   KernelFamily::kGemm,
                                                   KernelFamily::kIndexer,
                                                   KernelFamily::kMarkov,
                                                   KernelFamily::kMhc,
                                                   KernelFamily::kSampling};

const char* KernelFamilyName(KernelFamily family);  // "draft-attention", "sparse-decode", ...
Result<KernelFamily> ParseKernelFamily(const std::string& text);

// Sizes of a model and of the batches to run it with.
struct KernelBenchShapes {
  std::vector<int32_t> attention_heads;
  int32_t head_dim = 0;
  int32_t rope_dim = 0;     // trailing part of head_dim that fp8 caches keep in bf16
  int32_t window = 0;       // committed positions that a row or draft block sees
  int32_t block_rows = 0;   // rows of a draft block
  int32_t list_width = 0;   // padded width of a draft block's key list
  int32_t extra_keys = 0;   // compressed entries that a decode row sees besides its window
  int32_t verify_rows = 0;  // a row count that this divides means verify rows, else plain decode
  int32_t hidden = 0;
  int32_t streams = 0;  // hyper-connections
  int32_t experts = 0;
  int32_t experts_per_row = 0;
  int32_t inner = 0;  // columns of one expert, the shared one too, on this rank
  int32_t q_rank = 0;
  int32_t q_heads = 0;    // on this rank
  int32_t o_groups = 0;   // on this rank; q_heads * head_dim columns are split over them
  int32_t o_rank = 0;     // outputs of one group
  int32_t head_rows = 0;  // vocabulary rows of the LM head on this rank
  int32_t index_heads = 0;
  int32_t index_dim = 0;
  int32_t index_top_k = 0;
  std::vector<int32_t> index_visible;  // entries that a row chooses from
  int32_t vocab = 0;                   // of the Markov head and the sampler
  int32_t markov_rank = 0;

  std::vector<int32_t> draft_requests;
  std::vector<int32_t> decode_rows;
  std::vector<int32_t> moe_rows;
  std::vector<int32_t> gemm_rows;
  std::vector<int32_t> indexer_rows;
  std::vector<int32_t> markov_sequences;
  std::vector<int32_t> mhc_rows;
  std::vector<int32_t> sampling_sequences;
};

// One rank of DeepSeek-V4-Flash with its weights cut over four.
KernelBenchShapes V4FlashShapes();
// The same operations in sizes that a laptop's CPU runs in about a minute.
KernelBenchShapes LaptopShapes();

struct KernelBenchOptions {
  DeviceKind device = DeviceKind::kCpu;
  int32_t threads = 0;                 // CPU workers; 0: one per core the process may use
  std::vector<KernelFamily> families;  // empty: all
  CacheDtype cache_dtype = CacheDtype::kFp32;
  DType activations = DType::kF32;
  std::vector<int32_t>
      rows;  // in place of every family's own: rows, or requests of draft-attention, sequences of markov and sampling
  int32_t repeats = 9;  // timed samples of a case
  // Bytes that the input sets of a case touch together, and bytes that a case may allocate.
  int64_t rotate_bytes = int64_t{64} << 20;
  int64_t memory_limit_bytes = int64_t{3} << 30;
  KernelBenchShapes shapes;

  Status Validate() const;
};

inline constexpr int32_t kMaxKernelBenchRows = 1024;

// Options of a device: its usual storage types, shapes and rotation (a GPU's exceeds its L2 cache several times).
KernelBenchOptions DefaultKernelBenchOptions(DeviceKind device);

struct KernelBenchMachine {
  std::string device;
  double copy_gbps = 0.0;  // large copy on the device, bytes read + bytes written per second
  double gflops = 0.0;     // as in step_bench.h; 0: not measured on this device
};

struct KernelBenchRow {
  KernelFamily family = KernelFamily::kDraftAttention;
  std::string name;          // the operation or weight within the family
  std::string cache_dtype;   // empty where no cache is read
  std::string weight_dtype;  // empty where no weight is read
  std::string activations;
  std::vector<std::pair<std::string, int64_t>> parameters;  // every size of the case
  std::string skipped;  // why it was not run; the figures below are then 0

  double bytes = 0.0;  // that must move, the mean of the input sets
  double flop = 0.0;
  int32_t sets = 0;      // input sets that the graph rotates through
  int32_t launches = 0;  // in one graph
  double nodes_per_launch = 0.0;
  int32_t repeats = 0;  // samples
  int32_t replays = 0;  // graphs in one sample
  double median_us = 0.0;
  double min_us = 0.0;
  double max_us = 0.0;
  double floor_us = 0.0;
  bool flop_bound = false;  // which ceiling set the floor
  double ratio = 0.0;       // median_us / floor_us
};

// Who is told while it runs: a long run that is cut short keeps what it has measured.
struct KernelBenchSink {
  std::function<void(const KernelBenchMachine&)> machine;
  std::function<void(const KernelBenchRow&)> row;
};

Status RunKernelBench(const KernelBenchOptions& options, const KernelBenchSink& sink);

}  // namespace firesteel
