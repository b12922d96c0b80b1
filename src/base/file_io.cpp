#include "base/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace aerie {
namespace {

Status write_all(int fd, const std::string& path, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return io_error("{}: cannot be written: {}", path, std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Expected<std::string> read_file(const std::string& path, uint64_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return not_found("{}: no such file", path);
    return io_error("{}: cannot be opened: {}", path, std::strerror(errno));
  }
  struct stat info {};
  if (fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
    ::close(fd);
    return invalid_argument("{}: is not a file", path);
  }
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      ::close(fd);
      return io_error("{}: cannot be read: {}", path, std::strerror(error));
    }
    if (got == 0) break;
    content.append(buffer, static_cast<size_t>(got));
    if (content.size() > max_bytes) {
      ::close(fd);
      return resource_error("{}: is larger than the {} bytes that are read of such a file", path, max_bytes);
    }
  }
  ::close(fd);
  return content;
}

Status write_file_atomically(const std::string& path, const std::function<Status(const WriteSink&)>& producer) {
  const std::string temporary = fmt::format("{}.tmp.{}", path, ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return io_error("{}: cannot be created: {}", temporary, std::strerror(errno));
  Status status = producer([&](std::span<const uint8_t> bytes) { return write_all(fd, path, bytes); });
  if (status.ok() && ::fsync(fd) != 0) status = io_error("{}: cannot be synced: {}", path, std::strerror(errno));
  if (::close(fd) != 0 && status.ok()) status = io_error("{}: cannot be closed: {}", path, std::strerror(errno));
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = io_error("{}: cannot be put in place: {}", path, std::strerror(errno));
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

Status write_file_atomically(const std::string& path, std::string_view content) {
  return write_file_atomically(path, [&](const WriteSink& sink) {
    return sink({reinterpret_cast<const uint8_t*>(content.data()), content.size()});
  });
}

}  // namespace aerie
