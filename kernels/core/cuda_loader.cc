#include "kernels/core/cuda_loader.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "kernels/core/kernel_table.h"
#include "kernels/cuda/cuda_module.h"

namespace firesteel {
namespace {

std::string LoaderError() {
  const char* text = dlerror();
  return text == nullptr ? "the loader gave no reason" : text;
}

std::vector<std::string> FoldersBesideTheProgram() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const std::filesystem::path folder = program.parent_path();
  return {folder.string(), (folder.parent_path() / "lib").string()};
}

// The handle of the module and where it came from.
struct Loaded {
  void* handle = nullptr;
  std::string path;
};

Result<Loaded> Load(const std::vector<std::string>& folders, const std::string& file) {
  std::string searched;
  for (const std::string& folder : folders) {
    const std::string path = (std::filesystem::path(folder) / file).string();
    std::error_code error;
    if (std::filesystem::exists(path, error)) {
      void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) return Loaded{handle, path};
      return Unavailable("device 'cuda': " + path + " cannot be loaded (" + LoaderError() +
                         "); install the CUDA runtime it was built with, or use device 'cpu'");
    }
    searched += folder + ", ";
  }
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return Loaded{handle, file};
  return Unavailable("device 'cuda' needs " + file + ", looked for in " + searched +
                     "and on the loader's path (" + LoaderError() +
                     "); build it with the preset 'release-cuda', or use device 'cpu'");
}

}  // namespace

Result<std::unique_ptr<Device>> OpenCudaDeviceIn(const std::vector<std::string>& folders,
                                                 const std::string& file, int32_t ordinal) {
  FIRESTEEL_ASSIGN_OR_RETURN(const Loaded loaded, Load(folders, file));
  const auto entry = reinterpret_cast<CudaModuleEntry>(dlsym(loaded.handle, kCudaModuleEntry));
  if (entry == nullptr) {
    return Unavailable("device 'cuda': " + loaded.path + " has no symbol '" + kCudaModuleEntry +
                       "', needs the module of this program's build");
  }
  const CudaModule& module = *entry();
  if (module.version != kCudaModuleVersion || module.kernel_table_bytes != sizeof(KernelTable)) {
    return Unavailable("device 'cuda': " + loaded.path + " has version " +
                       std::to_string(module.version) + " and a kernel table of " +
                       std::to_string(module.kernel_table_bytes) + " bytes, this program needs " +
                       std::to_string(kCudaModuleVersion) + " and " +
                       std::to_string(sizeof(KernelTable)) + "; build both together");
  }
  CudaModuleError error{};
  std::unique_ptr<Device> device(module.create_device(ordinal, &error));
  if (device != nullptr) return device;
  return Status(error.code, "device 'cuda': " + std::string(error.message) +
                                "; needs an NVIDIA GPU of compute capability 9.0 or 10.x that "
                                "nvidia-smi lists, or use device 'cpu'");
}

Result<std::unique_ptr<Device>> OpenCudaDevice(int32_t ordinal) {
  return OpenCudaDeviceIn(FoldersBesideTheProgram(), kCudaModuleFile, ordinal);
}

}  // namespace firesteel
