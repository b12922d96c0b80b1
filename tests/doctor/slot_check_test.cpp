// Which stored state is the final one, and what a trainer pays that takes another for it: on states whose words are known.
#include "doctor/slot_check.h"

#include <gtest/gtest.h>

#include "drawn_trace.h"

namespace aerie {
namespace {

/// A head whose rows are the words' own directions, and conversations in which boundary 7 holds the state of another word than the
/// next token at a given share of the positions, where boundary 8 always holds the next token's.
class SlotCheck : public testing::Test {
 protected:
  SlotCheck() {
    spec_.taps = {0, 1, 4};
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    rows_.resize(static_cast<size_t>(spec_.vocab * spec_.target_hidden));
    for (float& value : rows_) value = normal(random);
    target_ = drawn_tables(spec_);
    target_.head = [this](const float* x, int n, float* logits) {
      for (int i = 0; i < n; ++i) {
        for (int v = 0; v < spec_.vocab; ++v) {
          float sum = 0;
          for (int c = 0; c < spec_.target_hidden; ++c)
            sum += x[i * spec_.target_hidden + c] * rows_[static_cast<size_t>(v * spec_.target_hidden + c)];
          logits[i * spec_.vocab + v] = sum;
        }
      }
    };
    sample_.slots = drawn_slots();
    sample_.hidden = spec_.target_hidden;
    sample_.blocks = kDrawnBlocks;
  }

  void fill(double wrong, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int32_t> any(0, spec_.vocab - 1);
    std::bernoulli_distribution is_wrong(wrong);
    for (int c = 0; c < 20; ++c) {
      Conversation conversation;
      Trace& trace = conversation.trace;
      trace.slots = static_cast<int>(kDrawnBoundaries.size());
      trace.hidden = spec_.target_hidden;
      constexpr size_t kLength = 40;
      trace.states = drawn_states(kLength, trace.hidden, random);
      for (size_t t = 0; t < kLength; ++t) {
        trace.tokens.push_back(any(random));
        trace.mask.push_back(t < 4 ? 0 : 1);
      }
      std::vector<bool> right;
      for (size_t t = 0; t < kLength; ++t) {
        const int32_t next = trace.tokens[std::min(t + 1, kLength - 1)];
        right.push_back(!is_wrong(random));
        write(trace, t, 5, right.back() ? next : (next + 1) % spec_.vocab);
        write(trace, t, 6, next);
      }
      // The walk of drafts that are boundary 7's words, by hand: k = 3, the first cycle hands out token 5.
      for (size_t at = 5; at < kLength;) {  // the token that the first draft is for
        size_t m = 0;
        while (m < 3 && at + m + 1 < kLength && right[at + m - 1]) ++m;
        cycles_ += 1;
        emitted_ += static_cast<double>(m) + 1;
        at += m + 1;
      }
      sample_.conversations.push_back(std::move(conversation));
    }
  }

  void write(Trace& trace, size_t t, size_t slot, int32_t word) const {
    const size_t width = static_cast<size_t>(trace.hidden);
    for (size_t c = 0; c < width; ++c) {
      trace.states[(t * kDrawnBoundaries.size() + slot) * width + c] = f32_to_bf16(rows_[static_cast<size_t>(word) * width + c]);
    }
  }

  ReadingScorer scorer() {
    reading_.spec = spec_;
    reading_.feature = declared_feature(spec_, sample_.slots).value();
    checkpoint_ = drawn_checkpoint(spec_, 5);
    return ReadingScorer::create(checkpoint_, reading_, drawn_tables(spec_), {}, sample_, kernels::best_kernels(), pool_).value();
  }

