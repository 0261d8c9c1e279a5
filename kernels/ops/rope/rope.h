// Partial rotary embedding on the last `rope` values of each head, adjacent pairs (2i, 2i + 1).
//
// With `norm` each head is first divided by its own root mean square over all head_dim values (no weight): DeepSeek-V4's
// query norm. With `inverse` the rotation is undone (conjugate): DeepSeek-V4's attention output.
#pragma once

#include <cstdint>

#include "kernels/core/math.h"
#include "kernels/core/tensor.h"

namespace firesteel {

class Stream;

// cos and sin of position * frequency; built once on the host in fp32.
struct RopeTable {
  const float* cos;  // [positions, rope / 2]
  const float* sin;  // [positions, rope / 2]
  int32_t rope;
};

struct RopeArgs {
  Rows x;                   // [rows, heads * head_dim], in place
  const int32_t* position;  // [rows]
  RopeTable table;
  LiveCount live;
  int32_t rows;
  int32_t heads;
  int32_t head_dim;
  bool inverse;
  bool norm;
  float eps;
};

void RopeCpu(Stream& stream, const RopeArgs& args);
void RopeCuda(Stream& stream, const RopeArgs& args);

// Turns the pair (a, b) by the angle with this cosine and sine.
FIRESTEEL_HOST_DEVICE inline void RotatePair(float cos, float sin, float* a, float* b) {
  const float first = *a;
  const float second = *b;
  *a = first * cos - second * sin;
  *b = first * sin + second * cos;
}

// Rotates one head's trailing `table.rope` values at `tail`; sign -1 undoes it.
inline void RotateTail(const RopeTable& table, int64_t position, float sign, float* tail) {
  const int64_t half = table.rope / 2;
  const float* cos = table.cos + position * half;
  const float* sin = table.sin + position * half;
  for (int64_t i = 0; i < half; ++i) {
    RotatePair(cos[i], sign * sin[i], &tail[2 * i], &tail[2 * i + 1]);
  }
}

}  // namespace firesteel
