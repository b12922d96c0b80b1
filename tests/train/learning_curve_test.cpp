// The curve of acceptance length over tokens: that it finds what is there, says how well it knows it, and nothing where it cannot.
#include "train/learning_curve.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <random>

namespace aerie::train {
namespace {

constexpr double kMost = 4;

/// `count` validations, equally far apart, of a - b * (tokens in millions)^-c with normal scatter.
std::vector<CurvePoint> drawn(double a, double b, double c, int count, double scatter, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1);
  std::vector<CurvePoint> out;
  for (int i = 1; i <= count; ++i) {
    const double millions = 0.5 * i;
    out.push_back({1e6 * millions, a - b * std::pow(millions, -c) + scatter * normal(random)});
  }
  return out;
}

TEST(LearningCurve, FindsADrawnPowerLawWithinItsBand) {
  const double a = 3, b = 1, c = 0.4;
  const auto truth = [&](double millions) { return a - b * std::pow(millions, -c); };
  constexpr int kRuns = 200;
  int inside = 0, gain_inside = 0;
  for (unsigned seed = 0; seed < kRuns; ++seed) {
    const auto curve = LearningCurve::fit(drawn(a, b, c, 10, 0.01, seed), kMost);
    ASSERT_TRUE(curve);
    const Interval twice = curve->at(10e6), gain = curve->gain(5e6, 20e6);
    inside += twice.low <= truth(10) && truth(10) <= twice.high ? 1 : 0;
    gain_inside += gain.low <= truth(20) - truth(5) && truth(20) - truth(5) <= gain.high ? 1 : 0;
  }
  // 95 % of them, give or take three standard deviations of a count.
  EXPECT_GE(inside, 180);
  EXPECT_GE(gain_inside, 180);
  EXPECT_LT(inside, kRuns) << "a band that is never missed is too wide";
}

TEST(LearningCurve, WithoutScatterItIsTheCurveItself) {
  const auto curve = LearningCurve::fit(drawn(3, 1, 0.4, 10, 0, 1), kMost);
  ASSERT_TRUE(curve);
  EXPECT_NEAR(curve->at(20e6).value, 3 - std::pow(20, -0.4), 0.005);
  EXPECT_NEAR(curve->exponent(), 0.4, 0.02);
  EXPECT_NEAR(curve->limit(), 3, 0.05);
  EXPECT_LT(curve->scatter(), 1e-3);
}

TEST(LearningCurve, AFlatOneHasNoGain) {
  for (const double scatter : {0.0, 0.001}) {
    const std::vector<CurvePoint> points = drawn(2, 0, 1, 10, scatter, 3);
    const auto curve = LearningCurve::fit(points, kMost);
    ASSERT_TRUE(curve);
    const Interval gain = curve->gain(5e6, 10e6);
    EXPECT_NEAR(gain.value, 0, 0.005);
    EXPECT_LE(gain.low, 0);
    EXPECT_GE(gain.high, 0);
    const auto judged = judge_learning_curve(points, 1e9, kMost);
    EXPECT_EQ(judged[0].text.find("more data would not help"), 0u) << judged[0].text;
  }
}

TEST(LearningCurve, OfTooLittleNothingIsSaid) {
  const std::vector<CurvePoint> points = drawn(3, 1, 0.4, 4, 0.01, 1);
  EXPECT_TRUE(LearningCurve::fit(points, kMost));
  EXPECT_FALSE(LearningCurve::fit(std::span(points).first(3), kMost));
  EXPECT_FALSE(LearningCurve::fit({}, kMost));
  std::vector<CurvePoint> same = points;  // at one number of tokens
  for (CurvePoint& p : same) p.tokens = 1e6;
  EXPECT_FALSE(LearningCurve::fit(same, kMost));
  EXPECT_FALSE(gain_per_doubling(std::span(points).first(1), {0.01, 1}));
  EXPECT_FALSE(gain_per_doubling(same, {0.01, 1}));
  for (const auto& little : {std::vector(points.begin(), points.begin() + 3), drawn(1.003, 0, 1, 10, 0.001, 1)}) {
    for (const Finding& finding : judge_learning_curve(little, 1e9, kMost))
      EXPECT_NE(finding.text.find("cannot be told"), std::string::npos) << finding.text;
  }
}

TEST(LearningCurve, GainPerDoublingIsTheSlopeOverTheLogarithm) {
  const std::vector<CurvePoint> points = {{1e6, 1.5}, {2e6, 1.7}, {4e6, 1.9}};
  const auto gain = gain_per_doubling(points, {0.01, 5});
  ASSERT_TRUE(gain);
  EXPECT_NEAR(gain->value, 0.2, 1e-12);
  EXPECT_NEAR(gain->half_width(), 2.5706 * 0.01 / std::sqrt(2.0), 1e-4);  // Student's t of 5 degrees; the logarithms are -1, 0 and 1
}

TEST(LearningCurve, ScatterIsThatOfTheValidationsNotOfTheirCourse) {
  EXPECT_LT(scatter_of(drawn(3, 1, 0.4, 12, 0, 1)).deviation, 0.025);
  double sum = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::vector<CurvePoint> points = drawn(2, 0, 1, 12, 0.1, seed);
    for (CurvePoint& p : points) p.length += p.tokens < 3e6 ? 0.2 * std::log2(p.tokens / 3e6) : 0.0;  // bends in the middle
    sum += scatter_of(points).deviation / 200;
  }
  EXPECT_NEAR(sum, 0.1, 0.01);
  EXPECT_EQ(scatter_of(drawn(3, 1, 0.4, 12, 0, 1)).degrees, 5);
  EXPECT_EQ(scatter_of(drawn(3, 1, 0.4, 2, 1, 1)).deviation, 0);
}

