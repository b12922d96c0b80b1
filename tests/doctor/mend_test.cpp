// What --fix writes: files that say what the search found, or a reason why there are none.
#include "doctor/mend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "diagnosis.h"
#include "eagle3/compare.h"
#include "eagle3/spec_fields.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

constexpr int kDrafts = 3;

struct Fault {
  std::string name;
  std::function<void(Reading&)> inject;
  std::vector<std::string> changes;  // what is mended
};

// clang-format off
const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = {
      {"taps", [](Reading& r) { set_taps(r, {2, 5, 8}); }, {"taps: 2,5,8 against 1,4,7"}},
      {"order", [](Reading& r) { set_taps(r, {7, 4, 1}); }, {"taps: 7,4,1 against 1,4,7"}},
      {"feedback", [](Reading& r) { r.spec.feedback = Feedback::kPreNorm; }, {"feedback: pre-norm against post-norm"}},
      {"residual", [](Reading& r) { r.spec.norm_before_residual = true; }, {"norm_before_residual: true against false"}},
      {"theta", [](Reading& r) { r.spec.rope_theta = 100.0f; }, {"rope_theta: 100 against 10000"}},
      {"d2t",
       [](Reading& r) {
         for (int32_t& target : r.spec.d2t) ++target;
       },
       {"d2t: 40 of 40 entries"}},
      {"stacked",
       [](Reading& r) {
         set_taps(r, {4, 1, 7});
         r.spec.feedback = Feedback::kPreNorm;
       },
       {"taps: 4,1,7 against 1,4,7", "feedback: pre-norm against post-norm"}},
  };
  return all;
}
// clang-format on

Case diagnosed(const std::function<void(Reading&)>& inject, const std::string& dialect = "speculators",
               const std::vector<int>& missing = {}) {
  DraftSpec spec = drawn_spec();
  spec.dialect = dialect;
  DraftCheckpoint checkpoint = drawn_checkpoint(spec, 11);
  return diagnose(checkpoint, true_reading(spec), inject, {}, missing);
}

class WrittenMend : public testing::TestWithParam<size_t> {};

TEST_P(WrittenMend, IsTheDrafterAsItWasTrained) {
  const Fault& fault = faults()[GetParam()];
  const Case found = diagnosed(fault.inject);
  const auto mend = mend_checkpoint(found.given, found.result, found.facts, {}, kDrafts);
  ASSERT_TRUE(mend.ok()) << mend.status().message() << "\n" << found.text();
  EXPECT_EQ(mend->changes, fault.changes) << found.text();
  EXPECT_EQ(mend->format, DraftFormat::kSpeculators);
  const TempFolder folder;
  const Status written = write_mend(*mend, folder / "mended", {});
  ASSERT_TRUE(written.ok()) << written.message();
  const auto read = open_drafter(folder / "mended");
  ASSERT_TRUE(read.ok()) << read.status().message();
  DraftSpec truth = drawn_spec();
  EXPECT_EQ(differing_fields(truth, read->spec), std::vector<std::string>());
  const auto weights = differing_weights(found.given, *read);
  ASSERT_TRUE(weights.ok());
  EXPECT_TRUE(weights->empty());
}

INSTANTIATE_TEST_SUITE_P(Doctor, WrittenMend, testing::Range<size_t>(0, faults().size()),
                         [](const auto& at) { return faults()[at.param].name; });

