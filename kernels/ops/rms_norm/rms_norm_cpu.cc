#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/row_access.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/ops/rms_norm/rms_norm.h"

namespace firesteel {

void RmsNormCpu(Stream& stream, const RmsNormArgs& a) {
  PoolOf(stream).Run(Min(*a.live, a.rows), 16, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    float* weight = s.Floats(a.cols);
    float* in = s.Floats(a.cols);
    float* buffer = s.Floats(a.cols);
    for (int32_t c = 0; c < a.cols; ++c) weight[c] = Bf16ToFloat(a.weight[c]);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = ReadRow(a.x, row, a.cols, in);
      float* y = WritableRow(a.y, row, buffer);
      const float mean = SumOfSquares(x, a.cols) / static_cast<float>(a.cols);
      ScaleRow(x, 1.0F / std::sqrt(mean + a.eps), weight, a.cols, y);
      FinishRow(a.y, row, a.cols, y);
    }
  });
}

}  // namespace firesteel
