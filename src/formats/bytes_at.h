// Numbers at given places of a file's bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace aerie {

inline bool fits(std::span<const uint8_t> bytes, uint64_t at, uint64_t count) { return at <= bytes.size() && count <= bytes.size() - at; }

/// A little-endian number at `at`, which the caller has checked.
template <class T>
T number_at(std::span<const uint8_t> bytes, uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace aerie
