// A file's bytes, read-only: mapped into memory, or held there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace aerie {

/// Owns the bytes; movable, and spans of them stay valid. Thread-safe for reading. A file that another process truncates while
/// it is mapped raises SIGBUS, as with any mapping: model files are not to be edited in place.
class MappedFile {
 public:
  static Expected<MappedFile> open(const std::string& path);
  /// Bytes that are no file as it lies on disk (one that was unpacked, say); `path` is what errors call it.
  static MappedFile from_memory(const std::string& path, std::string content);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::unique_ptr<const std::string> content_;  // if not mapped
};

}  // namespace aerie
