#include "eagle3/replay.h"

#include <functional>
#include <numeric>
#include <optional>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "draft_fixture.h"

namespace aerie {
namespace {

std::vector<uint8_t> mask_of(const std::string& text) {
  std::vector<uint8_t> out;
  for (const char c : text) out.push_back(c == 'A' ? 1 : 0);
  return out;
}

/// Starts of a mask with the given match tables by row; rows that are not named match nothing.
std::vector<ReplayStart> starts_of(const std::string& mask, int steps, const std::map<int, uint32_t>& matches) {
  std::vector<ReplayStart> out = find_starts(mask_of(mask), steps);
  for (ReplayStart& start : out) {
    const auto it = matches.find(start.row);
    start.matches = it == matches.end() ? 0 : it->second;
    start.accepted = accepted_at(start);
  }
  return out;
}

std::vector<int> walk(const std::string& mask, int steps, const std::map<int, uint32_t>& matches) {
  return walk_answer(find_answers(mask_of(mask))[0], starts_of(mask, steps, matches)).accepted;
}

TEST(Replay, AnswersAreRunsOfTheMask) {
  const auto answers = find_answers(mask_of("..AA..A"));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].first, 2);
  EXPECT_EQ(answers[0].last, 3);
  EXPECT_EQ(answers[1].first, 6);
  EXPECT_EQ(answers[1].last, 6);
  EXPECT_TRUE(find_answers(mask_of("...")).empty());
  EXPECT_TRUE(find_answers({}).empty());
}

TEST(Replay, TheFirstStartPredictsTheSecondTokenOfTheAnswer) {
  // Tokens 3..6 are the answer: row 2 reads token 3, the prefill's, and predicts token 4; row 4 predicts the last one.
  const auto starts = find_starts(mask_of("...AAAA.."), 5);
  ASSERT_EQ(starts.size(), 3u);
  EXPECT_EQ(starts[0].row, 2);
  EXPECT_EQ(starts[0].available, 3);
  EXPECT_EQ(starts[2].row, 4);
  EXPECT_EQ(starts[2].available, 1);
  EXPECT_EQ(find_starts(mask_of("...AAAA.."), 2)[0].available, 2);
  EXPECT_TRUE(find_starts(mask_of("..A..A"), 3).empty());  // answers of one token need no draft
}

TEST(Replay, AnAnswerThatBeginsTheTraceStartsAtRowZero) {
  const auto starts = find_starts(mask_of("AAAA"), 3);
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts[0].row, 0);
  EXPECT_EQ(walk("AAAA", 3, {}), (std::vector<int>{0, 0}));
}

TEST(Replay, WalksByHand) {
  // Answer 2..9, first cycle at row 1 (predicts token 3).
  const std::string mask = "..AAAAAAAA.";
  EXPECT_EQ(walk(mask, 3, {}), (std::vector<int>{0, 0, 0, 0, 0, 0, 0}));
  // Row 1 accepts two (tokens 3, 4), the target adds 5: next cycle at row 4, which accepts one (6) and adds 7: row 6 adds 8, row 7
  // adds 9.
  EXPECT_EQ(walk(mask, 3, {{1, 0b011}, {4, 0b101}, {6, 0b110}}), (std::vector<int>{2, 1, 0, 0}));
  // Everything matches: 3 + 1 tokens a cycle; the second cycle (row 5) has 7, 8, 9 left and counts 9 as the target's own.
  std::map<int, uint32_t> all;
  for (int row = 0; row < 11; ++row) all[row] = 0xffffffffu;
  EXPECT_EQ(walk(mask, 3, all), (std::vector<int>{3, 2}));
  EXPECT_EQ(walk(mask, 2, all), (std::vector<int>{2, 2, 0}));
  EXPECT_EQ(walk(mask, 32, all), (std::vector<int>{6}));
  EXPECT_EQ(walk(mask, 0, all), (std::vector<int>{0, 0, 0, 0, 0, 0, 0}));
  // A match after the first miss is worth nothing.
  EXPECT_EQ(walk(mask, 3, {{1, 0b110}}), (std::vector<int>{0, 0, 0, 0, 0, 0, 0}));
}

