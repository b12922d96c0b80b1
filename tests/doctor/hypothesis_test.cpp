#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "diagnosis.h"

namespace aerie {
namespace {

struct Fault {
  std::string name, code, mended;  // what the mended reading must be called
  std::function<void(Reading&)> inject;
  std::function<void(DraftSpec&)> prepare = [](DraftSpec&) {};
};

// clang-format off
std::vector<Fault> faults() {
  const auto taps = [](std::vector<int> declared) {
    return [declared](Reading& r) { set_taps(r, declared); };
  };
  return {
      {"taps_one_higher", "wrong-taps", "taps 1,4,7", taps({2, 5, 8})},
      {"taps_in_another_order", "wrong-taps", "taps 1,4,7", taps({7, 4, 1})},
      {"two_taps_swapped", "wrong-taps", "taps 1,4,7", taps({1, 7, 4})},
      {"one_tap_off_by_one", "wrong-taps", "taps 1,4,7", taps({1, 5, 7})},
      {"all_taps_others", "wrong-taps", "taps 1,4,7", taps({0, 2, 8})},
      {"founding_story", "wrong-taps", "taps 0,1,4", taps({1, 4, 8}), [](DraftSpec& s) { s.taps = {0, 1, 4}; }},
      {"feature_norm_not_applied", "wrong-feature-norm", "feature_norm concat", [](Reading& r) { r.spec.feature_norm = FeatureNorm::kNone; }},
      {"residual_normed", "wrong-norm-before-residual", "norm_before_residual false", [](Reading& r) { r.spec.norm_before_residual = true; }},
      {"feature_normed_twice", "wrong-feature-normed-twice", "feature_normed_twice true", [](Reading& r) { r.spec.feature_normed_twice = false; },
       [](DraftSpec& s) { s.feature_normed_twice = true; }},
      {"feedback_pre_norm", "wrong-feedback", "feedback post-norm", [](Reading& r) { r.spec.feedback = Feedback::kPreNorm; }},
      {"head_norm_left_out", "wrong-head-norm", "head_norm true", [](Reading& r) { r.spec.head_norm = false; }},
      {"rope_theta", "wrong-rope-theta", "rope_theta 1000000", [](Reading& r) { r.spec.rope_theta = 100.0f; }, [](DraftSpec& s) { s.rope_theta = 1e6f; }},
      {"rope_interleaved", "wrong-rope-interleaved", "rope_interleaved false", [](Reading& r) { r.spec.rope_interleaved = true; }},
      {"d2t_offset_taken_for_absolute", "wrong-d2t", "d2t holds offsets",
       [](Reading& r) {
         for (size_t d = 0; d < r.spec.d2t.size(); ++d) r.spec.d2t[d] -= static_cast<int32_t>(d);
       },
       [](DraftSpec& s) {
         for (size_t d = 0; d < s.d2t.size(); ++d) s.d2t[d] = static_cast<int32_t>(d) + static_cast<int32_t>((d * 7) % 19) + (d >= 19 ? 1 : 0);
         s.draft_vocab = 19;
         s.d2t.resize(19);
         for (size_t d = 0; d < 19; ++d) s.d2t[d] = static_cast<int32_t>(2 * d + 3);
       }},
      {"d2t_one_too_low", "wrong-d2t", "d2t off by one (+1)",
       [](Reading& r) {
         for (int32_t& target : r.spec.d2t) target -= 1;
       },
       [](DraftSpec& s) {
         for (int32_t& target : s.d2t) target += 1;
       }},
      {"d2t_sorted", "wrong-d2t", "d2t ascending", [](Reading& r) { std::reverse(r.spec.d2t.begin(), r.spec.d2t.end()); }},
      {"window_ignored", "wrong-sliding-window", "sliding_window 0", [](Reading& r) { r.spec.sliding_window = 4; }},
      {"states_one_late", "wrong-feature-shift", "states one position late", [](Reading& r) { r.feature_shift = 0; }},
      {"token_shift", "wrong-token-shift", "token i beside the state of position i", [](Reading& r) { r.token_shift = 0; }},
      {"positions_stand_still", "wrong-positions", "every draft step at the position of the first", [](Reading& r) { r.step_stride = 1; }},
  };
}
// clang-format on

class FaultInjection : public testing::TestWithParam<size_t> {};

TEST_P(FaultInjection, IsNamedFirst) {
  const Fault fault = faults()[GetParam()];
  DraftSpec spec = drawn_spec();
  fault.prepare(spec);
  const DraftCheckpoint checkpoint = drawn_checkpoint(spec, 7);
  Reading truth = true_reading(spec);
  if (fault.name == "states_one_late") truth.feature_shift = 1;
  if (fault.name == "token_shift") truth.token_shift = -1;
  if (fault.name == "positions_stand_still") truth.step_stride = 0;
  const Case found = diagnose(checkpoint, truth, fault.inject, {});
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].code, fault.code) << found.text();
  EXPECT_EQ(found.findings[0].severity, Severity::kError) << found.text();
  ASSERT_TRUE(found.result.rounds[0].winner) << found.text();
  EXPECT_EQ(found.result.rounds[0].finalists[*found.result.rounds[0].winner].hypothesis.name, fault.mended) << found.text();
  EXPECT_EQ(found.findings.size(), 1u) << found.text();
}

