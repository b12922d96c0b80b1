// Zeroed memory from the system for large tables that are read in long runs: in huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aerie {

/// With ordinary pages, page walks alone take a third of the read speed of a stream. Untouched pages cost nothing. empty() where
/// the system has no address space left. Movable, not copyable; gives its memory back when destroyed.
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
