// The test that the project exists for: what the engine accepts, cycle by cycle, is exactly what replaying the captured states
// predicts. If they differ, then training, capture, replay and serving are no longer one system.
#include "eagle3/replay.h"
#include "engine/capture.h"
#include "engine_fixture.h"
#include "formats/traces.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

class Agreement : public testing::Test {
 protected:
  TempFolder folder_;
};

TEST_F(Agreement, EngineAcceptsWhatReplayPredictsCycleByCycle) {
  Runtime& runtime = shared_runtime();
  const Drafter& drafter = *runtime.drafter();
  // Held-out prompts, some with a second turn, captured many at a time.
  std::vector<Prompt> prompts;
  for (const char* name : {"mt_bench", "gsm8k", "humaneval"}) {
    const std::vector<Prompt> set = *read_prompts(eval_prompts(name));
    prompts.insert(prompts.end(), set.begin(), set.begin() + 6);
  }
  CaptureOptions options;
  options.out = folder_.path();
  options.taps = drafter.spec().taps;
  options.max_new_tokens = 48;
  options.max_length = 400;
  options.slots = 7;
  const auto captured = capture(runtime, prompts, options, {});
  ASSERT_TRUE(captured.ok()) << captured.status().message();
  const auto reader = TraceReader::open(folder_.path());
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  ASSERT_GT(reader->rows().size(), 12u);

  int64_t accepted = 0, answers = 0;
  for (const int row : reader->rows()) {
    const auto trace = reader->read(row);
    ASSERT_TRUE(trace.ok()) << trace.status().message();
    const auto features = select_features(drafter.spec(), reader->manifest(), *trace);
    ASSERT_TRUE(features.ok());
    for (const int k : {1, 3, 6}) {
      ReplayOptions replay_options;
      replay_options.steps = k;
      const auto replay = replay_trace(drafter, runtime.draft_ops(), {trace->tokens, trace->mask, *features}, replay_options);
      ASSERT_TRUE(replay.ok()) << replay.status().message();
      for (const AnswerWalk& walk : replay->walks) {
        const std::vector<int32_t> prompt(trace->tokens.begin(), trace->tokens.begin() + walk.answer.first);
        const std::vector<int32_t> answer(trace->tokens.begin() + walk.answer.first, trace->tokens.begin() + walk.answer.last + 1);
        const GenerateResult served = run(runtime, prompt, static_cast<int>(answer.size()), k, 100);
        // A conversation generated among others has the tokens that it has alone.
        ASSERT_EQ(served.tokens, answer) << "row " << row << " k " << k;
        ASSERT_EQ(served.draft.accepted_per_cycle, walk.accepted) << "row " << row << " k " << k;
        accepted += served.draft.accepted;
        ++answers;
      }
    }
  }
  EXPECT_GT(answers, 50);
  EXPECT_GT(accepted, 200);  // agreement on nothing accepted would prove nothing
}

TEST_F(Agreement, CaptureGoesOnWhereItWasInterrupted) {
  Runtime& runtime = shared_runtime();
  const std::vector<Prompt> all = *read_prompts(eval_prompts("gsm8k"));
  const std::vector<Prompt> prompts(all.begin(), all.begin() + 9);
  CaptureOptions options;
  options.taps = {2, 15, 27};
  options.max_new_tokens = 24;
  options.slots = 3;
  options.out = folder_ / "whole";
  ASSERT_TRUE(capture(runtime, prompts, options, {}).ok());

  // Interrupted after four conversations, then continued with another number of slots.
  options.out = folder_ / "parts";
  std::atomic<bool> cancel{false};
  options.cancel = &cancel;
  const auto interrupted = capture(runtime, prompts, options, [&](const CaptureProgress& p) { cancel = p.done >= 4; });
  ASSERT_EQ(interrupted.status().code(), StatusCode::kCancelled);
  options.cancel = nullptr;
  options.slots = 5;
  const auto continued = capture(runtime, prompts, options, {});
  ASSERT_TRUE(continued.ok()) << continued.status().message();
  EXPECT_EQ(continued->done, 9);

  const auto whole = *TraceReader::open(folder_ / "whole"), parts = *TraceReader::open(folder_ / "parts");
  ASSERT_EQ(whole.rows(), parts.rows());
  for (const int row : whole.rows()) {
    const Trace a = *whole.read(row), b = *parts.read(row);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.mask, b.mask);
    EXPECT_EQ(a.states, b.states);
  }

  // Other taps do not mix into the same folder.
  options.taps = {1, 15, 27};
  const auto mixed = capture(runtime, prompts, options, {});
  ASSERT_FALSE(mixed.ok());
  EXPECT_NE(mixed.status().message().find("taps"), std::string::npos) << mixed.status().message();
}

}  // namespace
}  // namespace aerie
