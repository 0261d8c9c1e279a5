#include "server/cli/line_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace firesteel {

namespace {

constexpr size_t kReadBytes = 64 << 10;

Status InputError(const std::string& path, const std::string& why) {
  return InvalidArgument("input '" + path + "' " + why + ", needs a JSON-lines file or -");
}

class FdLineSource : public LineSource {
 public:
  // Takes the descriptors over; standard input stays open.
  FdLineSource(std::string path, int fd, int stop_fd)
      : path_(std::move(path)), fd_(fd), stop_fd_(stop_fd) {}
  ~FdLineSource() override {
    if (fd_ != STDIN_FILENO) close(fd_);
    close(stop_fd_);
  }

  bool Next(std::string* line) override {
    while (true) {
      const size_t end = text_.find('\n', searched_);
      if (end != std::string::npos) {
        line->assign(text_, begin_, end - begin_);
        begin_ = searched_ = end + 1;
        return true;
      }
      searched_ = text_.size();
      if (Fill()) continue;
      if (!status_.ok() || stopped_ || begin_ == text_.size()) return false;
      line->assign(text_, begin_, std::string::npos);  // the last line may lack its newline
      begin_ = searched_ = text_.size();
      return true;
    }
  }

  void Stop() override {
    const uint64_t one = 1;
    // Cannot fail: the counter is far from its limit.
    [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof(one));
  }

  Status status() const override { return status_; }

 private:
  // Appends what is there. False at the end, after a failure and after Stop().
  bool Fill() {
    text_.erase(0, begin_);
    searched_ -= begin_;
    begin_ = 0;
    pollfd waits[] = {{fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    while (poll(waits, 2, -1) < 0) {
      if (errno != EINTR) return Fail();
    }
    if (waits[1].revents != 0) {
      stopped_ = true;
      return false;
    }
    const size_t old_size = text_.size();
    text_.resize(old_size + kReadBytes);
    ssize_t bytes = 0;
    do {
      bytes = read(fd_, text_.data() + old_size, kReadBytes);
    } while (bytes < 0 && errno == EINTR);
    const int error = errno;
    text_.resize(old_size + static_cast<size_t>(bytes < 0 ? 0 : bytes));
    errno = error;
    if (bytes < 0) return Fail();
    return bytes > 0;
  }

  bool Fail() {
    status_ = InputError(path_, std::string("cannot be read: ") + std::strerror(errno));
    return false;
  }

  const std::string path_;
  const int fd_;
  const int stop_fd_;
  std::string text_;  // read and not yet given out, from begin_ on
  size_t begin_ = 0;
  size_t searched_ = 0;  // no newline in [begin_, searched_)
  bool stopped_ = false;
  Status status_;
};

}  // namespace

Result<std::unique_ptr<LineSource>> OpenLineSource(const std::string& path) {
  const bool standard_input = path == "-";
  const int fd = standard_input ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return InputError(path, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat info {};
  const bool is_directory = fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
  const int stop_fd = is_directory ? -1 : eventfd(0, EFD_CLOEXEC);
  if (stop_fd < 0) {
    const std::string why = is_directory ? "is a directory" : std::strerror(errno);
    if (!standard_input) close(fd);
    return InputError(path, why);
  }
  return std::unique_ptr<LineSource>(std::make_unique<FdLineSource>(path, fd, stop_fd));
}

}  // namespace firesteel
