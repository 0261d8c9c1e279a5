#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/row_access.h"
#include "kernels/ops/embed/embed.h"

namespace firesteel {

void EmbedCpu(Stream& stream, const EmbedArgs& a) {
  PoolOf(stream).Run(Min(*a.live, a.rows), 16, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    const int64_t width = int64_t{a.hidden} * a.streams;
    float* buffer = s.Floats(width);
    for (int64_t row = begin; row < end; ++row) {
      const uint16_t* source = a.table + int64_t{a.token[row]} * a.hidden;
      float* out = WritableRow(a.out, row, buffer);
      for (int32_t i = 0; i < a.streams; ++i) {
        for (int32_t c = 0; c < a.hidden; ++c) out[i * a.hidden + c] = Bf16ToFloat(source[c]);
      }
      FinishRow(a.out, row, width, out);
    }
  });
}

}  // namespace firesteel
