// RoPE's frequencies by hand, and the table that hands them out.
#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace aerie {
namespace {

TEST(Rope, PlainFrequenciesArePowersOfTheBase) {
  const std::vector<float> f = rope_frequencies({8, 10000.0f, false, {}});
  ASSERT_EQ(f.size(), 4u);
  EXPECT_FLOAT_EQ(f[0], 1.0f);
  EXPECT_FLOAT_EQ(f[1], 0.1f);
  EXPECT_FLOAT_EQ(f[3], 0.001f);
}

TEST(Rope, Llama3KeepsShortWavelengthsAndStretchesLongOnes) {
  RopeScaling scaling;
  scaling.kind = RopeScalingKind::kLlama3;
  scaling.factor = 8.0f;
  scaling.original_max_positions = 8192;
  const Rope rope{128, 500000.0f, false, scaling};
  const std::vector<float> plain = rope_frequencies({128, 500000.0f, false, {}}), scaled = rope_frequencies(rope);
  EXPECT_EQ(scaled[0], plain[0]);  // turns 1303 times within the context: more than high_freq_factor
  EXPECT_FLOAT_EQ(scaled[63], plain[63] / 8);
  for (size_t j = 1; j < scaled.size(); ++j) EXPECT_LT(scaled[j], scaled[j - 1]);
}

// The ends of the ramp that a released model's settings give (theta 50000, factor 64, original 4096, betas 32 and 1): 8 and 20.
TEST(Rope, YarnsRampRunsOverDimensions) {
  RopeScaling scaling;
  scaling.kind = RopeScalingKind::kYarn;
  scaling.factor = 64.0f;
  scaling.original_max_positions = 4096;
  const std::vector<float> plain = rope_frequencies({64, 50000.0f, true, {}}), scaled = rope_frequencies({64, 50000.0f, true, scaling});
  for (size_t j = 0; j < 32; ++j) {
    const double stretched = j <= 8 ? 0.0 : j >= 20 ? 1.0 : static_cast<double>(j - 8) / 12.0;
    EXPECT_NEAR(scaled[j] / plain[j], 1.0 - stretched + stretched / 64.0, 1e-6) << j;
  }
}

TEST(Rope, ATableFollowsTheRopeThatIsAskedFor) {
  RopeTable table;
  RopeScaling scaling;
  scaling.kind = RopeScalingKind::kYarn;
  scaling.factor = 4.0f;
  scaling.original_max_positions = 64;
  scaling.magnitude = 2.0f;
  const Rope plain{4, 10000.0f, false, {}}, yarn{4, 10000.0f, false, scaling};
  EXPECT_FLOAT_EQ(table.angles(plain, 3)[0], std::cos(3.0f));
  EXPECT_FLOAT_EQ(table.angles(plain, 3)[2], std::sin(3.0f));
  EXPECT_EQ(table.angles(yarn, 0)[0], 2.0f);
  EXPECT_FLOAT_EQ(table.angles(plain, 1)[3], std::sin(0.01f));
}

}  // namespace
}  // namespace aerie
