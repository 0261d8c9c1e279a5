#include "engine/api/kernel_bench.h"

#include <algorithm>
#include <memory>

#include "engine/exec/backend.h"
#include "engine/exec/bench/kernel_families.h"
#include "engine/exec/machine_ceilings.h"

namespace firesteel {
namespace {

Status RunFamily(KernelFamily family, CaseRunner& runner) {
  switch (family) {
    case KernelFamily::kDraftAttention: return BenchDraftAttention(runner);
    case KernelFamily::kSparseDecode: return BenchSparseDecode(runner);
    case KernelFamily::kMoe: return BenchMoe(runner);
    case KernelFamily::kGemm: return BenchGemm(runner);
    case KernelFamily::kIndexer: return BenchIndexer(runner);
    case KernelFamily::kMarkov: return BenchMarkov(runner);
    case KernelFamily::kMhc: return BenchMhc(runner);
    case KernelFamily::kSampling: return BenchSampling(runner);
  }
  return Status::Ok();
}

}  // namespace

const char* KernelFamilyName(KernelFamily family) {
  switch (family) {
    case KernelFamily::kDraftAttention: return "draft-attention";
    case KernelFamily::kSparseDecode: return "sparse-decode";
    case KernelFamily::kMoe: return "moe";
    case KernelFamily::kGemm: return "gemm";
    case KernelFamily::kIndexer: return "indexer";
    case KernelFamily::kMarkov: return "markov";
    case KernelFamily::kMhc: return "mhc";
    case KernelFamily::kSampling: return "sampling";
  }
  return "unknown";
}

Result<KernelFamily> ParseKernelFamily(const std::string& text) {
  std::string names;
  for (const KernelFamily family : kKernelFamilies) {
    if (text == KernelFamilyName(family)) return family;
    names += std::string("'") + KernelFamilyName(family) + "', ";
  }
  return InvalidArgument("family is '" + text + "', needs " + names + "or 'all'");
}

KernelBenchShapes V4FlashShapes() {
  KernelBenchShapes s;
  s.attention_heads = {16, 64};
  s.head_dim = 512;
  s.rope_dim = 64;
  s.window = 128;
  s.block_rows = 5;
  s.list_width = 256;
  s.extra_keys = 512;
  s.verify_rows = 6;
  s.hidden = 4096;
  s.streams = 4;
  s.experts = 256;
  s.experts_per_row = 6;
  s.inner = 2048 / 4;
  s.q_rank = 1024;
  s.q_heads = 64 / 4;
  s.o_groups = 8 / 4;
  s.o_rank = 1024;
  s.head_rows = 129280 / 4;
  s.index_heads = 64;
  s.index_dim = 128;
  s.index_top_k = 512;
  s.index_visible = {2048, 25600};
  s.vocab = 129280;
  s.markov_rank = 256;
  s.draft_requests = {1, 8, 32, 128};
  s.decode_rows = {1, 6, 8, 48, 32, 192, 128, 768};
  s.moe_rows = {1, 6, 48, 192};
  s.gemm_rows = {1, 6, 48, 192};
  s.indexer_rows = {1, 6, 48};
  s.markov_sequences = {1, 8, 32, 128};
  s.mhc_rows = {1, 6, 48, 192, 768};
  s.sampling_sequences = {1, 8, 32, 128};
  return s;
}

KernelBenchShapes LaptopShapes() {
  KernelBenchShapes s = V4FlashShapes();
  s.attention_heads = {16};
  s.hidden = 1024;
  s.experts = 32;
  s.inner = 256;
  s.q_rank = 256;
  s.q_heads = 8;
  s.o_rank = 256;
  s.head_rows = 8192;
  s.index_heads = 16;
  s.index_top_k = 128;
  s.index_visible = {512, 4096};
  s.vocab = 32768;
  s.draft_requests = {1, 8, 32};
  s.decode_rows = {1, 6, 8, 48};
  s.moe_rows = {1, 6, 48};
  s.gemm_rows = {1, 6, 48};
  s.markov_sequences = {1, 8, 32};
  s.mhc_rows = {1, 6, 48};
  s.sampling_sequences = {1};
  return s;
}

KernelBenchOptions DefaultKernelBenchOptions(DeviceKind device) {
  KernelBenchOptions options;
  options.device = device;
  options.cache_dtype = DefaultCacheDtype(device);
  options.activations = DefaultActivationDtype(device);
  options.shapes = LaptopShapes();
  if (device == DeviceKind::kCuda) {
    options.rotate_bytes = int64_t{240} << 20;  // four times the L2 cache of an H200
    options.memory_limit_bytes = int64_t{16} << 30;
    options.shapes = V4FlashShapes();
  }
  return options;
}

Status KernelBenchOptions::Validate() const {
  if (repeats < 1) {
    return InvalidArgument("repeat is " + std::to_string(repeats) + ", needs at least 1");
  }
  for (const int32_t count : rows) {
    if (count < 1 || count > kMaxKernelBenchRows) {
      return InvalidArgument("rows is " + std::to_string(count) + ", needs 1.." +
                             std::to_string(kMaxKernelBenchRows));
    }
  }
  return Status::Ok();
}

Status RunKernelBench(const KernelBenchOptions& options, const KernelBenchSink& sink) {
  FIRESTEEL_RETURN_IF_ERROR(options.Validate());
  FIRESTEEL_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                             OpenDevice(options.device, options.threads));
  KernelBenchMachine machine;
  machine.device = device->Describe();
  FIRESTEEL_ASSIGN_OR_RETURN(machine.copy_gbps, MeasureCopyGbps(*device));
  FIRESTEEL_ASSIGN_OR_RETURN(machine.gflops, MeasureGflops(*device));
  sink.machine(machine);

  CaseRunner runner(*device, options, machine, sink);
  for (const KernelFamily family : kKernelFamilies) {
    const bool wanted = options.families.empty() ||
                        std::find(options.families.begin(), options.families.end(), family) !=
                            options.families.end();
    if (wanted) FIRESTEEL_RETURN_IF_ERROR(RunFamily(family, runner));
  }
  return Status::Ok();
}

}  // namespace firesteel
