// Small safetensors files for tests, written by hand so that a wrong one can be written as well.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace firesteel {

// Length field, header and data as one image.
inline std::string SafetensorsImage(const std::string& header, const std::string& data) {
  std::string image;
  for (int i = 0; i < 8; ++i) image.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xff));
  return image + header + data;
}

// A directory that is removed with the object.
class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "firesteel-XXXXXX").string();
    const char* made = mkdtemp(pattern.data());
    path_ = made == nullptr ? "" : made;
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }

  std::string Write(const std::string& file_name, const std::string& bytes) const {
    const std::string file_path = path_ + "/" + file_name;
    std::ofstream(file_path, std::ios::binary) << bytes;
    return file_path;
  }

 private:
  std::string path_;
};

}  // namespace firesteel
