// Zeroed memory from the system for large tables that are read in long runs: in huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aerie {

/// Bytes that this process may still take without others being pushed out or this one killed: what the system calls available, or
/// what the control group leaves if that is less. The largest number where neither says anything.
uint64_t available_memory();

/// With ordinary pages, page walks alone take a third of the read speed of a stream. Untouched pages cost nothing. empty() where
/// the system has no address space left, or where a region of 64 MiB or more is larger than available_memory(): the system would
/// promise it, and kill the process once it is used. Movable, not copyable; gives its memory back when destroyed.
class PageMemory {
 public:
  PageMemory() = default;
  explicit PageMemory(size_t bytes);
  PageMemory(PageMemory&& other) noexcept { *this = static_cast<PageMemory&&>(other); }
  PageMemory& operator=(PageMemory&& other) noexcept;
  ~PageMemory();

  bool empty() const { return begin_ == nullptr; }
  /// Aligned to a huge page (2 MiB).
  uint8_t* data() const { return begin_; }
  size_t size() const { return size_; }

 private:
  void* mapped_ = nullptr;
  uint8_t* begin_ = nullptr;
  size_t size_ = 0;
};

}  // namespace aerie
