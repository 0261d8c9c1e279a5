#include "kernels/ops/rope/rope.h"

#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/row_access.h"
#include "kernels/cpu/vector_ops.h"

namespace firesteel {

void RopeCpu(Stream& stream, const RopeArgs& a) {
  const int64_t width = int64_t{a.heads} * a.head_dim;
  PoolOf(stream).Run(Min(*a.live, a.rows), 4, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    float* buffer = s.Floats(width);
    for (int64_t row = begin; row < end; ++row) {
      float* x = const_cast<float*>(ReadRow(a.x, row, width, buffer));
      for (int32_t h = 0; h < a.heads; ++h) {
        float* head = x + int64_t{h} * a.head_dim;
        if (a.norm) {
          const float mean = SumOfSquares(head, a.head_dim) / static_cast<float>(a.head_dim);
          ScaleRow(head, 1.0F / std::sqrt(mean + a.eps), nullptr, a.head_dim, head);
        }
        RotateTail(a.table, a.position[row], a.inverse ? -1.0F : 1.0F,
                   head + a.head_dim - a.table.rope);
      }
      FinishRow(a.x, row, width, x);
    }
  });
}

}  // namespace firesteel
