#include "engine/exec/machine_ceilings.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/gemm_rows.h"

namespace firesteel {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double CpuGflops(WorkerPool& pool) {
  constexpr int32_t kIn = 1024;
  constexpr int32_t kOut = 16;
  constexpr int64_t kRows = 24;
  constexpr int64_t kLoops = 512;
  constexpr int kRepeats = 20;  // a fifth of a second: neighbours on a shared machine come and go
  const std::vector<float> weights(static_cast<size_t>(kIn * kOut), 0.5F);
  const std::vector<float> input(static_cast<size_t>(kRows * kIn), 0.25F);
  Weight weight;
  weight.data = weights.data();
  weight.dtype = DType::kF32;
  weight.out = kOut;
  weight.in = kIn;
  double best = 1e30;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    pool.Run(kLoops, 1, [&](int64_t begin, int64_t end, WorkerScratch& scratch) {
      const float* x[kRows];
      float* y[kRows];
      float* out = scratch.Floats(kRows * kOut);
      for (int64_t r = 0; r < kRows; ++r) {
        x[r] = input.data() + r * kIn;
        y[r] = out + r * kOut;
      }
      for (int64_t i = begin; i < end; ++i) GemmRows(weight, x, y, kRows, 0, kOut, scratch);
    });
    best = std::min(best, SecondsSince(start));
  }
  return 2.0 * kIn * kOut * kRows * static_cast<double>(kLoops) / best * 1e-9;
}

}  // namespace

Result<double> MeasureCopyGbps(Device& device) {
  // A GPU copies for too short a time to be timed from outside, so one sample is several larger copies there.
  const bool on_host = device.reads_host_memory();
  const int64_t bytes = int64_t{on_host ? 256 : 1024} << 20;
  const int copies = on_host ? 1 : 8;
  DeviceArena arena(device);
  void* from = arena.Carve("copy source", bytes);
  void* to = arena.Carve("copy target", bytes);
  Stream& stream = device.stream();
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    FIRESTEEL_RETURN_IF_ERROR(stream.Synchronize());
    const auto start = std::chrono::steady_clock::now();
    for (int c = 0; c < copies; ++c)
      stream.CopyOnDevice(c % 2 == 0 ? to : from, c % 2 == 0 ? from : to, bytes);
    FIRESTEEL_RETURN_IF_ERROR(stream.Synchronize());
    best = std::min(best, SecondsSince(start));
  }
  return 2.0 * static_cast<double>(bytes) * copies / best * 1e-9;
}

Result<double> MeasureGflops(Device& device) {
  if (device.reads_host_memory()) return CpuGflops(PoolOf(device.stream()));
  return device.MeasureProductPeak();
}

}  // namespace firesteel
