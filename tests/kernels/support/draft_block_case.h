// A draft-attention problem on the GPU beside its CPU oracle: requests with shuffled cache rows, poisoned padding.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/sparse_attention/sm90/draft_attention.h"

namespace firesteel {

inline void CudaOk(cudaError_t error) {
  FIRESTEEL_CHECK(error == cudaSuccess, cudaGetErrorString(error));
}

// Device copy of a host vector.
template <typename T>
class DeviceCopy {
 public:
  explicit DeviceCopy(const std::vector<T>& host) : count_(host.size()) {
    CudaOk(cudaMalloc(&data_, count_ * sizeof(T)));
    Upload(host);
  }
  ~DeviceCopy() { cudaFree(data_); }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  void Upload(const std::vector<T>& host) {
    CudaOk(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> Download() const {
    std::vector<T> host(count_);
    CudaOk(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
  size_t count_;
};

struct DraftBlockShape {
  int32_t heads = 16;
  KvFormat format = KvFormat::kFp8;
  std::vector<int32_t> valid = {133};  // one list per request
  bool constant_value = false;
  float sink = 0.0F;
  bool last_key_dominates = false;  // only the last block key matches the queries
};

class DraftBlockCase {
 public:
  static constexpr int32_t kRows = 5;
  static constexpr int32_t kWidth = 256;
  static constexpr int32_t kKeysPerRequest = 192;
  static constexpr int32_t kBlock = 64;

  explicit DraftBlockCase(const DraftBlockShape& shape, uint32_t seed = 1) : shape_(shape) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const int32_t lists = static_cast<int32_t>(shape.valid.size());
    pages_.block_entries = kBlock;
    pages_.width = 512;
    pages_.rope = 64;
    pages_.format = shape.format;
    pages_.page_bytes = KvPageBytes(shape.format, 512, 64, kBlock);
    // 0xff bytes are NaN in e4m3, in bf16 and as a scale.
    bytes_.assign(static_cast<size_t>(pages_.page_bytes) * lists * kKeysPerRequest / kBlock,
                  std::byte{0xff});
    pages_.data = bytes_.data();
    index_.assign(static_cast<size_t>(lists) * kWidth, INT32_MAX);
    query_.resize(static_cast<size_t>(lists) * kRows * shape.heads * 512);
    for (uint16_t& q : query_) {
      q = FloatToBf16(shape.last_key_dominates ? 1.0F : normal(random));
    }
    for (int32_t b = 0; b < lists; ++b) FillList(b, random);
    sink_.assign(static_cast<size_t>(shape.heads), shape.sink);
    live_ = {lists * kRows};
    oracle_.resize(query_.size());
    SparseAttentionArgs args = Args();
    std::unique_ptr<Device> cpu = CreateCpuDevice(2);
    args.q.data = query_.data();
    args.out.data = oracle_.data();
    args.window.data = bytes_.data();
    args.window_rows = {index_.data(), shape.valid.data(), kWidth};
    args.sink = sink_.data();
    args.live = live_.data();
    SparseAttentionCpu(cpu->stream(), args);
  }

  SparseAttentionArgs Args() const {
    SparseAttentionArgs args{};
    const int64_t stride = int64_t{shape_.heads} * 512;
    args.q = ConstRows(nullptr, stride, DType::kBf16);
    args.out = Rows{nullptr, stride, DType::kBf16};
    args.window = pages_;
    args.rows = static_cast<int32_t>(shape_.valid.size()) * kRows;
    args.rows_per_list = kRows;
    args.heads = shape_.heads;
    args.head_dim = 512;
    args.scale = 1.0F / std::sqrt(512.0F);
    return args;
  }

  std::vector<uint16_t> Run(const sm90::DraftTile& tile) const {
    const DeviceCopy<uint16_t> query(query_);
    const DeviceCopy<uint16_t> out(std::vector<uint16_t>(query_.size(), 0xffff));
    const DeviceCopy<std::byte> bytes(bytes_);
    const DeviceCopy<int32_t> index(index_);
    const DeviceCopy<int32_t> valid(shape_.valid);
    const DeviceCopy<float> sink(sink_);
    const DeviceCopy<int32_t> live(live_);
    SparseAttentionArgs args = Args();
    args.q.data = query.get();
    args.out.data = out.get();
    args.window.data = bytes.get();
    args.window_rows = {index.get(), valid.get(), kWidth};
    args.sink = sink.get();
    args.live = live.get();
    CudaOk(sm90::LaunchDraftAttention(nullptr, args, tile));
    CudaOk(cudaDeviceSynchronize());
    return out.Download();
  }

  // ||found - oracle|| / ||oracle||; infinity when a value is not finite.
  double RelativeError(const std::vector<uint16_t>& found) const {
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < found.size(); ++i) {
      const double x = Bf16ToFloat(found[i]);
      const double y = Bf16ToFloat(oracle_[i]);
      difference += (x - y) * (x - y);
      norm += y * y;
    }
    const double error = norm == 0.0 ? std::sqrt(difference) : std::sqrt(difference / norm);
    return std::isfinite(error) ? error : INFINITY;
  }

 private:
  void FillList(int32_t b, std::mt19937& random) {
    std::normal_distribution<float> normal;
    std::vector<int32_t> place(kKeysPerRequest);
    for (int32_t i = 0; i < kKeysPerRequest; ++i) place[static_cast<size_t>(i)] = i;
    std::shuffle(place.begin(), place.end(), random);
    const int32_t valid = shape_.valid[static_cast<size_t>(b)];
    std::vector<float> row(512);
    for (int32_t t = 0; t < valid; ++t) {
      const int32_t at = b * kKeysPerRequest + place[static_cast<size_t>(t)];
      index_[static_cast<size_t>(b * kWidth + t)] = at;
      const bool dominates = shape_.last_key_dominates && t == valid - 1;
      for (float& x : row) {
        x = shape_.constant_value || dominates ? 1.0F
            : shape_.last_key_dominates        ? -1.0F
                                               : normal(random);
      }
      EncodeKvRow(pages_, at, row.data());
    }
  }

  DraftBlockShape shape_;
  KvPages pages_;
  std::vector<std::byte> bytes_;
  std::vector<int32_t> index_;
  std::vector<uint16_t> query_;
  std::vector<float> sink_;
  std::vector<int32_t> live_;
  std::vector<uint16_t> oracle_;
};

}  // namespace firesteel
