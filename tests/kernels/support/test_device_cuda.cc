#include <utility>

#include "kernels/core/kernel_table.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/kernels/support/test_device.h"

namespace firesteel {
namespace {

template <auto Row>
struct Finished;

// An operation of the CUDA column that returns when it is done: the test reads its results at once, and a fault is
// reported by the test that caused it.
template <typename Args, void (*KernelTable::*Row)(Stream&, const Args&)>
struct Finished<Row> {
  static void Run(Stream& stream, const Args& args) {
    (CudaKernels().*Row)(stream, args);
    const Status status = stream.Synchronize();
    FIRESTEEL_CHECK(status.ok(), status.message());
  }
};

class FinishingDevice final : public Device {
 public:
  explicit FinishingDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  const KernelTable& kernels() const override {
    static constexpr KernelTable kTable = {
        .step_prepare = Finished<&KernelTable::step_prepare>::Run,
        .embed = Finished<&KernelTable::embed>::Run,
        .gather = Finished<&KernelTable::gather>::Run,
        .rms_norm = Finished<&KernelTable::rms_norm>::Run,
        .rope = Finished<&KernelTable::rope>::Run,
        .linear = Finished<&KernelTable::linear>::Run,
        .hyper_collapse = Finished<&KernelTable::hyper_collapse>::Run,
        .hyper_expand = Finished<&KernelTable::hyper_expand>::Run,
        .hyper_head = Finished<&KernelTable::hyper_head>::Run,
        .kv_write = Finished<&KernelTable::kv_write>::Run,
        .kv_compress = Finished<&KernelTable::kv_compress>::Run,
        .indexer = Finished<&KernelTable::indexer>::Run,
        .sparse_attention = Finished<&KernelTable::sparse_attention>::Run,
        .moe_route = Finished<&KernelTable::moe_route>::Run,
        .moe_group = Finished<&KernelTable::moe_group>::Run,
        .grouped_linear = Finished<&KernelTable::grouped_linear>::Run,
        .swiglu = Finished<&KernelTable::swiglu>::Run,
        .moe_combine = Finished<&KernelTable::moe_combine>::Run,
        .feature_tap = Finished<&KernelTable::feature_tap>::Run,
        .verify = Finished<&KernelTable::verify>::Run,
        .draft_prepare = Finished<&KernelTable::draft_prepare>::Run,
        .markov_step = Finished<&KernelTable::markov_step>::Run,
        .confidence = Finished<&KernelTable::confidence>::Run,
    };
    return kTable;
  }
  Stream& stream() override { return inner_->stream(); }
  void* Allocate(int64_t bytes) override { return inner_->Allocate(bytes); }
  void Free(void* pointer) override { inner_->Free(pointer); }
  bool reads_host_memory() const override { return inner_->reads_host_memory(); }
  DeviceMemory memory() const override { return inner_->memory(); }
  std::string Describe() const override { return inner_->Describe(); }

 private:
  std::unique_ptr<Device> inner_;
};

}  // namespace

std::unique_ptr<Device> OpenTestDevice(int) {
  Result<std::unique_ptr<Device>> device = CreateCudaDevice(0);
  FIRESTEEL_CHECK(device.ok(), device.status().message());
  return std::make_unique<FinishingDevice>(std::move(device).value());
}

const KernelTable& KernelsUnderTest() { return CudaKernels(); }

}  // namespace firesteel
