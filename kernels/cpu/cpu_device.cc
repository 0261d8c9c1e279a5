#include "kernels/cpu/cpu_device.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/core/math.h"

namespace firesteel {

class CpuStream::Tape final : public Graph {
 public:
  void Append(const RecordedOp& op) {
    const size_t words = CeilDiv(op.bytes, sizeof(uint64_t));
    Node node{op.run, std::make_unique<uint64_t[]>(words)};
    std::memcpy(node.payload.get(), op.payload, op.bytes);
    nodes_.push_back(std::move(node));
  }
  void Replay(Stream& stream) override {
    for (const Node& node : nodes_) node.run(stream, node.payload.get());
  }
  size_t num_nodes() const override { return nodes_.size(); }

 private:
  struct Node {
    void (*run)(Stream&, const void*);
    std::unique_ptr<uint64_t[]> payload;
  };
  std::vector<Node> nodes_;
};

namespace {

// Largest users: a decoded weight tile and the gathered rows of one attention work item.
constexpr size_t kScratchBytes = size_t{64} << 20;
constexpr int64_t kAllocationAlignment = 256;

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : pool_(threads, kScratchBytes), stream_(pool_) {}

  const KernelTable& kernels() const override { return CpuKernels(); }
  Stream& stream() override { return stream_; }

  // calloc leaves untouched pages of large buffers uncommitted: a pool costs memory as it fills. The block that calloc
  // returned is remembered in front of the aligned one.
  void* Allocate(int64_t bytes) override {
    const size_t rounded =
        static_cast<size_t>(RoundUp(Max(bytes, int64_t{1}), kAllocationAlignment));
    size_t room = rounded + kAllocationAlignment;
    void* block = std::calloc(1, room + sizeof(void*));
    if (block == nullptr) return nullptr;
    void* aligned = static_cast<void**>(block) + 1;
    std::align(kAllocationAlignment, rounded, aligned, room);
    static_cast<void**>(aligned)[-1] = block;
    return aligned;
  }
  void Free(void* pointer) override {
    if (pointer != nullptr) std::free(static_cast<void**>(pointer)[-1]);
  }

  bool reads_host_memory() const override { return true; }
  DeviceMemory memory() const override { return {}; }
  std::string Describe() const override {
    return "cpu (" + std::to_string(pool_.threads()) + " threads)";
  }

 private:
  WorkerPool pool_;
  CpuStream stream_;
};

}  // namespace

CpuStream::CpuStream(WorkerPool& pool) : pool_(pool) {}
CpuStream::~CpuStream() = default;

bool CpuStream::Record(const RecordedOp& op) {
  if (tape_ == nullptr) return false;
  tape_->Append(op);
  return true;
}

void CpuStream::CopyToDevice(void* device, const void* host, int64_t bytes) {
  if (bytes > 0) std::memcpy(device, host, static_cast<size_t>(bytes));
}

void CpuStream::CopyToHost(void* host, const void* device, int64_t bytes) {
  if (bytes > 0) std::memcpy(host, device, static_cast<size_t>(bytes));
}

void CpuStream::CopyOnDevice(void* to, const void* from, int64_t bytes) {
  constexpr int64_t kGrainBytes = int64_t{1} << 20;
  pool_.Run(bytes, kGrainBytes, [&](int64_t begin, int64_t end, WorkerScratch&) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

void CpuStream::BeginCapture() {
  FIRESTEEL_CHECK(tape_ == nullptr, "capture is already running");
  tape_ = std::make_unique<Tape>();
}

Result<std::unique_ptr<Graph>> CpuStream::EndCapture() {
  FIRESTEEL_CHECK(tape_ != nullptr, "no capture is running");
  return std::unique_ptr<Graph>(std::move(tape_));
}

std::unique_ptr<Device> CreateCpuDevice(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace firesteel