  ThreadPool pool_{1};
  DraftSpec spec_ = drawn_spec();
  std::vector<float> rows_;  // [V, H]
  TargetTables target_;
  DraftCheckpoint checkpoint_;
  Reading reading_;
  Sample sample_;
  double cycles_ = 0, emitted_ = 0;
};

TEST_F(SlotCheck, ALateBlockIsNotTheFinalState) {
  fill(0.4, 1);
  ReadingScorer scorer = this->scorer();
  const auto slots = next_token_agreement(sample_, scorer, target_);
  ASSERT_TRUE(slots.ok());
  EXPECT_EQ(slots->front().name, "boundary 8");
  EXPECT_EQ(slots->front().agreement.value, 1.0);
  EXPECT_NEAR(best_of_slot(*slots, 5)->agreement.value, 0.6, 0.1);

  auto findings = judge_slots(*slots, 5);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].code, "final-state-is-not-final");
  EXPECT_EQ(findings[0].severity, Severity::kError);
  EXPECT_NE(findings[0].fix.find("train with boundary 8"), std::string::npos) << findings[0].fix;
  EXPECT_EQ(judge_slots(*slots, 5, true).size(), 1u);  // a better state tells, whatever the text

  const auto cost = teacher_cost(sample_, scorer, target_, reading_, best_of_slot(*slots, 5)->use, 3);
  ASSERT_TRUE(cost.ok()) << cost.status().message();
  EXPECT_NEAR(cost->ceiling.value, emitted_ / cycles_, 1e-12);
  EXPECT_EQ(cost->rows, 20 * 35);
  add_cost(findings[0], *cost, 3);
  EXPECT_NE(findings[0].text.find("where the target's own would have 4"), std::string::npos) << findings[0].text;
}

TEST_F(SlotCheck, TheFinalStateIsNotAccused) {
  fill(0.4, 2);
  ReadingScorer scorer = this->scorer();
  const auto slots = next_token_agreement(sample_, scorer, target_);
  ASSERT_TRUE(slots.ok());
  EXPECT_TRUE(judge_slots(*slots, 6).empty());
}

TEST_F(SlotCheck, ANearlyPerfectLateBlockIsLetPass) {
  fill(0.02, 3);
  ReadingScorer scorer = this->scorer();
  const auto slots = next_token_agreement(sample_, scorer, target_);
  ASSERT_TRUE(slots.ok());
  EXPECT_TRUE(judge_slots(*slots, 5).empty());
}

TEST_F(SlotCheck, TextThatNoStateGivesIsAWarningAlone) {
  fill(0.0, 4);
  for (Conversation& conversation : sample_.conversations) {  // another model wrote it
    for (int32_t& token : conversation.trace.tokens) token = (token + 7) % spec_.vocab;
  }
  ReadingScorer scorer = this->scorer();
  const auto slots = next_token_agreement(sample_, scorer, target_);
  ASSERT_TRUE(slots.ok());
  const auto findings = judge_slots(*slots, 6);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kWarning);
  EXPECT_TRUE(judge_slots(*slots, 6, true).empty());  // known to have been sampled
}

TEST_F(SlotCheck, CountingAgainstTheTeacherIsAnotherFigureThanCountingAgainstTheTarget) {
  fill(0.5, 5);
  ReadingScorer scorer = this->scorer();
  // The teacher's word is what the drafter drafts, so that it is always right to its teacher.
  const Drafter drafter = scorer.drafter(reading_).value();
  ReplayOptions options = replay_options(reading_, 1);
  options.keep_drafts = true;
  int64_t matched = 0, rows = 0;
  for (Conversation& conversation : sample_.conversations) {
    Trace& trace = conversation.trace;
    const auto features = scorer.features(reading_, trace);
    const auto replay = replay_trace(drafter, scorer.ops(), {trace.tokens, trace.mask, features}, options).value();
    for (size_t i = 0; i < replay.starts.size(); ++i) {
      write(trace, static_cast<size_t>(replay.starts[i].row) + 1, 5, replay.drafts[i]);
      matched += replay.starts[i].matches & 1u;
      ++rows;
    }
  }
  const auto cost = teacher_cost(sample_, scorer, target_, reading_, {5, false}, 3);
  ASSERT_TRUE(cost.ok());
  EXPECT_EQ(cost->rows, rows);
  EXPECT_EQ(cost->right_to_it.value, 1.0);
  EXPECT_NEAR(cost->right.value, static_cast<double>(matched) / static_cast<double>(rows), 1e-12);
}

}  // namespace
}  // namespace aerie
