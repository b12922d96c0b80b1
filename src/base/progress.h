// A progress line on stderr: redrawn in place on a terminal, written now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace aerie {

/// Not thread-safe. Redraws at most ten times a second on a terminal, and writes a line every 30 seconds into a file or pipe.
class ProgressLine {
 public:
  ProgressLine();
  /// `done` of `total` units; the time left is estimated from those done since the first call.
  void update(int64_t done, int64_t total, const std::string& text);
  /// Ends the line.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  bool started_ = false, drawn_ = false;
  int64_t first_done_ = 0;
  Clock::time_point start_, last_;
};

}  // namespace aerie
