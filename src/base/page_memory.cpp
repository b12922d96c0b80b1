#include "base/page_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

namespace aerie {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kWorthAsking = size_t{64} << 20;

/// A file that holds one number; nothing if it is not there or says "max".
std::optional<uint64_t> number_in(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

}  // namespace

uint64_t available_memory() {
  uint64_t available = UINT64_MAX;
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    if (uint64_t kib = 0; word == "MemAvailable:" && file >> kib) available = kib << 10;
  }
  // cgroup v2, as seen from inside a container.
  const auto most = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (most && used) available = std::min(available, *most - std::min(*most, *used));
  return available;
}

PageMemory::PageMemory(size_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX - kHugePage) return;
  if (bytes >= kWorthAsking && bytes > available_memory()) return;
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