std::string fault_name(const testing::TestParamInfo<size_t>& info) { return faults()[info.param].name; }
INSTANTIATE_TEST_SUITE_P(Doctor, FaultInjection, testing::Range<size_t>(0, faults().size()), fault_name);

/// Drafters of every kind that a spec can state, read as they are.
DraftSpec healthy_spec(size_t number) {
  DraftSpec spec = drawn_spec();
  std::mt19937 random(static_cast<unsigned>(number));
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  spec.feature_norm = std::array{FeatureNorm::kNone, FeatureNorm::kConcat, FeatureNorm::kPerTap}[number % 3];
  spec.feedback = number / 3 % 2 == 0 ? Feedback::kPreNorm : Feedback::kPostNorm;
  spec.norm_before_residual = number / 6 % 2 == 0;
  spec.taps = std::vector<std::vector<int>>{{1, 4, 7}, {0, 1, 4}, {7, 4, 1}, {2, 5}, {5}, {0, 2, 4, 8}}[random() % 6];
  spec.feature_normed_twice = one_in(6);
  spec.head_norm = !one_in(6);
  spec.qk_norm = one_in(4);
  spec.fc_bias = one_in(4);
  spec.qkv_bias = one_in(4);
  spec.rope_interleaved = one_in(4);
  spec.rope_theta = std::array{1e4f, 1e5f, 5e5f, 1e6f, 5e4f}[random() % 5];
  if (one_in(4)) spec.rope_scaling = {RopeScalingKind::kLinear, 4.0f};
  spec.sliding_window = one_in(4) ? 12 : 0;
  if (one_in(4)) spec.heads = spec.kv_heads = 2;
  if (one_in(3)) {
    spec.draft_vocab = spec.vocab;
    spec.d2t.clear();
  }
  if (one_in(4)) std::shuffle(spec.d2t.begin(), spec.d2t.end(), random);
  if (one_in(5)) {
    spec.layers = 2;
    spec.layout = std::array{LayerLayout::kHiddenNorm, LayerLayout::kInputNorm, LayerLayout::kConcat}[random() % 3];
  }
  if (one_in(5)) {
    make_latent(spec);
    spec.qk_norm = spec.qkv_bias = false;
  }
  return spec;
}

class Healthy : public testing::TestWithParam<size_t> {};

