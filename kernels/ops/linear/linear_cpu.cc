#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/gemm_rows.h"
#include "kernels/cpu/row_access.h"
#include "kernels/ops/linear/linear.h"

namespace firesteel {

void LinearCpu(Stream& stream, const LinearArgs& a) {
  const int64_t rows = Min(*a.live, a.rows);
  if (rows == 0) return;
  const int64_t group_out = a.weight.out / a.groups;
  const int64_t grain = GemmGrain(a.weight, rows);
  PoolOf(stream).Run(a.weight.out, grain, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    const bool widen_x = a.x.dtype != DType::kF32;
    const bool narrow_y = a.y.dtype != DType::kF32;
    const int64_t staged = widen_x || narrow_y ? Min(rows, kStagedRows) : rows;
    const auto** x = reinterpret_cast<const float**>(s.Bytes(staged * 8));
    auto** y = reinterpret_cast<float**>(s.Bytes(staged * 8));
    float* in = widen_x ? s.Floats(staged * a.weight.in) : nullptr;
    float* out = narrow_y ? s.Floats(staged * a.weight.out) : nullptr;
    for (int64_t o = begin; o < end;) {
      const int64_t group = o / group_out;
      const int64_t stop = Min(end, (group + 1) * group_out);
      ConstRows shifted = a.x;
      shifted.data =
          static_cast<const std::byte*>(a.x.data) + group * a.weight.in * DTypeBytes(a.x.dtype);
      for (int64_t first = 0; first < rows; first += staged) {
        const int64_t count = Min(staged, rows - first);
        for (int64_t r = 0; r < count; ++r) {
          x[r] = ReadRow(shifted, first + r, a.weight.in, widen_x ? in + r * a.weight.in : nullptr);
          y[r] = WritableRow(a.y, first + r, narrow_y ? out + r * a.weight.out : nullptr);
        }
        GemmRows(a.weight, x, y, count, o, stop, s);
        for (int64_t r = 0; narrow_y && r < count; ++r) {
          auto* stored = static_cast<uint16_t*>(a.y.data) + (first + r) * a.y.stride;
          for (int64_t c = o; c < stop; ++c) stored[c] = FloatToBf16(y[r][c]);
        }
      }
      o = stop;
    }
  });
}

}  // namespace firesteel
