#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace aerie {

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressLine::update(int64_t done, int64_t total, const std::string& text) {
  const auto now = Clock::now();
  if (!started_) {
    started_ = true;
    first_done_ = done;
    start_ = now;
    last_ = now - std::chrono::hours(1);
  }
  if (now - last_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(30000))) return;
  last_ = now;
  std::string line = fmt::format("{:3.0f} % {}", total > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total) : 0.0, text);
  if (done > first_done_) {
    const double seconds =
        std::chrono::duration<double>(now - start_).count() / static_cast<double>(done - first_done_) * static_cast<double>(total - done);
    line +=
        fmt::format(", {:.0f}:{:02.0f} min left", seconds / 60 - 0.5 < 0 ? 0.0 : static_cast<double>(static_cast<int64_t>(seconds / 60)),
                    static_cast<double>(static_cast<int64_t>(seconds) % 60));
  }
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    drawn_ = true;
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

void ProgressLine::finish() {
  if (drawn_) std::fprintf(stderr, "\n");
  drawn_ = false;
}

}  // namespace aerie
