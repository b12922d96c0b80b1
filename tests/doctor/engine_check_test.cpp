#include "doctor/engine_check.h"

#include <gtest/gtest.h>

#include "diagnosis.h"
#include "emulated_engine.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

std::string text(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& f : findings) out += std::string(severity_name(f.severity)) + " " + f.code + ": " + f.text + "\n";
  return out;
}

TEST(EngineCheck, AnEngineThatDoesRightIsNotAccused) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    DraftSpec spec = drawn_spec();
    spec.feedback = seed % 2 == 0 ? Feedback::kPreNorm : Feedback::kPostNorm;
    spec.feature_norm = seed % 3 == 0 ? FeatureNorm::kNone : FeatureNorm::kConcat;
    const Reading reading = true_reading(spec);
    for (const int offset : {0, 1}) {
      EmulatedEngine engine{.reading = reading, .position_offset = offset};
      EngineComparison comparison;
      const auto findings = diagnose_engine(drawn_checkpoint(spec, seed), reading, engine, true, {}, &comparison);
      ASSERT_FALSE(findings.empty());
      for (const Finding& finding : findings) EXPECT_EQ(finding.severity, Severity::kNote) << text(findings);
      EXPECT_EQ(findings.back().code, "engine-as-replayed") << text(findings);
      EXPECT_EQ(comparison.stages.size(), 7u);
      for (const EngineStage& stage : comparison.stages) EXPECT_EQ(stage.share(), 1.0) << stage.name;
    }
  }
}

TEST(EngineCheck, WithoutStatesTheForwardIsStillCompared) {
  const DraftSpec spec = drawn_spec();
  const Reading reading = true_reading(spec);
  const auto fine = diagnose_engine(drawn_checkpoint(spec, 1), reading, {.reading = reading}, false);
  EXPECT_EQ(fine.back().code, "engine-as-replayed") << text(fine);
  EXPECT_NE(fine.back().fix.find("--traces"), std::string::npos);
  EmulatedEngine wrong{.reading = reading};
  wrong.reading.spec.feedback = Feedback::kPreNorm;
  const auto found = diagnose_engine(drawn_checkpoint(spec, 1), reading, wrong, false);
  EXPECT_EQ(found.front().code, "engine-feedback") << text(found);
}

TEST(EngineCheck, RequestsFindTheirConversations) {
  ThreadPool pool(1);
  const DraftSpec spec = drawn_spec();
  const Reading reading = true_reading(spec);
  DrawnOptions options;
  options.conversations = 5;
  const auto source = draw_trace(drawn_checkpoint(spec, 1), reading, options, pool);
  const TempFolder folder;
  auto writer = EngineTraceWriter::open(folder / "trace", {"engine 1", "drafter"});
  ASSERT_TRUE(writer.ok());
  for (const int number : {3, 1}) {
    EngineRequest request;
    const Trace trace = source->read(static_cast<size_t>(number))->trace;
    request.tokens.assign(trace.tokens.begin(), trace.tokens.end() - number);
    request.prompt = 4;
    const Status written = writer->write(request);
    ASSERT_TRUE(written.ok()) << written.message();
  }
  EngineRequest stranger;
  stranger.tokens = {1, 1, 1, 1, 1};
  stranger.prompt = 4;
  ASSERT_TRUE(writer->write(stranger).ok());
  const auto reader = EngineTraceReader::open(folder / "trace");
  ASSERT_TRUE(reader.ok());
  const auto cases = read_engine_cases(*reader, source.get());
  ASSERT_TRUE(cases.ok());
  ASSERT_EQ(cases->size(), 3u);
  ASSERT_TRUE((*cases)[0].stored && (*cases)[1].stored);
  EXPECT_EQ((*cases)[0].stored->trace.tokens, source->read(3)->trace.tokens);
  EXPECT_EQ((*cases)[0].common, 41u);
  EXPECT_EQ((*cases)[1].stored->trace.tokens, source->read(1)->trace.tokens);
  EXPECT_FALSE((*cases)[2].stored);
}

}  // namespace
}  // namespace aerie
