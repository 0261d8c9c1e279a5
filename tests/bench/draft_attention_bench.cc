// Times the draft-block attention by graph replay over rotating inputs that exceed the L2 cache twice, beside the byte
// floor at the copy bandwidth measured in the same run. One JSON line per shape.
#include <cstdio>
#include <string>
#include <vector>

#include "tests/kernels/support/draft_block_case.h"

namespace firesteel {
namespace {

class Timer {
 public:
  Timer() {
    CudaOk(cudaEventCreate(&begin_));
    CudaOk(cudaEventCreate(&end_));
  }
  template <typename Body>
  double Microseconds(cudaStream_t stream, Body body) {
    CudaOk(cudaEventRecord(begin_, stream));
    body();
    CudaOk(cudaEventRecord(end_, stream));
    CudaOk(cudaEventSynchronize(end_));
    float ms = 0.0F;
    CudaOk(cudaEventElapsedTime(&ms, begin_, end_));
    return static_cast<double>(ms) * 1e3;
  }

 private:
  cudaEvent_t begin_{};
  cudaEvent_t end_{};
};

double MeasureCopyGbps(cudaStream_t stream, Timer& timer) {
  constexpr size_t kBytes = size_t{2} << 30;
  void* a = nullptr;
  void* b = nullptr;
  CudaOk(cudaMalloc(&a, kBytes));
  CudaOk(cudaMalloc(&b, kBytes));
  double best = 1e30;
  for (int i = 0; i < 6; ++i) {
    best = std::min(best, timer.Microseconds(stream, [&] {
      CudaOk(cudaMemcpyAsync(b, a, kBytes, cudaMemcpyDeviceToDevice, stream));
    }));
  }
  cudaFree(a);
  cudaFree(b);
  return 2.0 * kBytes / best * 1e-3;
}

void Bench(cudaStream_t stream, Timer& timer, double gbps, int32_t sm_count, int32_t lists,
           int32_t heads, KvFormat format) {
  constexpr int32_t kValid = 133;
  constexpr double kRotateBytes = 240e6;  // twice the L2 of an H200 and a margin
  const DraftBlockCase shape({.heads = heads, .format = format, .valid = {kValid}});
  SparseAttentionArgs args = shape.Args();
  args.rows = lists * DraftBlockCase::kRows;
  const size_t query = static_cast<size_t>(args.rows) * static_cast<size_t>(heads) * 512;
  const size_t pages = static_cast<size_t>(args.window.page_bytes) * lists * 3;
  const int sets = std::max(
      2,
      std::min(256, static_cast<int>(kRotateBytes / static_cast<double>(4 * query + pages)) + 1));
  std::mt19937 random(7);
  std::vector<uint16_t> q(query);
  for (uint16_t& x : q) x = FloatToBf16(static_cast<float>(random() % 2000) / 1000.0F - 1.0F);
  std::vector<std::byte> kv(pages);
  for (std::byte& x : kv) x = static_cast<std::byte>(random() % 120);
  std::vector<std::unique_ptr<DeviceCopy<uint16_t>>> queries, outs;
  std::vector<std::unique_ptr<DeviceCopy<std::byte>>> pools;
  for (int i = 0; i < sets; ++i) {
    queries.push_back(std::make_unique<DeviceCopy<uint16_t>>(q));
    outs.push_back(std::make_unique<DeviceCopy<uint16_t>>(q));
    pools.push_back(std::make_unique<DeviceCopy<std::byte>>(kv));
  }
  std::vector<int32_t> index(static_cast<size_t>(lists) * 256, -1);
  for (int32_t b = 0; b < lists; ++b) {
    for (int32_t t = 0; t < kValid; ++t) index[static_cast<size_t>(b * 256 + t)] = b * 192 + t;
  }
  const DeviceCopy<int32_t> index_d(index);
  const DeviceCopy<int32_t> valid(std::vector<int32_t>(static_cast<size_t>(lists), kValid));
  const DeviceCopy<float> sink(std::vector<float>(static_cast<size_t>(heads), 0.0F));
  const DeviceCopy<int32_t> live(std::vector<int32_t>{args.rows});
  args.window_rows = {index_d.get(), valid.get(), 256};
  args.sink = sink.get();
  args.live = live.get();
  const sm90::DraftTile tile = sm90::SelectDraftTile(lists, DraftBlockCase::kRows, heads, sm_count);

  const int launches = std::max(sets, 32);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) {
    const size_t s = static_cast<size_t>(i % sets);
    args.q.data = queries[s]->get();
    args.out.data = outs[s]->get();
    args.window.data = pools[s]->get();
    CudaOk(sm90::LaunchDraftAttention(stream, args, tile));
  }
  CudaOk(cudaStreamEndCapture(stream, &graph));
  CudaOk(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<double> times;
  for (int i = 0; i < 23; ++i) {
    const double us = timer.Microseconds(stream, [&] { CudaOk(cudaGraphLaunch(exec, stream)); });
    if (i >= 3) times.push_back(us / launches);
  }
  CudaOk(cudaGraphExecDestroy(exec));
  CudaOk(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  const double row_bytes = format == KvFormat::kFp8 ? 584 : 1024;
  const double bytes = lists * kValid * (row_bytes + 4) + 4.0 * static_cast<double>(query);
  const double floor_us = bytes / gbps * 1e-3;
  std::printf(
      "{\"kernel\":\"draft_attention\",\"format\":\"%s\",\"heads\":%d,\"requests\":%d,\"median_"
      "us\":%.2f,"
      "\"min_us\":%.2f,\"max_us\":%.2f,\"bytes\":%.0f,\"floor_us\":%.2f,\"ratio\":%.2f,"
      "\"tile\":\"%dx%dx%d\"}\n",
      format == KvFormat::kFp8 ? "fp8" : "bf16", heads, lists, times[times.size() / 2],
      times.front(), times.back(), bytes, floor_us, times[times.size() / 2] / floor_us, tile.rows,
      tile.heads, tile.per_cta);
  std::fflush(stdout);
}

}  // namespace
}  // namespace firesteel

int main() {
  using namespace firesteel;
  cudaDeviceProp device{};
  CudaOk(cudaGetDeviceProperties(&device, 0));
  cudaStream_t stream;
  CudaOk(cudaStreamCreate(&stream));
  Timer timer;
  const double gbps = MeasureCopyGbps(stream, timer);
  std::printf("{\"device\":\"%s\",\"copy_gbps\":%.0f}\n", device.name, gbps);
  for (const KvFormat format : {KvFormat::kFp8, KvFormat::kBf16}) {
    for (const int32_t heads : {16, 64}) {
      for (const int32_t lists : {1, 8, 32, 128}) {
        Bench(stream, timer, gbps, device.multiProcessorCount, lists, heads, format);
      }
    }
  }
  return 0;
}