TEST_P(Healthy, NoFaultIsFound) {
  const DraftSpec spec = healthy_spec(GetParam());
  ASSERT_TRUE(spec.validate().ok()) << spec.validate().message();
  DrawnOptions options;
  options.seed = static_cast<unsigned>(GetParam()) + 100;
  // Good drafters and poor ones.
  if (GetParam() % 4 == 1) options.accepted = {0.6, 0.25, 0.1, 0.05};
  if (GetParam() % 4 == 2) options.accepted = {0.1, 0.1, 0.1, 0.7};
  const Case found = diagnose(
      drawn_checkpoint(spec, static_cast<unsigned>(GetParam())), true_reading(spec), [](Reading&) {}, options);
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].code, "no-fault-found") << found.text();
  for (const Finding& finding : found.findings) EXPECT_EQ(finding.severity, Severity::kNote) << found.text();
}

INSTANTIATE_TEST_SUITE_P(Doctor, Healthy, testing::Range<size_t>(0, 42));

/// The walk of the true reading accepts what was drawn, so that the figures that the doctor prints are known beforehand.
TEST(Hypotheses, TheTrueReadingHasTheDrawnAcceptanceLength) {
  DrawnOptions options;
  options.accepted = {0, 0, 1, 0};
  options.answer = 43;
  const DraftSpec spec = drawn_spec();
  const Case found = diagnose(
      drawn_checkpoint(spec, 3), true_reading(spec), [](Reading&) {}, options);
  // 42 tokens after the first of the answer, three for each cycle.
  EXPECT_NEAR(found.result.rounds[0].base.length.value, 3.0, 1e-12);
  EXPECT_EQ(found.result.rounds[0].base.score.summary.cycles, 14 * options.conversations);
}

TEST(Hypotheses, StackedFaultsAreNamedOneAfterAnother) {
  DraftSpec spec = drawn_spec();
  const Case found = diagnose(drawn_checkpoint(spec, 11), true_reading(spec),
                              [](Reading& r) {
                                set_taps(r, {4, 1, 7});
                                r.spec.feedback = Feedback::kPreNorm;
                              },
                              {});
  ASSERT_EQ(found.findings.size(), 2u) << found.text();
  EXPECT_EQ(found.findings[0].code, "wrong-taps") << found.text();
  EXPECT_EQ(found.findings[1].code, "wrong-feedback") << found.text();
  ASSERT_EQ(found.result.rounds.size(), 3u);
  EXPECT_FALSE(found.result.rounds[2].winner);
}

TEST(Hypotheses, WeightsOfAnotherDrafterAreNotExplainedByAReading) {
  const DraftSpec spec = drawn_spec();
  ThreadPool pool(2);
  const auto source = draw_trace(drawn_checkpoint(spec, 1), true_reading(spec), {}, pool);
  const DraftCheckpoint other = drawn_checkpoint(spec, 2);
  const auto sample = take_sample(*source, spec, {});
  ASSERT_TRUE(sample.ok());
  auto scorer = ReadingScorer::create(other, true_reading(spec), drawn_tables(spec), {}, *sample, kernels::best_kernels(), pool);
  ASSERT_TRUE(scorer.ok());
  HypothesisFacts facts;
  facts.slots = sample->slots;
  facts.blocks = kDrawnBlocks;
  const auto result = search_hypotheses(*scorer, true_reading(spec), facts, {});
  ASSERT_TRUE(result.ok());
  const auto findings = verdict(*result, 3);
  EXPECT_EQ(findings[0].code, "poor-in-every-reading") << findings[0].text;
}

TEST(Hypotheses, TooLittleIsSaidToBeTooLittle) {
  DrawnOptions options;
  options.conversations = 3;
  const DraftSpec spec = drawn_spec();
  const Case found = diagnose(
      drawn_checkpoint(spec, 1), true_reading(spec),
      [](Reading& r) {
        set_taps(r, {7, 4, 1});
      },
      options);
  ASSERT_EQ(found.findings.size(), 1u) << found.text();
  EXPECT_EQ(found.findings[0].code, "too-little");
  EXPECT_NE(found.findings[0].text.find("at least 8 conversations with 300"), std::string::npos) << found.findings[0].text;
}

