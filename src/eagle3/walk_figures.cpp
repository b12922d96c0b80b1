#include "eagle3/walk_figures.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace aerie {

std::vector<uint8_t> ends_of_repeats(std::span<const int32_t> tokens, size_t gram) {
  std::vector<uint8_t> marks(tokens.size(), 0);
  std::unordered_set<std::string_view> seen;
  for (size_t end = gram; end <= tokens.size(); ++end) {
    const std::span<const int32_t> run = tokens.subspan(end - gram, gram);
    const std::string_view bytes(reinterpret_cast<const char*>(run.data()), run.size_bytes());
    if (!seen.insert(bytes).second) marks[end - 1] = 1;
  }
  return marks;
}

std::vector<uint8_t> ends_of_repeats(std::span<const int32_t> tokens, std::span<const uint8_t> mask, size_t gram) {
  std::vector<uint8_t> marks(tokens.size(), 0);
  for (const Answer& answer : find_answers(mask)) {
    const size_t first = static_cast<size_t>(answer.first), count = static_cast<size_t>(answer.last - answer.first + 1);
    const std::vector<uint8_t> inside = ends_of_repeats(tokens.subspan(first, count), gram);
    std::copy(inside.begin(), inside.end(), marks.begin() + answer.first);
  }
  return marks;
}

TraceReplay limited_to(const TraceReplay& replay, int k) {
  TraceReplay limited = replay;
  for (ReplayStart& start : limited.starts) {
    start.available = std::min(start.available, k);
    if (k < 32) start.matches &= (uint32_t{1} << k) - 1;
    start.accepted = accepted_at(start);
  }
  for (AnswerWalk& walk : limited.walks) walk = walk_answer(walk.answer, limited.starts);
  return limited;
}

CycleCount count_cycles(const TraceReplay& replay, std::span<const uint8_t> left_out) {
  CycleCount count;
  for (const AnswerWalk& walk : replay.walks) {
    int row = std::max(walk.answer.first - 1, 0);
    for (const int accepted : walk.accepted) {
      const size_t drafted = static_cast<size_t>(row) + 2;
      row += accepted + 1;
      if (drafted < left_out.size() && left_out[drafted] != 0) continue;
      ++count.cycles;
      count.accepted += accepted;
    }
  }
  return count;
}

}  // namespace aerie