/// A norm that the declared reading has not, the mended one has: its weights are ones, since the files have none.
TEST(Mend, ANormThatTheFilesDoNotHaveGoesAlong) {
  DraftSpec spec = drawn_spec();
  spec.dialect = "speculators";
  DraftCheckpoint checkpoint = drawn_checkpoint(spec, 11);
  std::vector<float> ones(static_cast<size_t>(spec.feature_width()), 1.0f);
  checkpoint.tensors["input_norm"].data = {reinterpret_cast<const uint8_t*>(ones.data()), ones.size() * sizeof(float)};
  const Case found = diagnose(checkpoint, true_reading(spec), [](Reading& r) { r.spec.feature_norm = FeatureNorm::kNone; }, {});
  DraftCheckpoint without = found.given;
  without.tensors.erase("input_norm");
  const auto mend = mend_checkpoint(without, found.result, found.facts, {}, kDrafts);
  ASSERT_TRUE(mend.ok()) << mend.status().message() << "\n" << found.text();
  EXPECT_EQ(mend->changes, (std::vector<std::string>{"feature_norm: none against concat"}));
  const TempFolder folder;
  ASSERT_TRUE(write_mend(*mend, folder / "mended", {}).ok());
  const auto read = open_drafter(folder / "mended");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(to_float(read->tensors.at("input_norm")).value(), ones);
}

TEST(Mend, IsInTheDialectOfTheFilesWhereThatCanSayIt) {
  const Case found = diagnosed([](Reading& r) { set_taps(r, {7, 4, 1}); }, "specforge");
  const auto mend = mend_checkpoint(found.given, found.result, found.facts, {"LlamaForCausalLM", kDrawnBlocks}, kDrafts);
  ASSERT_TRUE(mend.ok()) << mend.status().message();
  EXPECT_EQ(mend->format, DraftFormat::kSpecForge);
  // llama.cpp's graph has no post-norm feedback, so that a GGUF file could not say it.
  const Case gguf = diagnosed([](Reading& r) { set_taps(r, {7, 4, 1}); }, "gguf");
  const auto other = mend_checkpoint(gguf.given, gguf.result, gguf.facts, {}, kDrafts);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(other->format, DraftFormat::kSpeculators);
}

TEST(Mend, NothingIsWrittenWhereNothingIsNamed) {
  const Case found = diagnosed([](Reading&) {});
  EXPECT_EQ(mend_checkpoint(found.given, found.result, found.facts, {}, kDrafts).status().code(), StatusCode::kNotFound);
}

TEST(Mend, FilesCannotSayHowADrafterIsFed) {
  DraftSpec spec = drawn_spec();
  Reading truth = true_reading(spec);
  truth.token_shift = -1;
  const Case found = diagnose(drawn_checkpoint(spec, 7), truth, [](Reading& r) { r.token_shift = 0; }, {});
  const auto mend = mend_checkpoint(found.given, found.result, found.facts, {}, kDrafts);
  EXPECT_EQ(mend.status().code(), StatusCode::kUnsupported) << found.text();
  EXPECT_NE(mend.status().message().find("train it again"), std::string::npos) << mend.status().message();
}

/// Where a neighbour stood for a declared tap that was not captured, nothing was said of that tap: it stays.
TEST(Mend, ATapThatWasNotCapturedStaysAsDeclared) {
  const Case found = diagnosed([](Reading& r) { set_taps(r, {4, 1, 7}); }, "speculators", {7});
  const auto mend = mend_checkpoint(found.given, found.result, found.facts, {}, kDrafts);
  ASSERT_TRUE(mend.ok()) << mend.status().message() << "\n" << found.text();
  EXPECT_EQ(found.result.rounds.front().base.hypothesis.reading.feature.back(), (SlotUse{5, false}));  // boundary 8 stood for 7
  EXPECT_EQ(mend->changes, (std::vector<std::string>{"taps: 4,1,7 against 1,4,7"}));
}

TEST(Mend, ATracesUnnamedStatesCannotBeWrittenAsTaps) {
  Case found = diagnosed([](Reading& r) { set_taps(r, {7, 4, 1}); });
  for (StateSlot& slot : found.facts.slots) slot = {StateSlot::Kind::kAux, slot.number, StateSlot::Norm::kRaw};
  const auto mend = mend_checkpoint(found.given, found.result, found.facts, {}, kDrafts);
  EXPECT_EQ(mend.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(mend.status().message().find("--slots"), std::string::npos) << mend.status().message();
}

}  // namespace
}  // namespace aerie
