// Traces that do not hold a boundary which the drafter declares: the search goes around it, and never accuses what it could not replay.
#include <gtest/gtest.h>

#include "diagnosis.h"

namespace aerie {
namespace {

TEST(StandIns, TheNearestStoredBoundaryThatIsNoTap) {
  DraftSpec spec = drawn_spec();  // 0, 1, 2, 4, 5, 7 and 8 are stored
  spec.taps = {1, 3, 6};
  const auto nearest = nearest_feature(spec, drawn_slots(), kDrawnBlocks);
  ASSERT_TRUE(nearest.ok()) << nearest.status().message();
  EXPECT_EQ(nearest->feature, (std::vector<SlotUse>{{1, false}, {2, false}, {4, false}}));  // 2 for 3, 5 for 6
  ASSERT_EQ(nearest->stand_ins.size(), 2u);
  EXPECT_EQ(stand_in_text(nearest->stand_ins), "boundary 2 stands for boundary 3, boundary 5 stands for boundary 6");

  spec.taps = {1, 4, 7};
  const auto exact = nearest_feature(spec, drawn_slots(), kDrawnBlocks);
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(exact->feature, declared_feature(spec, drawn_slots()).value());
  EXPECT_TRUE(exact->stand_ins.empty());
}

TEST(StandIns, TooFewStatesAreRefused) {
  DraftSpec spec = drawn_spec();
  spec.taps = {1, 4, 7};
  const std::vector<StateSlot> two = {{StateSlot::Kind::kBoundary, 1, StateSlot::Norm::kRaw},
                                      {StateSlot::Kind::kBoundary, 5, StateSlot::Norm::kRaw}};
  EXPECT_FALSE(nearest_feature(spec, two, kDrawnBlocks).ok());
  spec.taps = {1, 5, kFinalNormed};  // 5 is not the last block's
  const auto final = nearest_feature(spec, two, kDrawnBlocks);
  ASSERT_FALSE(final.ok());
  EXPECT_NE(final.status().message().find("boundary 8 was not captured"), std::string::npos) << final.status().message();
}

TEST(StandIns, WrongTapsAreNamedWithoutTheDeclaredState) {
  DraftSpec spec = drawn_spec();
  spec.taps = {0, 1, 4};
  const Case found = diagnose(drawn_checkpoint(spec, 7), true_reading(spec), [](Reading& r) { r.spec.taps = {1, 4, 7}; }, {}, {7});
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].code, "wrong-taps") << found.text();
  EXPECT_EQ(found.findings[0].severity, Severity::kError) << found.text();
  EXPECT_NE(found.findings[0].text.find("works with taps 0,1,4"), std::string::npos) << found.text();
  EXPECT_NE(found.findings[0].text.find("boundary 8 stands for boundary 7, which the trace does not hold"), std::string::npos)
      << found.text();
  EXPECT_NE(found.findings[0].fix.find("in place of 1,4,7"), std::string::npos) << found.text();
}

TEST(StandIns, AHealthyDrafterIsNotAccused) {
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    DrawnOptions options;
    options.seed = seed;
    const DraftSpec spec = drawn_spec();
    const Case found =
        diagnose(drawn_checkpoint(spec, seed), true_reading(spec), [](Reading&) {}, options, {static_cast<int>(seed % 2 == 0 ? 4 : 7)});
    ASSERT_FALSE(found.findings.empty());
    for (const Finding& finding : found.findings) EXPECT_NE(finding.severity, Severity::kError) << found.text();
  }
}

TEST(StandIns, FromFarAwayNothingIsCertain) {
  DraftSpec spec = drawn_spec();
  spec.taps = {0, 1, 4};
  // 7 and 8 are missing: 5 stands for 7, or for 8 from three blocks away.
  const Case found = diagnose(drawn_checkpoint(spec, 7), true_reading(spec), [](Reading& r) { r.spec.taps = {1, 4, 8}; }, {}, {7, 8});
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].code, "wrong-taps") << found.text();
  EXPECT_EQ(found.findings[0].severity, Severity::kWarning) << found.text();
}

}  // namespace
}  // namespace aerie
