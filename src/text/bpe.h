// Byte-pair merging of one piece of text.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace aerie {

/// The merge table. Immutable once filled, thread-safe for reading.
class BpeMerges {
 public:
  /// Pairs are given best first. Of a pair given twice the last one counts, as in the `tokenizers` library.
  void add(int32_t left, int32_t right, int32_t merged) { table_[key(left, right)] = {count_++, merged}; }

  /// Merges the symbols of one piece, best rank first and leftmost among equals, until no pair of neighbours is in the
  /// table; O(n log n) for n symbols. `symbols` holds at most INT32_MAX ids.
  void merge(std::vector<int32_t>& symbols) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t merged;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  std::unordered_map<uint64_t, Merge> table_;
  uint32_t count_ = 0;
};

}  // namespace aerie
