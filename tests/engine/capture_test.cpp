// Captured answers that are drawn from the target's distribution.
#include "engine/capture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/file_io.h"
#include "engine/sampler.h"
#include "engine_fixture.h"
#include "formats/traces.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

TEST(Sampler, DrawsEachTokenAsOftenAsTheSoftmaxSays) {
  const std::vector<float> logits = {1.0f, -2.0f, 3.0f, 2.5f, -std::numeric_limits<float>::infinity(), 0.0f};
  constexpr int kDraws = 20000;
  for (const double temperature : {0.3, 1.0, 2.0}) {
    std::vector<double> expected;
    for (const float logit : logits) expected.push_back(std::exp(static_cast<double>(logit) / temperature));
    const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);
    std::vector<double> found(logits.size(), 0.0);
    for (int i = 0; i < kDraws; ++i) {
      std::vector<float> used = logits;
      // Either the seed or the position makes it another draw.
      const int32_t token = sample_token(used, {temperature, static_cast<uint64_t>(i / 100)}, i % 100);
      ASSERT_GE(token, 0);
      found[static_cast<size_t>(token)] += 1.0 / kDraws;
    }
    for (size_t id = 0; id < logits.size(); ++id) {
      const double p = expected[id] / sum;
      EXPECT_NEAR(found[id], p, 5 * std::sqrt(p * (1 - p) / kDraws)) << "token " << id << " at " << temperature;
    }
    EXPECT_EQ(found[4], 0.0);
  }
}

TEST(Sampler, NothingIsDrawnFromWhatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (std::vector<float> logits : {std::vector<float>{-inf, -inf}, {1.0f, nan}, {nan, 1.0f}, {1.0f, inf}}) {
    EXPECT_EQ(sample_token(logits, {1.0, 1}, 0), -1);
  }
}

class SampledCapture : public testing::Test {
 protected:
  /// Six short answers into a folder of this name.
  std::vector<Trace> captured(const std::string& name, const std::vector<double>& temperatures, uint64_t seed, int slots) {
    const std::vector<Prompt> all = *read_prompts(eval_prompts("gsm8k"));
    CaptureOptions options;
    options.out = folder_ / name;
    options.taps = {2, 15, 27};
    options.max_new_tokens = 16;
    options.limit = 6;
    options.slots = slots;
    options.temperatures = temperatures;
    options.seed = seed;
    const auto done = capture(shared_runtime(), all, options, {});
    EXPECT_TRUE(done.ok()) << done.status().message();
    const auto reader = TraceReader::open(options.out);
    EXPECT_TRUE(reader.ok());
    std::vector<Trace> traces;
    for (const int row : reader->rows()) traces.push_back(*reader->read(row));
    return traces;
  }
  static bool same(const Trace& a, const Trace& b) { return a.tokens == b.tokens && a.mask == b.mask && a.states == b.states; }

  TempFolder folder_;
};

TEST_F(SampledCapture, DependsOnSeedPromptAndPositionAlone) {
  const auto four = captured("four", {0, 0.7, 1}, 5, 4), one = captured("one", {0, 0.7, 1}, 5, 1);
  const auto other = captured("other", {0, 0.7, 1}, 6, 4), greedy = captured("greedy", {0}, 5, 4);
  ASSERT_EQ(four.size(), 6u);
  ASSERT_EQ(one.size(), 6u);
  int moved = 0, drawn = 0;
  for (size_t i = 0; i < four.size(); ++i) {
    EXPECT_TRUE(same(four[i], one[i])) << i;
    EXPECT_TRUE(i % 3 != 0 || same(four[i], greedy[i])) << i;  // every third one is at temperature 0
    moved += same(four[i], other[i]) ? 0 : 1;
    drawn += same(four[i], greedy[i]) ? 0 : 1;
  }
  EXPECT_GE(moved, 2) << "the seed has no influence";
  EXPECT_GE(drawn, 2) << "nothing was drawn";

  // Half of it first: the rest comes out the same.
  std::filesystem::create_directory(folder_ / "half");
  for (const char* name : {"manifest.json", "hs_0.safetensors", "hs_1.safetensors", "hs_4.safetensors"})
    std::filesystem::copy_file((folder_ / "four/") + name, (folder_ / "half/") + name);
  const auto half = captured("half", {0, 0.7, 1}, 5, 3);
  ASSERT_EQ(half.size(), 6u);
  for (size_t i = 0; i < half.size(); ++i) EXPECT_TRUE(same(half[i], four[i])) << i;
}

TEST_F(SampledCapture, TheManifestSaysHowAndAnotherWayIsRefused) {
  CaptureOptions options;
  options.out = folder_ / "traces";
  options.max_new_tokens = 4;
  options.limit = 1;
  options.temperatures = {0.7, 1};
  options.seed = 9;
  const std::vector<Prompt> prompts = *read_prompts(eval_prompts("gsm8k"));
  ASSERT_TRUE(capture(shared_runtime(), prompts, options, {}).ok());
  const TraceManifest manifest = TraceReader::open(options.out)->manifest();
  EXPECT_EQ(manifest.generation.at("decoding"), "sampled");
  EXPECT_EQ(manifest.generation.at("seed"), "9");
  EXPECT_EQ(manifest.sampled_at(), "0.7,1");
  CaptureOptions greedy = options, reseeded = options, hotter = options;
  greedy.temperatures = {0};
  reseeded.seed = 10;
  hotter.temperatures = {0.7, 1.1};
  for (const CaptureOptions& changed : {greedy, reseeded, hotter}) {
    const Status status = capture(shared_runtime(), prompts, changed, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("generation differs"), std::string::npos) << status.message();
  }
  greedy.out = folder_ / "greedy";
  ASSERT_TRUE(capture(shared_runtime(), prompts, greedy, {}).ok());
  const TraceManifest plain = TraceReader::open(greedy.out)->manifest();
  EXPECT_EQ(plain.generation.at("decoding"), "greedy");
  EXPECT_EQ(plain.generation.size(), 3u);  // as ever, so that older folders are gone on with
  EXPECT_EQ(plain.sampled_at(), "");
  for (const std::vector<double>& none : {std::vector<double>{}, {-1.0}, {std::nan("")}}) {
    options.temperatures = none;
    EXPECT_EQ(capture(shared_runtime(), prompts, options, {}).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(Capture, AFolderIsNotGoneOnWithOtherPrompts) {
  const TempFolder folder;
  CaptureOptions options;
  options.out = folder / "traces";
  options.max_new_tokens = 2;
  options.limit = 2;
  std::vector<Prompt> prompts = *read_prompts(eval_prompts("gsm8k"));
  ASSERT_TRUE(capture(shared_runtime(), prompts, options, {}).ok());
  options.limit = 3;
  ASSERT_TRUE(capture(shared_runtime(), prompts, options, {}).ok());
  std::swap(prompts[1], prompts[7]);
  const auto refused = capture(shared_runtime(), prompts, options, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("its row 1 is not an answer to prompt 1"), std::string::npos) << refused.status().message();
  prompts.resize(1);
  EXPECT_FALSE(capture(shared_runtime(), prompts, options, {}).ok());
}

}  // namespace
}  // namespace aerie