TEST(Replay, TheSecondAnswerIsWalkedOnItsOwn) {
  const std::string mask = ".AAA..AAAA";
  const auto starts = starts_of(mask, 2, {{0, 0b11}, {5, 0b01}});
  const auto answers = find_answers(mask_of(mask));
  EXPECT_EQ(walk_answer(answers[0], starts).accepted, (std::vector<int>{1}));
  EXPECT_EQ(walk_answer(answers[1], starts).accepted, (std::vector<int>{1, 0}));
}

TEST(Replay, SummaryCountsWhatItsNamesSay) {
  TraceReplay trace;
  trace.starts = starts_of("..AAAAA", 3, {{1, 0b011}, {2, 0b110}, {3, 0b11}, {4, 0b0}});
  trace.walks = {walk_answer({2, 6}, trace.starts)};
  trace.answer_tokens = 5;
  trace.covered_tokens = 4;
  ReplaySummary summary;
  summary.add(trace, 3);
  ASSERT_EQ(summary.steps.size(), 3u);
  // available: rows 1..4 have 3, 3, 2, 1 steps.
  EXPECT_EQ(summary.steps[0].starts, 4);
  EXPECT_EQ(summary.steps[0].matched, 2);
  EXPECT_DOUBLE_EQ(summary.steps[0].conditional(), 0.5);
  EXPECT_EQ(summary.steps[1].starts, 3);
  EXPECT_EQ(summary.steps[1].matched, 3);
  EXPECT_EQ(summary.steps[1].reached, 2);
  EXPECT_EQ(summary.steps[1].matched_reached, 2);
  EXPECT_EQ(summary.steps[2].starts, 2);
  EXPECT_EQ(summary.steps[2].matched, 1);
  EXPECT_EQ(summary.steps[2].reached, 1);
  EXPECT_EQ(summary.steps[2].matched_reached, 0);
  EXPECT_DOUBLE_EQ(summary.coverage(), 0.8);
  // Row 1 accepts 2 of the 3 tokens left before the last, adds one, and the last cycle (row 4) adds the last token.
  EXPECT_EQ(trace.walks[0].accepted, (std::vector<int>{2, 0}));
  EXPECT_DOUBLE_EQ(summary.acceptance_length(), 2.0);
  const ReplaySummary empty;
  EXPECT_EQ(empty.coverage(), 0.0);
  EXPECT_EQ(empty.acceptance_length(), 0.0);
}

TEST(Replay, SelectsTheDraftersTapsFromAStoredRow) {
  DraftSpec spec = tiny_spec();
  spec.target_hidden = 2;
  spec.taps = {7, 9, 4};  // 9 is the last boundary, which every trace holds
  TraceManifest manifest;
  manifest.target.blocks = 9;
  manifest.taps = {4, 5, 7};
  Trace trace;
  trace.hidden = 2;
  trace.slots = 4;
  trace.tokens = {1, 2};
  for (uint16_t v = 0; v < 16; ++v) trace.states.push_back(v);
  const auto features = select_features(spec, manifest, trace);
  ASSERT_TRUE(features.ok()) << features.status().message();
  EXPECT_EQ(*features, (std::vector<uint16_t>{4, 5, 6, 7, 0, 1, 12, 13, 14, 15, 8, 9}));
  spec.taps = {4, 6};
  EXPECT_NE(select_features(spec, manifest, trace)
                .status()
                .message()
                .find("boundary 6, which was not captured (the trace has the boundaries 4,5,7 and 9)"),
            std::string::npos);
  spec.target_hidden = 3;
  EXPECT_NE(select_features(spec, manifest, trace).status().message().find("width 3, the trace holds states of width 2"),
            std::string::npos);
  spec.target_hidden = 2;
  manifest.taps = {4, 6};
  EXPECT_NE(select_features(spec, manifest, trace).status().message().find("holds 4 states a position, its manifest says 3"),
            std::string::npos);
}

