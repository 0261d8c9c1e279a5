// The only list of operations: one row per op, one column per back end. Kernels return void; launch errors stick to the
// stream and are read once per step.
#pragma once

namespace firesteel {

class Stream;
struct ConfidenceArgs;
struct DraftPrepareArgs;
struct EmbedArgs;
struct FeatureTapArgs;
struct GatherArgs;
struct GroupedLinearArgs;
struct HyperCollapseArgs;
struct HyperExpandArgs;
struct HyperHeadArgs;
struct IndexerArgs;
struct KvCompressArgs;
struct KvWriteArgs;
struct LinearArgs;
struct MarkovStepArgs;
struct MoeCombineArgs;
struct MoeGroupArgs;
struct MoeRouteArgs;
struct RmsNormArgs;
struct RopeArgs;
struct SparseAttentionArgs;
struct StepPrepareArgs;
struct SwigluArgs;
struct VerifyArgs;

struct KernelTable {
  void (*step_prepare)(Stream&, const StepPrepareArgs&);
  void (*embed)(Stream&, const EmbedArgs&);
  void (*gather)(Stream&, const GatherArgs&);
  void (*rms_norm)(Stream&, const RmsNormArgs&);
  void (*rope)(Stream&, const RopeArgs&);
  void (*linear)(Stream&, const LinearArgs&);
  void (*hyper_collapse)(Stream&, const HyperCollapseArgs&);
  void (*hyper_expand)(Stream&, const HyperExpandArgs&);
  void (*hyper_head)(Stream&, const HyperHeadArgs&);
  void (*kv_write)(Stream&, const KvWriteArgs&);
  void (*kv_compress)(Stream&, const KvCompressArgs&);
  void (*indexer)(Stream&, const IndexerArgs&);
  void (*sparse_attention)(Stream&, const SparseAttentionArgs&);
  void (*moe_route)(Stream&, const MoeRouteArgs&);
  void (*moe_group)(Stream&, const MoeGroupArgs&);
  void (*grouped_linear)(Stream&, const GroupedLinearArgs&);
  void (*swiglu)(Stream&, const SwigluArgs&);
  void (*moe_combine)(Stream&, const MoeCombineArgs&);
  void (*feature_tap)(Stream&, const FeatureTapArgs&);
  void (*verify)(Stream&, const VerifyArgs&);
  void (*draft_prepare)(Stream&, const DraftPrepareArgs&);
  void (*markov_step)(Stream&, const MarkovStepArgs&);
  void (*confidence)(Stream&, const ConfidenceArgs&);
};

const KernelTable& CpuKernels();  // complete: a test fails on a null row

}  // namespace firesteel
