// Acceptance length against tokens trained on: a curve through the validations of a run, and what it says of a longer one.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "doctor/statistics.h"
#include "eagle3/finding.h"

namespace aerie::train {

inline constexpr size_t kLeastValidations = 4;  // the curve has three parameters, and one degree of freedom must be left

/// One validation: tokens seen until then, repeated ones included, and the acceptance length.
struct CurvePoint {
  double tokens = 0, length = 0;
};

/// length(t) = a - b * t^-c by least squares: c from a grid, a and b in closed form. The interval of whatever the curve says is that of the
/// profile likelihood: all curves of this form, with any c of the grid, whose squared error exceeds the least one by no more than Student's
/// t allows at 95 %. It takes the validations to scatter independently and alike around such a curve.
class LearningCurve {
 public:
  static constexpr double kLeastExponent = 0.05, kMostExponent = 3;

  /// Nothing of fewer than kLeastValidations different numbers of tokens. Lengths are in [1, most].
  static std::optional<LearningCurve> fit(std::span<const CurvePoint> points, double most);

  Interval at(double tokens) const;
  /// length(to) - length(from).
  Interval gain(double from, double to) const;

  double limit() const;  // a
  double exponent() const { return best().c; }
  /// Standard deviation of the validations around the curve.
  double scatter() const;

 private:
  /// The best curve of one exponent: level + slope * (x(t) - mean_x), x(t) = (t / last)^-c.
  struct Candidate {
    double c = 0, level = 0, slope = 0, mean_x = 0;
    double spread_x = 0;  // sum of (x - mean_x)^2
    double error = 0;     // sum of squares
  };
  const Candidate& best() const { return candidates_[best_]; }
  double x_of(const Candidate& candidate, double tokens) const;
  /// Of level_weight * level + slope_weight(candidate) * slope.
  template <class SlopeWeight>
  Interval interval(double level_weight, const SlopeWeight& slope_weight) const;

  std::vector<Candidate> candidates_;
  size_t best_ = 0;
  int degrees_ = 0;
  double count_ = 0, last_ = 0, most_ = 0;
};

/// The standard deviation of validations by chance, and the degrees of freedom that it is known with.
struct Scatter {
  double deviation = 0;
  int degrees = 1;
};
/// By how far each validation is off the straight line, over the logarithm of the tokens, between its neighbours: whatever the course of
/// the whole, and wherever it bends. A validation is used by three of these, which leaves half the degrees of freedom. 0 of fewer than
/// three.
Scatter scatter_of(std::span<const CurvePoint> points);

/// What each doubling of the tokens brought over these validations, on average, with its interval at 95 %. Nothing of fewer than two.
std::optional<Interval> gain_per_doubling(std::span<const CurvePoint> points, const Scatter& scatter);

/// A note each on whether more data and whether more epochs would help. The first `data_tokens` tokens are new, all later ones repeated;
/// `points` in order of tokens, each with more than the one before.
std::vector<Finding> judge_learning_curve(std::span<const CurvePoint> points, double data_tokens, double most);

}  // namespace aerie::train
