// Arithmetic on sizes that come from files: overflow is an answer, never a wrap.
#pragma once

#include <cstdint>
#include <optional>

namespace aerie {

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

}  // namespace aerie
