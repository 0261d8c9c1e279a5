#include "kernels/ops/kv_write/kv_write.h"

#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/row_access.h"
#include "kernels/cpu/vector_ops.h"

namespace firesteel {

void KvWriteCpu(Stream& stream, const KvWriteArgs& a) {
  const int32_t width = a.pages.width;
  PoolOf(stream).Run(Min(*a.live, a.rows), 16, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    float* weight = s.Floats(width);
    float* in = s.Floats(width);
    float* row_values = s.Floats(width);
    for (int32_t c = 0; c < width; ++c) weight[c] = Bf16ToFloat(a.weight[c]);
    for (int64_t row = begin; row < end; ++row) {
      if (a.cache_row[row] < 0) continue;
      const float* x = ReadRow(a.kv, row, width, in);
      const float mean = SumOfSquares(x, width) / static_cast<float>(width);
      ScaleRow(x, 1.0F / std::sqrt(mean + a.eps), weight, width, row_values);
      RotateTail(a.rope, a.position[row], 1.0F, row_values + width - a.rope.rope);
      EncodeKvRow(a.pages, a.cache_row[row], row_values);
    }
  });
}

}  // namespace firesteel