/// Gains that may be chance come with what would settle it: more of the trace where it holds more, else a longer one.
TEST(Hypotheses, APerhapsSaysWhatWouldTell) {
  SearchResult result;
  result.searched = result.judging = 8;
  result.tokens = 1600;
  SearchRound& round = result.rounds.emplace_back();
  round.base.length = {1.5, 1.4, 1.6};
  Judged& other = round.finalists.emplace_back();  // until the finalists are cleared
  other.hypothesis = {"feedback", "feedback post-norm", "", {}};
  other.length = {1.6, 1.5, 1.7};
  other.gain = {0.1, -0.05, 0.25};  // 16 * (0.15 / 0.1)^2 * 1.2 = 43 conversations
  const auto fix = [&](size_t available) {
    result.available = available;
    const auto findings = verdict(result, 3);
    EXPECT_EQ(findings.back().code, "perhaps-feedback");
    EXPECT_NE(findings.back().text.find("about 50 conversations"), std::string::npos) << findings.back().text;
    return findings.back().fix;
  };
  EXPECT_NE(fix(40).find("give a longer trace"), std::string::npos) << fix(40);
  EXPECT_NE(fix(60).find("--sample-tokens 5120"), std::string::npos) << fix(60);
  EXPECT_EQ(tokens_that_would_tell(result), 5120);
  result.available = 40;
  EXPECT_EQ(tokens_that_would_tell(result), std::nullopt);
  result.available = 60;
  round.finalists.clear();
  EXPECT_EQ(tokens_that_would_tell(result), std::nullopt) << "nothing does better";
  result.rounds.clear();
  EXPECT_EQ(tokens_that_would_tell(result), std::nullopt);
}

/// Two readings that explain a fault alike leave it open which it is, unless one of them throws away what was trained.
TEST(Hypotheses, WhatIsLeftOpenByATie) {
  SearchResult result;
  result.searched = result.judging = 8;
  result.tokens = 1600;
  result.available = 100;
  SearchRound& round = result.rounds.emplace_back();
  for (const char* axis : {"d2t", "own_head"}) {
    Judged& judged = round.finalists.emplace_back();
    judged.hypothesis = {axis, axis, std::string("mend ") + axis, {}};
    judged.length = {1.6, 1.5, 1.7};
    judged.beats = true;
  }
  round.winner = 0;
  round.tie = 1;
  round.apart = {0.02, -0.01, 0.05};
  const Finding open = verdict(result, 3)[0];
  EXPECT_EQ(open.severity, Severity::kWarning);
  EXPECT_NE(open.fix.find("mend d2t; or: mend own_head"), std::string::npos) << open.fix;
  EXPECT_EQ(tokens_that_would_tell(result), 5120);  // 16 * (0.03 / 0.02)^2 * 1.2 = 43.2 conversations
  EXPECT_EQ(certain_reading(result, 3), nullptr);

  round.finalists[1].hypothesis.discards = true;
  const Finding settled = verdict(result, 3)[0];
  EXPECT_EQ(settled.severity, Severity::kError);
  EXPECT_EQ(settled.fix, "mend d2t");
  EXPECT_EQ(tokens_that_would_tell(result), std::nullopt);
  EXPECT_NE(certain_reading(result, 3), nullptr);
}

