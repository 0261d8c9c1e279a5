#include "kernels/core/cuda_loader.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "kernels/cuda/cuda_module.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

bool Has(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

std::string ErrorOf(const std::vector<std::string>& folders, const std::string& file,
                    int32_t ordinal = 0) {
  const Result<std::unique_ptr<Device>> device = OpenCudaDeviceIn(folders, file, ordinal);
  REQUIRE_FALSE(device.ok());
  const std::string message = device.status().message();
  CHECK(std::count(message.begin(), message.end(), '\n') == 0);
  return message;
}

TEST_CASE("a missing CUDA module is one line with the file, the folders and what to do",
          "[core][cuda_loader]") {
  const std::string message = ErrorOf({"/no/such/bin", "/no/such/lib"}, "libfiresteel_absent.so");
  CHECK(Has(message, "needs libfiresteel_absent.so"));
  CHECK(Has(message, "/no/such/bin, /no/such/lib"));
  CHECK(Has(message, "cannot open shared object file"));
  CHECK(Has(message, "release-cuda"));
  CHECK(Has(message, "device 'cpu'"));
}

TEST_CASE("a CUDA module that does not load is named with the loader's reason",
          "[core][cuda_loader]") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                       ("firesteel_cuda_loader_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / kCudaModuleFile) << "not a library";
  const std::string message = ErrorOf({folder.string(), FAKE_MODULE_DIR}, kCudaModuleFile);
  CHECK(Has(message, (folder / kCudaModuleFile).string() + " cannot be loaded"));
  CHECK(Has(message, "too short"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("a CUDA module of another build is refused with both versions", "[core][cuda_loader]") {
  const std::string message = ErrorOf({STALE_MODULE_DIR}, kCudaModuleFile);
  CHECK(Has(message, "has version " + std::to_string(kCudaModuleVersion + 1) +
                         " and a kernel table of 8 bytes"));
  CHECK(Has(message, "needs " + std::to_string(kCudaModuleVersion) + " and "));
}

TEST_CASE("a CUDA module without the GPU passes its reason on", "[core][cuda_loader]") {
  const std::string message = ErrorOf({FAKE_MODULE_DIR}, kCudaModuleFile, 3);
  CHECK(Has(message, "GPU 3 was asked for, 1 is visible"));
  CHECK(Has(message, "nvidia-smi"));
}

TEST_CASE("a module's device works through the device interface", "[core][cuda_loader]") {
  const Result<std::unique_ptr<Device>> device =
      OpenCudaDeviceIn({"/no/such/bin", FAKE_MODULE_DIR}, kCudaModuleFile, 0);
  REQUIRE(device.ok());
  auto* data = static_cast<int32_t*>((*device)->Allocate(sizeof(int32_t)));
  const int32_t sent = 7;
  int32_t received = 0;
  (*device)->stream().CopyToDevice(data, &sent, sizeof(sent));
  (*device)->stream().CopyToHost(&received, data, sizeof(received));
  CHECK((*device)->stream().Synchronize().ok());
  CHECK(received == 7);
  (*device)->Free(data);
}

}  // namespace
}  // namespace firesteel