TEST(LearningCurve, SaysWhetherDataOrEpochsWouldHelp) {
  const auto judge = [](double fresh_slope, double repeated_slope, double data_tokens) {
    std::vector<CurvePoint> points;  // straight over log2 of the tokens, with a bend where they begin to repeat
    for (int i = 1; i <= 12; ++i) {
      const double tokens = 5e5 * i, bend = std::log2(data_tokens);
      const double x = std::log2(tokens) - bend;
      points.push_back({tokens, 2 + (x < 0 ? fresh_slope : repeated_slope) * x + (i % 2 == 0 ? 0.0005 : -0.0005)});
    }
    return judge_learning_curve(points, data_tokens, kMost);
  };
  const auto begins = [](const Finding& finding, const std::string& text) {
    return finding.text.starts_with(text) ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << finding.text;
  };
  // All of one epoch.
  auto said = judge(0.2, 0.2, 6e6);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0].code, "more-data");
  EXPECT_EQ(said[1].code, "more-epochs");
  EXPECT_TRUE(begins(said[0], "more data would help"));
  EXPECT_TRUE(begins(said[1], "whether more epochs would help cannot be told"));
  // Two epochs: repeated tokens bring nothing, or as much.
  said = judge(0.2, 0, 3e6);
  EXPECT_TRUE(begins(said[0], "more data would help"));
  EXPECT_TRUE(begins(said[1], "more epochs would not help"));
  said = judge(0.2, 0.2, 3e6);
  EXPECT_TRUE(begins(said[1], "more epochs would help"));
  // Too few validations of the first epoch for a curve, and only one.
  EXPECT_TRUE(begins(judge(0.2, 0.2, 1e6)[0], "more data would help"));
  EXPECT_TRUE(begins(judge(0.2, 0.2, 5e5)[0], "whether more data would help cannot be told"));
}

/// Whatever the validations: a number, and the interval around it.
RC_GTEST_PROP(LearningCurve, TheBandContainsTheFitAndIsANumber, ()) {
  const auto count = *rc::gen::inRange<size_t>(0, 14);
  std::vector<CurvePoint> points;
  double tokens = 0;
  for (size_t i = 0; i < count; ++i) {
    tokens += *rc::gen::element(1.0, 512.0, 1e5, 3e6, 1e9);
    points.push_back({tokens, *rc::gen::element(1.0, 1.0001, 1.7, 2.0, 2.5, 4.0)});
  }
  const auto good = [](const Interval& i) {
    return std::isfinite(i.value) && std::isfinite(i.low) && std::isfinite(i.high) && i.low <= i.value && i.value <= i.high;
  };
  if (const auto curve = LearningCurve::fit(points, kMost)) {
    for (const double times : {0.1, 1.0, 2.0, 4.0}) {
      const Interval at = curve->at(times * tokens);
      RC_ASSERT(good(at) && at.low >= 1 && at.high <= kMost);
      RC_ASSERT(good(curve->gain(tokens, times * tokens)));
    }
    RC_ASSERT(std::isfinite(curve->scatter()) && std::isfinite(curve->limit()));
  }
  if (const auto gain = gain_per_doubling(points, scatter_of(points))) RC_ASSERT(good(*gain));
  for (const Finding& finding : judge_learning_curve(points, *rc::gen::element(0.0, 1e5, 1e7), kMost)) {
    RC_ASSERT(finding.text.find("nan") == std::string::npos);
    RC_ASSERT(finding.text.find("inf") == std::string::npos);
  }
}

}  // namespace
}  // namespace aerie::train
