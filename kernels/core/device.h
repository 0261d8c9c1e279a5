// The run-time device seam: memory, streams and graphs. One set per rank, used by the rank thread alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/kernel_table.h"
#include "kernels/core/status.h"

namespace firesteel {

class Stream;

// A type-erased recorded operation: `run` copies nothing and reads its arguments from `payload`.
struct RecordedOp {
  void (*run)(Stream& stream, const void* payload);
  const void* payload;
  size_t bytes;
};

// An instantiated sequence of operations. Replay reads device memory as it is then; only arguments were frozen.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void Replay(Stream& stream) = 0;
  virtual size_t num_nodes() const = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // While capturing on a device whose graphs are tapes, keeps the operation and returns true. Otherwise returns false
  // and the caller runs it.
  virtual bool Record(const RecordedOp& op) = 0;

  // A copy of no bytes does nothing; its addresses may be null.
  virtual void CopyToDevice(void* device, const void* host, int64_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, int64_t bytes) = 0;
  // Between two buffers of the device that do not overlap. REQUIRES: no capture is running.
  virtual void CopyOnDevice(void* to, const void* from, int64_t bytes) = 0;

  virtual void BeginCapture() = 0;
  virtual Result<std::unique_ptr<Graph>> EndCapture() = 0;

  // Waits for everything enqueued and returns the first error since the last call.
  virtual Status Synchronize() = 0;
};

// Of a device with memory of its own, as other programs leave it. Zeros: it shares the host's.
struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const KernelTable& kernels() const = 0;
  virtual Stream& stream() = 0;
  // Zero-filled, at least 256-byte aligned; nullptr when memory is exhausted. Only DeviceArena calls these.
  virtual void* Allocate(int64_t bytes) = 0;
  virtual void Free(void* pointer) = 0;
  // True when kernels may read host memory in place (weights stay in the file mapping).
  virtual bool reads_host_memory() const = 0;
  virtual DeviceMemory memory() const = 0;
  // The highest rate of bf16 products of a device with matrix units, measured where nothing else runs, in GFLOP/s; 0: a
  // device without.
  virtual Result<double> MeasureProductPeak() { return 0.0; }
  virtual std::string Describe() const = 0;
};

}  // namespace firesteel
