// An engine's reading of the files, replayed as one more hypothesis.
#include "doctor/served_check.h"

#include <gtest/gtest.h>

#include "diagnosis.h"
#include "eagle3/dialects/speculators.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

/// What is said of how `engine` serves a drafter of the speculators dialect with post-norm feedback, whose text was written by `feedback`.
std::vector<Finding> served_by(const std::string& engine, Feedback feedback, std::vector<int> missing = {}) {
  DraftSpec spec = drawn_spec();
  spec.dialect = "speculators";
  const DraftCheckpoint checkpoint = drawn_checkpoint(spec, 11);
  const TempFolder folder;
  const Status written = speculators::save_checkpoint(folder / "drafter", spec, checkpoint.tensors);
  EXPECT_TRUE(written.ok()) << written.message();
  Reading truth = true_reading(spec);
  truth.spec.feedback = feedback;
  std::vector<Finding> out;
  diagnose(
      checkpoint, truth, [](Reading& r) { r.spec.feedback = Feedback::kPostNorm; }, {}, missing, {},
      [&](ReadingScorer& scorer, const Case& found) {
        const auto raw = RawCheckpoint::open(folder / "drafter");
        const auto version = parse_engine(engine);
        ASSERT_TRUE(raw.ok() && version.ok());
        const Judged& base = found.result.rounds.front().base;
        const auto findings = replay_served(*raw, *version, "LlamaForCausalLM", base.hypothesis.reading, found.facts, scorer, base, 3);
        out = findings;
      });
  return out;
}

const Finding* find(const std::vector<Finding>& findings, const std::string& code) {
  const auto at = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.code == code; });
  return at == findings.end() ? nullptr : &*at;
}

std::string text(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& f : findings) out += f.code + ": " + f.text + "\n";
  return out;
}

TEST(ServedCheck, WhatAnOldReleaseDoesNotReadCostsWhatTheReplaySays) {
  const auto findings = served_by("vllm:0.24:v1", Feedback::kPostNorm);
  const Finding* otherwise = find(findings, "served-otherwise");
  ASSERT_NE(otherwise, nullptr) << text(findings);
  EXPECT_EQ(otherwise->severity, Severity::kError);
  EXPECT_NE(otherwise->text.find("feedback pre-norm in place of post-norm"), std::string::npos) << otherwise->text;
  EXPECT_NE(find(findings, "flag-ignored"), nullptr) << text(findings);
}

TEST(ServedCheck, ANewReleaseServesAsDeclared) {
  const auto findings = served_by("vllm:0.33:v2", Feedback::kPostNorm);
  EXPECT_NE(find(findings, "served-as-declared"), nullptr) << text(findings);
  for (const Finding& f : findings) EXPECT_EQ(f.severity, Severity::kNote) << f.text;
}

/// Where a neighbour stands for a state that was not captured the same is said, but not for certain.
TEST(ServedCheck, WithoutTheVeryStatesNothingIsCertain) {
  const auto findings = served_by("vllm:0.24:v1", Feedback::kPostNorm, {7});
  const Finding* otherwise = find(findings, "served-otherwise");
  ASSERT_NE(otherwise, nullptr) << text(findings);
  EXPECT_EQ(otherwise->severity, Severity::kWarning) << otherwise->text;
  EXPECT_NE(otherwise->text.find("which the trace does not hold"), std::string::npos) << otherwise->text;
  // Boundaries 7 and 8 both missing: 5 would have to stand for one of them and 4, a tap, for none.
  const auto far = served_by("vllm:0.24:v1", Feedback::kPostNorm, {4, 5, 7, 8});
  EXPECT_EQ(find(far, "served-otherwise"), nullptr) << text(far);
  EXPECT_NE(find(far, "served-not-replayed"), nullptr) << text(far);
}

/// The files declare post-norm feedback, the drafter was trained with the other: the engine that ignores the flag does better.
TEST(ServedCheck, AnEngineThatIgnoresAWrongFlagDoesBetter) {
  const auto findings = served_by("vllm:0.24:v1", Feedback::kPreNorm);
  ASSERT_NE(find(findings, "declared-otherwise"), nullptr) << text(findings);
}

TEST(ServedCheck, ARefusalIsSaidAndNothingReplayed) {
  const auto findings = served_by("sglang:0.5.23", Feedback::kPostNorm);
  ASSERT_NE(find(findings, "speculators-config"), nullptr) << text(findings);
  EXPECT_EQ(find(findings, "served-otherwise"), nullptr) << text(findings);
  EXPECT_EQ(find(findings, "served-as-declared"), nullptr) << text(findings);
}

TEST(ServedCheck, WhatIsNotKnownIsNotGuessed) {
  const auto findings = served_by("tensorrt-llm", Feedback::kPostNorm);
  ASSERT_NE(find(findings, "served-not-replayed"), nullptr) << text(findings);
  EXPECT_EQ(find(findings, "served-otherwise"), nullptr) << text(findings);
}

}  // namespace
}  // namespace aerie
