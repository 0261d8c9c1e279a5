// Norm, rotate, encode and scatter one key/value row per token into a paged cache.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/ops/kv_record.h"
#include "kernels/ops/rope/rope.h"

namespace firesteel {

class Stream;

struct KvWriteArgs {
  ConstRows kv;              // [rows, pages.width] projection output
  const uint16_t* weight;    // [pages.width] bf16 norm weight
  const int32_t* position;   // [rows] absolute
  const int32_t* cache_row;  // [rows] physical row; -1 writes nothing
  RopeTable rope;
  KvPages pages;
  LiveCount live;
  int32_t rows;
  float eps;
};

void KvWriteCpu(Stream& stream, const KvWriteArgs& args);
void KvWriteCuda(Stream& stream, const KvWriteArgs& args);

}  // namespace firesteel
