// The CUDA column of the kernel table.
#include "kernels/core/kernel_table.h"
#include "kernels/ops/draft_prepare/draft_prepare.h"
#include "kernels/ops/embed/embed.h"
#include "kernels/ops/feature_tap/feature_tap.h"
#include "kernels/ops/gather/gather.h"
#include "kernels/ops/hyper_mix/hyper_mix.h"
#include "kernels/ops/indexer/indexer.h"
#include "kernels/ops/kv_compress/kv_compress.h"
#include "kernels/ops/kv_write/kv_write.h"
#include "kernels/ops/linear/linear.h"
#include "kernels/ops/markov/markov.h"
#include "kernels/ops/moe/moe.h"
#include "kernels/ops/rms_norm/rms_norm.h"
#include "kernels/ops/rope/rope.h"
#include "kernels/ops/sparse_attention/sparse_attention.h"
#include "kernels/ops/step_prepare/step_prepare.h"
#include "kernels/ops/verify/verify.h"

namespace firesteel {

const KernelTable& CudaKernels() {
  static constexpr KernelTable kTable = {
      .step_prepare = StepPrepareCuda,
      .embed = EmbedCuda,
      .gather = GatherCuda,
      .rms_norm = RmsNormCuda,
      .rope = RopeCuda,
      .linear = LinearCuda,
      .hyper_collapse = HyperCollapseCuda,
      .hyper_expand = HyperExpandCuda,
      .hyper_head = HyperHeadCuda,
      .kv_write = KvWriteCuda,
      .kv_compress = KvCompressCuda,
      .indexer = IndexerCuda,
      .sparse_attention = SparseAttentionCuda,
      .moe_route = MoeRouteCuda,
      .moe_group = MoeGroupCuda,
      .grouped_linear = GroupedLinearCuda,
      .swiglu = SwigluCuda,
      .moe_combine = MoeCombineCuda,
      .feature_tap = FeatureTapCuda,
      .verify = VerifyCuda,
      .draft_prepare = DraftPrepareCuda,
      .markov_step = MarkovStepCuda,
      .confidence = ConfidenceCuda,
  };
  return kTable;
}

}  // namespace firesteel
