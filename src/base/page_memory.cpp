#include "base/page_memory.h"

#include <sys/mman.h>

#include <utility>

namespace aerie {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

PageMemory::PageMemory(size_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX - kHugePage) return;
  // One huge page more than asked for, so that the region can begin at one.
  void* const mapped = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return;
  mapped_ = mapped;
  size_ = bytes;
  begin_ = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(mapped) + kHugePage - 1) / kHugePage * kHugePage);
  madvise(begin_, size_, MADV_HUGEPAGE);
}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  std::swap(mapped_, other.mapped_);
  std::swap(begin_, other.begin_);
  std::swap(size_, other.size_);
  return *this;
}

PageMemory::~PageMemory() {
  if (mapped_ != nullptr) munmap(mapped_, size_ + kHugePage);
}

}  // namespace aerie