/// An engine in miniature: emits the answer token by token from the same match tables, by the rule of the header.
std::vector<int> generate(int first, int last, int steps, const std::function<bool(int row, int step)>& matches) {
  std::vector<int> accepted;
  int emitted = first;  // index of the last emitted token; the first comes from the prefill
  while (emitted < last) {
    int good = 0;
    while (good < steps && matches(emitted - 1, good)) ++good;
    const int count = std::min(good + 1, last - emitted);  // drafts and the target's own token, cut at the end
    accepted.push_back(count - 1);
    emitted += count;
  }
  return accepted;
}

RC_GTEST_PROP(Replay, TheWalkIsWhatAnEngineDoesWithTheSameMatches, ()) {
  const int first = *rc::gen::inRange(1, 6), length = *rc::gen::inRange(1, 40), steps = *rc::gen::inRange(0, 9);
  const int last = first + length - 1;
  const auto table = *rc::gen::container<std::vector<uint32_t>>(
      static_cast<size_t>(last + 2), rc::gen::map(rc::gen::inRange(0, 1 << 12), [](int bits) {
        return static_cast<uint32_t>(bits | (bits >> 4));  // more ones than zeros, so that long runs occur
      }));
  std::vector<uint8_t> mask(static_cast<size_t>(last) + 3, 0);
  for (int t = first; t <= last; ++t) mask[static_cast<size_t>(t)] = 1;
  auto starts = find_starts(mask, steps);
  for (ReplayStart& start : starts) {
    start.matches = table[static_cast<size_t>(start.row)] & ((1u << start.available) - 1u);
    start.accepted = accepted_at(start);
  }
  const AnswerWalk found = walk_answer({first, last}, starts);
  const auto expected =
      generate(first, last, steps, [&](int row, int step) { return (table[static_cast<size_t>(row)] >> step & 1u) != 0; });
  RC_ASSERT(found.accepted == expected);
  // Every token but the first is emitted exactly once.
  RC_ASSERT(std::accumulate(expected.begin(), expected.end(), 0) + static_cast<int>(expected.size()) == length - 1);
}

/// A drafter with random weights, a trace of random states, and tokens of which many are what the drafter would say.
class ReplayDrafter : public testing::Test {
 protected:
  void SetUp() override {
    golden_ = load_draft_golden("long");
    auto drafter = Drafter::create(golden_.checkpoint, golden_tables(golden_));
    ASSERT_TRUE(drafter.ok()) << drafter.status().message();
    drafter_.emplace(std::move(*drafter));
    pool_.emplace(2);
    ops_.emplace(kernels::best_kernels(), *pool_);
    tokens_ = golden_.tokens;
    mask_.assign(tokens_.size(), 0);
    std::fill(mask_.begin() + 5, mask_.begin() + 60, uint8_t{1});
    std::fill(mask_.begin() + 100, mask_.begin() + 180, uint8_t{1});
    mask_[200] = 1;
    std::fill(mask_.begin() + 240, mask_.end(), uint8_t{1});
    write_own_words();
  }

  /// Makes the answers partly the drafter's own: greedy free running from one start after the other.
  void write_own_words() {
    const size_t width = static_cast<size_t>(drafter_->spec().feature_width());
    DraftKv kv = drafter_->new_kv();
    DraftStates states;
    for (size_t i = 0; i + 4 < tokens_.size(); ++i) {
      drafter_->step0(*ops_, std::vector<DraftRow>{{tokens_[i + 1], static_cast<int>(i), &kv}}, golden_.features.data() + i * width,
                      states);
      if (i % 4 != 0) continue;
      DraftKv fork = kv.fork(kv.length());
      const size_t count = 1 + i / 4 % 3;  // one, two or three drafts come true
      for (size_t s = 0; s < count; ++s) {
        int32_t id = -1;
        drafter_->argmax(*ops_, states.head_input.data(), 1, &id);
        tokens_[i + 2 + s] = id;
        const DraftRow row{id, static_cast<int>(i + 1 + s), &fork};
        drafter_->step(*ops_, std::span(&row, 1), states.feedback.data(), states);
      }
    }
  }