/// The target's head draws what the drafter's own would, had its d2t not been shifted: the reading that uses the files' head is named.
TEST(Hypotheses, AReadingThatUsesTheFilesTensorsIsTheLikelier) {
  DraftSpec spec = drawn_spec();
  const DraftCheckpoint checkpoint = drawn_checkpoint(spec, 5);
  TargetTables tables = drawn_target(spec, 6);
  const std::vector<float> rows = to_float(checkpoint.tensors.at("lm_head")).value();
  const std::vector<int32_t> map = spec.d2t;
  tables.head = [rows, map, vocab = static_cast<size_t>(spec.vocab), width = static_cast<size_t>(spec.hidden)](const float* x, int n,
                                                                                                               float* logits) {
    std::fill_n(logits, static_cast<size_t>(n) * vocab, -100.0f);
    for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
      for (size_t d = 0; d < map.size(); ++d) {
        float& sum = logits[r * vocab + static_cast<size_t>(map[d])] = 0;
        for (size_t c = 0; c < width; ++c) sum += x[r * width + c] * rows[d * width + c];
      }
    }
  };
  const Case found = diagnose(
      checkpoint, true_reading(spec),
      [](Reading& r) {
        for (int32_t& target : r.spec.d2t) ++target;
      },
      {}, {}, tables);
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].code, "wrong-d2t") << found.text();
  EXPECT_EQ(found.findings[0].severity, Severity::kError) << found.text();
}

TEST(Sample, LongConversationsAreCutSoThatMoreFitIn) {
  const DraftSpec spec = drawn_spec();
  std::mt19937 random(3);
  std::vector<Conversation> conversations(60);
  for (Conversation& c : conversations) {
    const size_t prompt = 20 + random() % 100, length = prompt + 400;
    c.trace.slots = 1;
    c.trace.hidden = spec.target_hidden;
    c.trace.tokens.assign(length, 1);
    c.trace.states.assign(length * static_cast<size_t>(spec.target_hidden), 0);
    for (size_t t = 0; t < length; ++t) c.trace.mask.push_back(t < prompt ? 0 : 1);
  }
  const DrawnTrace source({{StateSlot::Kind::kBoundary, 1, StateSlot::Norm::kRaw}}, spec.target_hidden, conversations);
  SampleOptions options;
  options.max_tokens = 4096;
  const Sample sample = take_sample(source, spec, options).value();
  EXPECT_EQ(sample.available, 60u);
  EXPECT_GE(sample.conversations.size(), 24u);  // whole ones: 8 or 9
  EXPECT_LE(sample.tokens, 4096);
  for (size_t c = 0; c + 1 < sample.conversations.size(); ++c) {
    const auto& mask = sample.conversations[c].trace.mask;
    EXPECT_GE(std::count(mask.begin(), mask.end(), 1), kLeastAnswer);
  }
  options.max_tokens = 60 * 520;  // enough for all
  EXPECT_EQ(take_sample(source, spec, options).value().rows, 60 * 399);
}

TEST(Hypotheses, DeclaredTapsThatAreNotStoredAreNamed) {
  DraftSpec spec = drawn_spec();
  spec.taps = {1, 3, 6};
  const auto feature = declared_feature(spec, drawn_slots());
  ASSERT_FALSE(feature.ok());
  EXPECT_NE(feature.status().message().find("boundary 3 and boundary 6"), std::string::npos) << feature.status().message();
}

TEST(Hypotheses, UsualTapsAreTheDefaultAndTheIdsCountedOtherwise) {
  std::vector<StateSlot> slots;
  for (const int b : {0, 1, 2, 14, 15, 16, 26, 27, 28}) slots.push_back({StateSlot::Kind::kBoundary, b, StateSlot::Norm::kRaw});
  HypothesisFacts facts;
  facts.slots = slots;
  facts.blocks = 30;
  const auto usual = [&](std::vector<int> declared) {
    Reading base;
    base.spec = drawn_spec();
    base.spec.taps = declared;
    base.feature = declared_feature(base.spec, slots).value();
    std::vector<std::vector<int>> out;
    for (const auto& feature : usual_features(base, facts)) out.push_back(taps_of(feature, slots, facts.blocks).value());
    return out;
  };
  EXPECT_EQ(usual({0, 2, 15}), (std::vector<std::vector<int>>{{2, 15, 27}}));   // 3 was not captured, and nothing is below 0
  EXPECT_EQ(usual({2, 15, 27}), (std::vector<std::vector<int>>{{1, 14, 26}}));  // the default is what is declared
  EXPECT_EQ(usual({1, 14, 26}), (std::vector<std::vector<int>>{{2, 15, 27}}));  // both the default and one higher
  facts.blocks = 0;
  EXPECT_TRUE(usual({0, 2, 15}).empty());
}

