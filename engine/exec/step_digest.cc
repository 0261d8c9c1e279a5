#include "engine/exec/step_digest.h"

#include <cstddef>

#include "kernels/core/check.h"

namespace firesteel {
namespace {

// Takes operations as a tape does and keeps only their hash (FNV-1a).
class DigestStream final : public Stream {
 public:
  bool Record(const RecordedOp& op) override {
    const auto* bytes = static_cast<const std::byte*>(op.payload);
    for (size_t i = 0; i < op.bytes; ++i) {
      hash_ = (hash_ ^ static_cast<uint64_t>(bytes[i])) * 0x100000001b3U;
    }
    return true;
  }

  void CopyToDevice(void*, const void*, int64_t) override { Refuse(); }
  void CopyToHost(void*, const void*, int64_t) override { Refuse(); }
  void CopyOnDevice(void*, const void*, int64_t) override { Refuse(); }
  void BeginCapture() override { Refuse(); }
  Result<std::unique_ptr<Graph>> EndCapture() override {
    Refuse();
    return Unsupported("a digest has no graph");
  }
  Status Synchronize() override { return Status::Ok(); }

  uint64_t hash() const { return hash_; }

 private:
  static void Refuse() { FIRESTEEL_CHECK(false, "a step only launches operations"); }

  uint64_t hash_ = 0xcbf29ce484222325U;
};

}  // namespace

uint64_t StepDigest(const StepShape& shape, StepProgram& program) {
  DigestStream stream;
  EnqueueStep(shape, program, stream);
  return stream.hash();
}

}  // namespace firesteel
