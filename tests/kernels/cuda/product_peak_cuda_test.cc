// Needs a GPU that these kernels were compiled for.
#include "kernels/cuda/product_peak.h"

#include "kernels/cuda/cuda_device.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

TEST_CASE("the rate of a GPU's matrix units is beyond its other units and repeats", "[cuda]") {
  auto device = CreateCudaDevice(0);
  REQUIRE(device.ok());
  const auto first = (*device)->MeasureProductPeak();
  const auto second = (*device)->MeasureProductPeak();
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  INFO(*first << " and " << *second << " GFLOP/s");
  CHECK(*first > 150e3);  // twice the fp32 rate of a Hopper GPU outside them
  CHECK(*second > 0.8 * *first);
  CHECK(*second < 1.25 * *first);
}

TEST_CASE("both forms of the products count and keep their results", "[cuda]") {
  auto device = CreateCudaDevice(0);
  REQUIRE(device.ok());
  Stream& stream = (*device)->stream();
  if (!IsHopper(stream)) return;  // the second form is Hopper's
  constexpr int kRounds = 1 << 12;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  REQUIRE(cudaEventCreate(&begin) == cudaSuccess);
  REQUIRE(cudaEventCreate(&end) == cudaSuccess);
  for (const auto enqueue : {EnqueueProducts, sm90::EnqueueProducts}) {
    enqueue(CudaStreamOf(stream), MultiprocessorsOf(stream), kRounds, nullptr);
    REQUIRE(cudaEventRecord(begin, CudaStreamOf(stream)) == cudaSuccess);
    const double flop = enqueue(CudaStreamOf(stream), MultiprocessorsOf(stream), kRounds, nullptr);
    REQUIRE(cudaEventRecord(end, CudaStreamOf(stream)) == cudaSuccess);
    REQUIRE(stream.Synchronize().ok());
    float ms = 0.0F;
    REQUIRE(cudaEventElapsedTime(&ms, begin, end) == cudaSuccess);
    const double gflops = flop / ms * 1e-6;
    INFO(gflops << " GFLOP/s");
    CHECK(gflops > 150e3);
    CHECK(gflops < 2000e3);  // a loop that the compiler took out would be far beyond
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

}  // namespace
}  // namespace firesteel