  ReplayTrace trace() const { return {tokens_, mask_, golden_.features}; }

  DraftGolden golden_;
  std::optional<Drafter> drafter_;
  std::optional<ThreadPool> pool_;
  std::optional<CpuOps> ops_;
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> mask_;
};

/// Replays one start by itself: its whole prefix row by row in a cache of its own, no fork, no batch.
uint32_t matches_alone(const Drafter& drafter, CpuOps& ops, const ReplayTrace& trace, const ReplayStart& start) {
  const size_t width = static_cast<size_t>(drafter.spec().feature_width());
  DraftKv kv = drafter.new_kv();
  DraftStates states;
  for (int i = 0; i <= start.row; ++i) {
    const DraftRow row{trace.tokens[static_cast<size_t>(i) + 1], i, &kv};
    drafter.step0(ops, std::span(&row, 1), trace.features.data() + static_cast<size_t>(i) * width, states);
  }
  uint32_t matches = 0;
  for (int s = 0; s < start.available; ++s) {
    if (s > 0) {
      const DraftRow row{trace.tokens[static_cast<size_t>(start.row + 1 + s)], start.row + s, &kv};
      drafter.step(ops, std::span(&row, 1), states.feedback.data(), states);
    }
    int32_t id = -1;
    drafter.argmax(ops, states.head_input.data(), 1, &id);
    if (id == trace.tokens[static_cast<size_t>(start.row + 2 + s)]) matches |= 1u << s;
  }
  return matches;
}

TEST_F(ReplayDrafter, BatchedEqualsOneStartAtATime) {
  const auto expected = replay_trace(*drafter_, *ops_, trace(), {4, 1});
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  int matched = 0, missed = 0;
  for (const ReplayStart& start : expected->starts) {
    EXPECT_EQ(start.matches, matches_alone(*drafter_, *ops_, trace(), start)) << "row " << start.row;
    ((start.matches & 1u) != 0 ? matched : missed) += 1;
  }
  EXPECT_GT(matched, 20);  // otherwise the comparison says nothing
  EXPECT_GT(missed, 20);
  for (const int batch : {2, 5, 64, 1000}) {
    const auto found = replay_trace(*drafter_, *ops_, trace(), {4, batch});
    ASSERT_TRUE(found.ok());
    ASSERT_EQ(found->starts.size(), expected->starts.size());
    for (size_t i = 0; i < found->starts.size(); ++i) {
      EXPECT_EQ(found->starts[i].matches, expected->starts[i].matches) << "batch " << batch << ", row " << found->starts[i].row;
    }
    ASSERT_EQ(found->walks.size(), expected->walks.size());
    for (size_t i = 0; i < found->walks.size(); ++i) EXPECT_EQ(found->walks[i].accepted, expected->walks[i].accepted);
  }
}

TEST_F(ReplayDrafter, TheWalkIsWhatFreeRunningDraftsAccept) {
  // What an engine does: drafts feed on their own predictions, not on the captured tokens.
  constexpr int kSteps = 3;
  const auto replayed = replay_trace(*drafter_, *ops_, trace(), {kSteps, 64});
  ASSERT_TRUE(replayed.ok());
  ASSERT_EQ(replayed->walks.size(), 3u);  // the answer of one token has no cycle
  const size_t width = static_cast<size_t>(drafter_->spec().feature_width());
  DraftKv kv = drafter_->new_kv();
  DraftStates states;
  int accepted_in_all = 0;
  for (const AnswerWalk& expected : replayed->walks) {
    std::vector<int> accepted;
    int emitted = expected.answer.first;
    while (emitted < expected.answer.last) {
      kv.truncate(std::min(kv.length(), emitted - 1));
      for (int i = kv.length(); i < emitted; ++i) {
        const DraftRow row{tokens_[static_cast<size_t>(i) + 1], i, &kv};
        drafter_->step0(*ops_, std::span(&row, 1), golden_.features.data() + static_cast<size_t>(i) * width, states);
      }
      int good = 0;
      for (int s = 0; s < kSteps; ++s) {
        int32_t id = -1;
        drafter_->argmax(*ops_, states.head_input.data(), 1, &id);
        const size_t at = static_cast<size_t>(emitted + 1 + s);
        if (at >= tokens_.size() || id != tokens_[at]) break;
        ++good;
        const DraftRow row{id, emitted + s, &kv};
        drafter_->step(*ops_, std::span(&row, 1), states.feedback.data(), states);
      }
      const int count = std::min(good + 1, expected.answer.last - emitted);
      accepted.push_back(count - 1);
      accepted_in_all += count - 1;
      kv.truncate(emitted);  // what was drafted is recomputed from the target's features
      emitted += count;
    }
    EXPECT_EQ(accepted, expected.accepted);
  }
  EXPECT_GT(accepted_in_all, 10);
}

