// A CPU device whose kernel table has been tampered with. Mutation tests use it to show that the checks they guard turn
// red when an operation is wrong in a known way.
#pragma once

#include <memory>

#include "kernels/core/device.h"

namespace firesteel {

std::unique_ptr<Device> CreateMutantDevice(const KernelTable& table);

// Wrong variants of single operations. Each calls the real kernel with altered arguments, or replaces its rule.
void AttendCausallyInDraftBlocks(Stream& stream, const SparseAttentionArgs& args);
void AttendToPaddedWidth(Stream& stream, const SparseAttentionArgs& args);
// A prompt that starts behind a prefix hit drafts from window rows that hold something else.
void DraftFromStaleWindowAfterHit(Stream& stream, const DraftPrepareArgs& args);
void VerifyWithoutBreak(Stream& stream, const VerifyArgs& args);

}  // namespace firesteel
