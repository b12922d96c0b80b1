// Repetitions within answers, and the walk's figures beside the plain one.
#include "eagle3/walk_figures.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace aerie {
namespace {

TEST(WalkFigures, ARepeatIsMarkedWhereItEnds) {
  const std::vector<int32_t> tokens = {1, 2, 3, 9, 1, 2, 3, 4, 1, 2};
  EXPECT_EQ(ends_of_repeats(tokens, 3), (std::vector<uint8_t>{0, 0, 0, 0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(ends_of_repeats(tokens, 2), (std::vector<uint8_t>{0, 0, 0, 0, 0, 1, 1, 0, 0, 1}));
  EXPECT_EQ(ends_of_repeats(tokens, 11), std::vector<uint8_t>(10, 0));
  // A loop repeats itself from its second round on.
  EXPECT_EQ(ends_of_repeats(std::vector<int32_t>{7, 8, 7, 8, 7, 8}, 2), (std::vector<uint8_t>{0, 0, 0, 1, 1, 1}));
}

TEST(WalkFigures, AnswersAreLookedAtOneByOne) {
  const std::vector<int32_t> tokens = {1, 2, 1, 2, 0, 1, 2};
  const std::vector<uint8_t> mask = {0, 0, 1, 1, 0, 1, 1};
  EXPECT_EQ(ends_of_repeats(tokens, mask, 2), std::vector<uint8_t>(7, 0));
}

RC_GTEST_PROP(WalkFigures, RepeatsAreThoseOfASearch, ()) {
  const auto tokens = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange<int32_t>(0, 3));
  const auto gram = *rc::gen::inRange<size_t>(1, 5);
  const std::vector<uint8_t> marks = ends_of_repeats(tokens, gram);
  for (size_t end = 1; end <= tokens.size(); ++end) {
    bool expected = false;
    for (size_t other = gram; end >= gram && other < end; ++other) {
      expected = expected || std::equal(tokens.begin() + static_cast<ptrdiff_t>(end - gram), tokens.begin() + static_cast<ptrdiff_t>(end),
                                        tokens.begin() + static_cast<ptrdiff_t>(other - gram));
    }
    RC_ASSERT((marks[end - 1] != 0) == expected);
  }
}

/// An answer of 12 tokens after 4 of the prompt, every draft of which matches at every third row.
TraceReplay replay_of(int steps) {
  TraceReplay replay;
  std::vector<uint8_t> mask(16, 1);
  std::fill_n(mask.begin(), 4, uint8_t{0});
  replay.starts = find_starts(mask, steps);
  for (ReplayStart& start : replay.starts) {
    start.matches = start.row % 3 == 0 ? (1u << start.available) - 1 : 0;
    start.accepted = accepted_at(start);
  }
  replay.walks = {walk_answer({4, 15}, replay.starts)};
  return replay;
}

TEST(WalkFigures, FewerDraftsAreThoseOfAShorterReplay) {
  const TraceReplay longest = replay_of(5);
  for (int k = 0; k <= 5; ++k) {
    const TraceReplay limited = limited_to(longest, k), expected = replay_of(k);
    EXPECT_EQ(limited.walks[0].accepted, expected.walks[0].accepted) << k;
    ReplaySummary summary;
    summary.add(expected, k);
    const CycleCount count = count_cycles(limited);
    EXPECT_EQ(count.cycles, summary.cycles);
    EXPECT_EQ(count.accepted, summary.accepted);
  }
}

TEST(WalkFigures, CyclesAreLeftOutByTheirFirstDraftedToken) {
  const TraceReplay replay = replay_of(2);
  // Rows 3, 6, 9 and 12 accept two drafts each, so that the cycles draft tokens 5, 8, 11 and 14.
  ASSERT_EQ(replay.walks[0].accepted, (std::vector<int>{2, 2, 2, 1}));
  std::vector<uint8_t> left_out(16, 0);
  left_out[8] = left_out[12] = 1;
  const CycleCount count = count_cycles(replay, left_out);
  EXPECT_EQ(count.cycles, 3);
  EXPECT_EQ(count.accepted, 5);
}

}  // namespace
}  // namespace aerie