TEST_F(ReplayDrafter, MoreStepsNeverChangeTheEarlierOnes) {
  const auto few = replay_trace(*drafter_, *ops_, trace(), {2, 16});
  const auto many = replay_trace(*drafter_, *ops_, trace(), {kMaxReplaySteps, 16});
  const auto none = replay_trace(*drafter_, *ops_, trace(), {0, 16});
  ASSERT_TRUE(few.ok() && many.ok() && none.ok());
  for (size_t i = 0; i < few->starts.size(); ++i) EXPECT_EQ(few->starts[i].matches, many->starts[i].matches & 3u);
  ReplaySummary summary;
  summary.add(*none, 0);
  EXPECT_EQ(summary.acceptance_length(), 1.0);
  EXPECT_EQ(summary.accepted, 0);
}

TEST_F(ReplayDrafter, CoverageCountsAnswerTokensInsideTheDraftVocabulary) {
  const auto found = replay_trace(*drafter_, *ops_, trace(), {1, 64});
  ASSERT_TRUE(found.ok());
  int64_t answer = 0, covered = 0;
  const auto& d2t = drafter_->spec().d2t;
  for (size_t t = 0; t < tokens_.size(); ++t) {
    if (mask_[t] == 0) continue;
    ++answer;
    covered += std::find(d2t.begin(), d2t.end(), tokens_[t]) != d2t.end() ? 1 : 0;
  }
  EXPECT_EQ(found->answer_tokens, answer);
  EXPECT_EQ(found->covered_tokens, covered);
  EXPECT_GT(answer, covered);
}

TEST_F(ReplayDrafter, RefusesATraceThatDoesNotFit) {
  const auto message = [&](const ReplayTrace& bad, const ReplayOptions& options = {}) {
    return replay_trace(*drafter_, *ops_, bad, options).status().message();
  };
  const auto expect = [](const std::string& found, const char* part) { EXPECT_NE(found.find(part), std::string::npos) << found; };
  ReplayTrace bad = trace();
  bad.mask = bad.mask.subspan(1);
  expect(message(bad), "270 tokens but a mask of 269");
  bad = trace();
  bad.features = bad.features.subspan(16);
  expect(message(bad), "expected 16 a token (1 taps of width 16)");
  tokens_[7] = 40;
  expect(message(trace()), "token 7 of the trace is 40, outside");
  tokens_[7] = -1;
  expect(message(trace()), "token 7 of the trace is -1, outside");
  tokens_[7] = 0;
  expect(message(trace(), {33, 64}), "replay of 33 drafts a cycle");
  expect(message(trace(), {-1, 64}), "replay of -1 drafts a cycle");
  expect(message(trace(), {3, 0}), "batch_rows is 0");
  ReplayOptions shifted;
  shifted.token_shift = 1;
  expect(message(trace(), shifted), "token_shift is 1");
  shifted = {};
  shifted.step_offset = 100;
  expect(message(trace(), shifted), "step_offset 100");
  const auto empty = replay_trace(*drafter_, *ops_, {}, {});
  ASSERT_TRUE(empty.ok()) << empty.status().message();
  EXPECT_TRUE(empty->starts.empty() && empty->walks.empty());
}

}  // namespace
}  // namespace aerie
