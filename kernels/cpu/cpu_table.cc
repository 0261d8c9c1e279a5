// The CPU column of the kernel table.
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

const KernelTable& CpuKernels() {
  static constexpr KernelTable kTable = {
      .step_prepare = StepPrepareCpu,
      .embed = EmbedCpu,
      .gather = GatherCpu,
      .rms_norm = RmsNormCpu,
      .rope = RopeCpu,
      .linear = LinearCpu,
      .hyper_collapse = HyperCollapseCpu,
      .hyper_expand = HyperExpandCpu,
      .hyper_head = HyperHeadCpu,
      .kv_write = KvWriteCpu,
      .kv_compress = KvCompressCpu,
      .indexer = IndexerCpu,
      .sparse_attention = SparseAttentionCpu,
      .moe_route = MoeRouteCpu,
      .moe_group = MoeGroupCpu,
      .grouped_linear = GroupedLinearCpu,
      .swiglu = SwigluCpu,
      .moe_combine = MoeCombineCpu,
      .feature_tap = FeatureTapCpu,
      .verify = VerifyCpu,
      .draft_prepare = DraftPrepareCpu,
      .markov_step = MarkovStepCpu,
      .confidence = ConfidenceCpu,
  };
  return kTable;
}

}  // namespace firesteel
