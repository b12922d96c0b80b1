// Stops a stream of text at the first of some strings, without ever showing a part of one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace aerie {

/// Passes text on and withholds only the longest suffix that may still become a stop string. The stop string that ends first
/// wins; of several that end together, the longest. Works on bytes; with stop strings and pieces in whole characters the
/// output is in whole characters too. Not thread-safe.
class StopMatcher {
 public:
  /// kInvalidArgument for an empty stop string. No strings at all is allowed: everything passes.
  static Expected<StopMatcher> create(std::vector<std::string> stops);

  /// The text that is now certain to stand before any stop string. After a stop: always "".
  std::string push(std::string_view piece);
  /// The withheld text at the end of generation ("" after a stop).
  std::string flush();
  bool stopped() const { return stopped_by_ != kNone; }
  /// The stop string that was found; "" if none.
  std::string stopped_by() const { return stopped() ? needles_[stopped_by_].text : ""; }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Needle {
    std::string text;
    std::vector<size_t> fallback;  // fallback[i]: longest proper border of text[0, i + 1)
    size_t matched = 0;
  };
  std::vector<Needle> needles_;
  std::string pending_;
  size_t stopped_by_ = kNone;
};

}  // namespace aerie
