// The choice of K: from costs and acceptances given by hand, and in the engine, where it must not change the output.
#include "engine/draft_length.h"

#include <algorithm>
#include <random>

#include "engine_fixture.h"
#include "rapidcheck/gtest.h"

namespace aerie {
namespace {

CycleCosts linear_costs(double draft) {
  CycleCosts costs;
  for (size_t k = 0; k < costs.seconds.size(); ++k) costs.seconds[k] = 0.003 * (1 + draft * static_cast<double>(k));
  return costs;
}

/// Runs `cycles` cycles in which every draft is accepted with the probability `rate`; the seconds that they take, and the tokens.
struct Outcome {
  double seconds = 0, plain_seconds = 0;
  int64_t tokens = 0, drafted = 0;
};
/// A cycle takes what `costs` say, which `length` may have been told otherwise.
Outcome simulate(DraftLength& length, const CycleCosts& costs, int cycles, double rate, uint32_t seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution hit(rate);
  Outcome out;
  for (int i = 0; i < cycles; ++i) {
    const int k = length.choose();
    int accepted = 0;
    while (accepted < k && hit(random)) ++accepted;
    const double seconds = costs.seconds[static_cast<size_t>(k)];
    length.observe(k, accepted, seconds);
    out.seconds += seconds;
    out.tokens += accepted + 1;
    out.drafted += k;
  }
  out.plain_seconds = costs.seconds[0] * static_cast<double>(out.tokens);
  return out;
}
Outcome simulate(DraftLength& length, int cycles, double rate, uint32_t seed) {
  CycleCosts costs;
  for (int k = 0; k <= kMostAutoDrafts; ++k) costs.seconds[static_cast<size_t>(k)] = length.cycle_seconds(k);
  return simulate(length, costs, cycles, rate, seed);
}

TEST(DraftLength, LearnsWhatCyclesReallyTake) {
  // Measured as if drafts were nearly free, they take three quarters of a step, which half of them accepted do not pay for.
  DraftLength length(linear_costs(0.05));
  simulate(length, linear_costs(0.75), 200, 0.5, 1);
  const Outcome dear = simulate(length, linear_costs(0.75), 3000, 0.5, 2);
  EXPECT_LE(dear.seconds, 1.03 * dear.plain_seconds);
  // The other way round: dear when measured, nearly free as it runs.
  DraftLength pessimist(linear_costs(0.75));
  simulate(pessimist, linear_costs(0.05), 3000, 0.9, 3);
  EXPECT_GE(pessimist.choose(), 3);
  // Twice as slow on the whole changes nothing of the choice.
  DraftLength steady(linear_costs(0.1)), slowed(linear_costs(0.1));
  CycleCosts slow = linear_costs(0.1);
  for (double& seconds : slow.seconds) seconds *= 2;
  simulate(steady, 500, 0.8, 4);
  simulate(slowed, slow, 500, 0.8, 4);
  EXPECT_NEAR(steady.choose(), slowed.choose(), 1);
}

TEST(DraftLength, DraftsFarWhereDraftsAreFreeAndAccepted) {
  DraftLength length(linear_costs(0.02));
  simulate(length, 200, 0.95, 1);
  EXPECT_EQ(length.choose(), kMostAutoDrafts);
}

TEST(DraftLength, StopsWhereNothingIsAcceptedAndStaysWithinThreePercentOfPlain) {
  for (const double draft : {0.05, 0.3, 0.6}) {
    DraftLength length(linear_costs(draft));
    simulate(length, 40, 0.0, 1);  // the first drafts, until it knows
    const Outcome out = simulate(length, 2000, 0.0, 2);
    EXPECT_LE(out.seconds, out.plain_seconds * 1.03) << draft;
    EXPECT_GT(out.drafted, 0) << "it must go on trying";
  }
}

TEST(DraftLength, TriesTheDrafterAtOnceAndLeavesItForLittle) {
  for (const double draft : {0.05, 0.3, 0.5, 0.7}) {
    EXPECT_GT(DraftLength(linear_costs(draft)).choose(), 0) << draft << ": two thirds accepted would pay";
  }
  // Where a draft costs half a step and none is accepted, all that is lost is less than a few plain steps.
  DraftLength dear(linear_costs(0.5));
  const Outcome out = simulate(dear, 90, 0.0, 1);
  EXPECT_LT(out.seconds - out.plain_seconds, 4 * dear.cycle_seconds(0));
}

TEST(DraftLength, ComesBackWhenTheDrafterBecomesGood) {
  DraftLength length(linear_costs(0.2));
  simulate(length, 500, 0.0, 1);
  simulate(length, 3000, 0.9, 2);
  EXPECT_GE(length.choose(), 2);
  EXPECT_GT(length.acceptance(1), 0.75);
}

RC_GTEST_PROP(DraftLength, IsNeverFarFromTheBestFixedLength, ()) {
  const double draft = *rc::gen::inRange(5, 60) / 100.0, rate = *rc::gen::inRange(0, 95) / 100.0;
  const uint32_t seed = *rc::gen::arbitrary<uint32_t>();
  double tokens = 0, seconds = 0;
  for (uint32_t run = 0; run < 4; ++run) {
    DraftLength length(linear_costs(draft));
    simulate(length, 300, rate, seed + 2 * run);
    const Outcome out = simulate(length, 3000, rate, seed + 2 * run + 1);
    tokens += static_cast<double>(out.tokens);
    seconds += out.seconds;
  }
  double best = 0, expected = 1, reached = 1;
  for (int k = 0; k <= kMostAutoDrafts; ++k) {
    if (k > 0) expected += reached *= rate;
    best = std::max(best, expected / linear_costs(draft).seconds[static_cast<size_t>(k)]);
  }
  // The estimates waver with the last drafts, so that a neighbour of the best length is chosen now and then.
  RC_ASSERT(tokens / seconds > 0.9 * best);
}

TEST(DraftLength, AcceptanceCountsTheDepthsThatWereReached) {
  DraftLength length(linear_costs(0.1));
  const double prior = length.acceptance(1);
  length.observe(3, 1, length.cycle_seconds(3));  // depth 1 accepted, depth 2 not, depth 3 never reached
  EXPECT_GT(length.acceptance(1), prior);
  EXPECT_LT(length.acceptance(2), length.acceptance(1));
  EXPECT_DOUBLE_EQ(length.acceptance(3), length.acceptance(2));
}

TEST(DraftLength, AutomaticDraftingDoesNotChangeTheOutput) {
  Runtime& runtime = shared_runtime();
  const auto costs = measure_cycle_costs(runtime);
  ASSERT_TRUE(costs.ok()) << costs.status().message();
  for (size_t k = 1; k < costs->seconds.size(); ++k) EXPECT_GE(costs->seconds[k], costs->seconds[k - 1]);
  EXPECT_GT(costs->seconds[0], 0);
  const std::vector<int32_t> prompt = prompt_tokens(runtime, "Count from one to fifty, in words.");
  GenerateOptions options;
  options.max_new_tokens = 330;
  options.ignore_end = true;
  const GenerateResult plain = generate(runtime, prompt, options).value();
  options.draft_tokens = kAutoDraftTokens;
  // Free drafts are always made; dear ones are given up, and tried again after a pause that the drafter's features outlast.
  DraftLength free(linear_costs(0.0)), dear(linear_costs(3.0));
  for (DraftLength* length : {&free, &dear, static_cast<DraftLength*>(nullptr)}) {
    options.draft_length = length;
    const GenerateResult automatic = generate(runtime, prompt, options).value();
    EXPECT_EQ(plain.tokens, automatic.tokens);
    EXPECT_EQ(automatic.draft.k, kAutoDraftTokens);
    EXPECT_EQ(automatic.draft.accepted + automatic.draft.cycles, static_cast<int64_t>(automatic.tokens.size()) - 1);
    if (length == &free) {
      EXPECT_GT(automatic.draft.drafted, automatic.draft.cycles);
    }
    if (length == &dear) {
      EXPECT_GT(automatic.draft.drafted, 0);
      EXPECT_LT(automatic.draft.drafted, automatic.draft.cycles / 10);
    }
  }
}

}  // namespace
}  // namespace aerie
