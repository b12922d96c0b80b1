// operator new and delete, replaced to count the bytes in use.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "fuzz/targets.h"

namespace {

std::atomic<int64_t> in_use{0}, peak{0};

void* try_allocate(size_t bytes, size_t alignment) noexcept {
  void* memory = alignment > alignof(std::max_align_t) ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                                                       : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) return nullptr;
  const int64_t now = in_use += static_cast<int64_t>(malloc_usable_size(memory));
  int64_t most = peak;
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
  return memory;
}

void* allocate(size_t bytes, size_t alignment) {
  void* memory = try_allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) in_use -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes, 0); }
void* operator new[](size_t bytes) { return allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) { return allocate(bytes, static_cast<size_t>(alignment)); }
void* operator new[](size_t bytes, std::align_val_t alignment) { return allocate(bytes, static_cast<size_t>(alignment)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return try_allocate(bytes, 0); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return try_allocate(bytes, 0); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { release(memory); }

namespace aerie::fuzz {

uint64_t peak_bytes(const Target& target, std::span<const uint8_t> input) {
  const int64_t before = in_use;
  peak = before;
  target.run(input);
  return static_cast<uint64_t>(peak - before);
}

}  // namespace aerie::fuzz
