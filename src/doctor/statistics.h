// Intervals over conversations. Rows of one conversation are no independent samples, conversations are: every interval here takes the
// conversation as its unit.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace aerie {

/// What one conversation adds to a ratio, such as accepted drafts over cycles.
struct RatioPart {
  double sum = 0, count = 0;
};

struct Interval {
  double value = 0, low = 0, high = 0;

  double half_width() const { return (high - low) / 2; }
  std::string text() const;     // "1.652 [1.601, 1.703]"
  std::string percent() const;  // of a share: "45.8 % [40.7, 50.8]"
};

/// The value that a standard normal stays below with this probability, 0 < p < 1.
double normal_quantile(double p);
/// The same for Student's t. Accurate to 1 % from 4 degrees of freedom and p = 0.9999 on.
double student_quantile(double p, int degrees);

/// sum of sums / sum of counts, with the two-sided interval of the ratio estimator (Cochran, Sampling Techniques, 6.3) at `level`
/// (0.95). Of fewer than two conversations, or without any count, the interval is [value, value] and says nothing.
Interval ratio_interval(std::span<const RatioPart> parts, double level);

/// Ratio of `a` minus ratio of `b`, conversation i of both being the same one: what they share does not widen the interval.
Interval difference_interval(std::span<const RatioPart> a, std::span<const RatioPart> b, double level);

}  // namespace aerie
