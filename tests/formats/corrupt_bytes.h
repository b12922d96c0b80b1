// Damage for property tests: bytes of a valid file exchanged, and whole words replaced by values that break size arithmetic.
#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace aerie {

inline std::string damaged(std::string bytes) {
  const int edits = *rc::gen::inRange(1, 5);
  for (int i = 0; i < edits; ++i) {
    if (*rc::gen::arbitrary<bool>()) {
      bytes[*rc::gen::inRange<size_t>(0, bytes.size())] = *rc::gen::arbitrary<char>();
    } else {
      const uint64_t word = *rc::gen::element<uint64_t>(0, 1, 7, 255, 1ull << 16, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32,
                                                        1ull << 62, 1ull << 63, UINT64_MAX - 31, UINT64_MAX, bytes.size());
      const size_t width = *rc::gen::element<size_t>(1, 2, 4, 8);
      const size_t at = *rc::gen::inRange<size_t>(0, bytes.size() - width + 1);
      std::memcpy(bytes.data() + at, &word, width);
    }
  }
  return bytes;
}

}  // namespace aerie
