#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/row_access.h"
#include "kernels/ops/feature_tap/feature_tap.h"

namespace firesteel {

void FeatureTapCpu(Stream& stream, const FeatureTapArgs& a) {
  PoolOf(stream).Run(Min(*a.live, a.rows), 16, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    float* in = s.Floats(int64_t{a.hidden} * a.streams);
    float* buffer = s.Floats(a.hidden);
    const float inverse = 1.0F / static_cast<float>(a.streams);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = ReadRow(a.x, row, int64_t{a.hidden} * a.streams, in);
      float* out = WritableRow(a.out, row, buffer);
      for (int32_t c = 0; c < a.hidden; ++c) {
        float sum = 0.0F;
        for (int32_t i = 0; i < a.streams; ++i) sum += x[i * a.hidden + c];
        out[c] = sum * inverse;
      }
      FinishRow(a.out, row, a.hidden, out);
    }
  });
}

}  // namespace firesteel
