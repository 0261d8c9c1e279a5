#include <cstring>

#include "kernels/core/math.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/gather/gather.h"

namespace firesteel {

void GatherCpu(Stream& stream, const GatherArgs& a) {
  const int64_t bytes = DTypeBytes(a.x.dtype);
  PoolOf(stream).Run(Min(*a.live, a.rows), 32, [&](int64_t begin, int64_t end, WorkerScratch&) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(static_cast<std::byte*>(a.out.data) + row * a.out.stride * bytes,
                  static_cast<const std::byte*>(a.x.data) + a.index[row] * a.x.stride * bytes,
                  static_cast<size_t>(a.cols * bytes));
    }
  });
}

}  // namespace firesteel
