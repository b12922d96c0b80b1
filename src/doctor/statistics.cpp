#include "doctor/statistics.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

namespace aerie {
namespace {

double total(std::span<const RatioPart> parts, double RatioPart::*member) {
  double out = 0;
  for (const RatioPart& part : parts) out += part.*member;
  return out;
}

double ratio(std::span<const RatioPart> parts) {
  const double count = total(parts, &RatioPart::count);
  return count > 0 ? total(parts, &RatioPart::sum) / count : 0.0;
}

/// How far conversation i pulls the ratio from its value; these add up to 0.
std::vector<double> pulls(std::span<const RatioPart> parts) {
  const double count = total(parts, &RatioPart::count), value = ratio(parts);
  std::vector<double> out;
  for (const RatioPart& part : parts) out.push_back(count > 0 ? (part.sum - value * part.count) / count : 0.0);
  return out;
}

Interval around(double value, const std::vector<double>& pulls, double level) {
  const size_t n = pulls.size();
  if (n < 2) return {value, value, value};
  double squares = 0;
  for (const double pull : pulls) squares += pull * pull;
  const double error = std::sqrt(squares * static_cast<double>(n) / static_cast<double>(n - 1));
  const double width = student_quantile(0.5 + level / 2, static_cast<int>(n) - 1) * error;
  return {value, value - width, value + width};
}

}  // namespace

std::string Interval::text() const { return fmt::format("{:.3f} [{:.3f}, {:.3f}]", value, low, high); }
std::string Interval::percent() const { return fmt::format("{:.1f} % [{:.1f}, {:.1f}]", 100 * value, 100 * low, 100 * high); }

double normal_quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

double student_quantile(double p, int degrees) {
  // Hill, Algorithm 396 (Communications of the ACM 13, 1970), for the tail 2 (1 - p) of both sides.
  const double n = degrees, tail = 2 * std::min(p, 1 - p), sign = p < 0.5 ? -1 : 1;
  const double pi = 3.14159265358979323846;
  if (degrees == 1) return sign / std::tan(tail * pi / 2);
  if (degrees == 2) return sign * std::sqrt(2 / (tail * (2 - tail)) - 2);
  const double a = 1 / (n - 0.5), b = 48 / (a * a);
  double c = ((20700 * a / b - 98) * a - 16) * a + 96.36;
  const double d = ((94.5 / (b + c) - 3) / b + 1) * std::sqrt(a * pi / 2) * n;
  double y = std::pow(d * tail, 2 / n);
  if (y > 0.05 + a) {
    const double x = normal_quantile(tail / 2);
    y = x * x;
    if (degrees < 5) c += 0.3 * (n - 4.5) * (x + 0.6);
    c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c;
    y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x;
    y = a * y * y;
    y = std::expm1(y);
  } else {
    y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (n + 1) / (n + 2) + 1 / y;
  }
  return sign * std::sqrt(n * y);
}

Interval ratio_interval(std::span<const RatioPart> parts, double level) { return around(ratio(parts), pulls(parts), level); }

Interval difference_interval(std::span<const RatioPart> a, std::span<const RatioPart> b, double level) {
  std::vector<double> difference = pulls(a);
  const std::vector<double> other = pulls(b);
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= other[i];
  return around(ratio(a) - ratio(b), difference, level);
}

}  // namespace aerie
