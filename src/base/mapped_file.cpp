#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace aerie {

Expected<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return not_found("{}: no such file", path);
    return io_error("{}: cannot be opened: {}", path, std::strerror(errno));
  }
  struct stat info {};
  MappedFile file;
  file.path_ = path;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return invalid_argument("{}: is not a regular file", path);
  }
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ > 0) {
    void* data = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int map_errno = errno;
    ::close(fd);
    if (data == MAP_FAILED) return io_error("{}: cannot be mapped: {}", path, std::strerror(map_errno));
    file.data_ = static_cast<const uint8_t*>(data);
  } else {
    ::close(fd);
  }
  return file;
}

MappedFile MappedFile::from_memory(const std::string& path, std::string content) {
  MappedFile file;
  file.path_ = path;
  file.content_ = std::make_unique<const std::string>(std::move(content));
  file.data_ = reinterpret_cast<const uint8_t*>(file.content_->data());
  file.size_ = file.content_->size();
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(content_, other.content_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr && content_ == nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace aerie