TEST(Hypotheses, SlotsWithoutBoundariesAreTakenInTheirOrder) {
  using Kind = StateSlot::Kind;
  using Norm = StateSlot::Norm;
  const std::vector<StateSlot> slots = {{Kind::kAux, 0, Norm::kRaw}, {Kind::kAux, 1, Norm::kRaw}, {Kind::kFinal, 0, Norm::kUnknown}};
  DraftSpec spec = drawn_spec();
  spec.taps = {2, 6};
  const auto feature = declared_feature(spec, slots);
  ASSERT_TRUE(feature.ok());
  EXPECT_EQ(*feature, (std::vector<SlotUse>{{0, false}, {1, false}}));
  EXPECT_FALSE(taps_of(*feature, slots, kDrawnBlocks));
  EXPECT_FALSE(declared_feature(drawn_spec(), slots).ok());  // three taps
}

TEST(Statistics, StudentQuantilesAreThoseOfScipy) {
  // scipy 1.14: stats.t.ppf(p, n)
  const struct {
    double p;
    int n;
    double t;
  } known[] = {{0.975, 1, 12.706205},  {0.975, 2, 4.302653},   {0.975, 5, 2.570582},   {0.975, 30, 2.042272},
               {0.9999, 4, 13.033672}, {0.9999, 10, 5.693820}, {0.9999, 40, 4.094207}, {0.025, 5, -2.570582}};
  for (const auto& k : known) EXPECT_NEAR(student_quantile(k.p, k.n), k.t, 0.01 * std::abs(k.t)) << k.p << " " << k.n;
  EXPECT_NEAR(normal_quantile(0.975), 1.959964, 1e-6);
}

TEST(Statistics, ARatioIsTheRatioOfTheSums) {
  const std::vector<RatioPart> parts = {{1, 2}, {3, 3}, {0, 5}};
  const Interval interval = ratio_interval(parts, 0.95);
  EXPECT_DOUBLE_EQ(interval.value, 0.4);
  EXPECT_LT(interval.low, 0.4);
  EXPECT_GT(interval.high, 0.4);
}

TEST(Statistics, WhatBothShareDoesNotWidenADifference) {
  std::vector<RatioPart> a, b;
  for (int i = 0; i < 20; ++i) {
    a.push_back({2.0 * i + 1, 10});
    b.push_back({2.0 * i, 10});
  }
  const Interval difference = difference_interval(a, b, 0.95);
  EXPECT_NEAR(difference.value, 0.1, 1e-12);
  EXPECT_NEAR(difference.half_width(), 0.0, 1e-12);
  EXPECT_GT(ratio_interval(a, 0.95).half_width(), 0.1);
}

TEST(Statistics, NineteenOfTwentyIntervalsHoldTheTruth) {
  std::mt19937 random(5);
  std::gamma_distribution<double> rate(4.0, 0.1);  // mean 0.4, one for each conversation
  int held = 0;
  constexpr int kTrials = 600;
  for (int t = 0; t < kTrials; ++t) {
    std::vector<RatioPart> parts;
    for (int c = 0; c < 16; ++c) {
      std::poisson_distribution<int> sum(50 * rate(random));
      parts.push_back({static_cast<double>(sum(random)), 50});
    }
    const Interval interval = ratio_interval(parts, 0.95);
    held += interval.low <= 0.4 && 0.4 <= interval.high ? 1 : 0;
  }
  EXPECT_GT(held, kTrials * 0.91);
  EXPECT_LT(held, kTrials * 0.98);
}

}  // namespace
}  // namespace aerie
