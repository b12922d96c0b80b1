#include "train/learning_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace aerie::train {
namespace {

constexpr double kLevel = 0.95;
constexpr double kExponentRatio = 1.05;  // of neighbours in the grid
constexpr double kWorth = 0.02;          // of acceptance length; less than this for twice the tokens is no gain
constexpr double kBegun = 1.05;          // below this hardly a draft is accepted yet, and how that goes on shows nothing of what is to come

bool usable(const CurvePoint& p) { return std::isfinite(p.tokens) && std::isfinite(p.length) && p.tokens > 0; }

double student(int degrees) { return student_quantile(0.5 + kLevel / 2, degrees); }

enum class Verdict { kHelps, kDoesNot, kUnknown };
Verdict verdict_of(const Interval& gain) {
  if (gain.low > 0 && gain.value >= kWorth) return Verdict::kHelps;
  return gain.high < kWorth ? Verdict::kDoesNot : Verdict::kUnknown;
}

/// "more data would help"
std::string opening(const char* what, Verdict verdict) {
  return verdict == Verdict::kHelps     ? fmt::format("{} would help", what)
         : verdict == Verdict::kDoesNot ? fmt::format("{} would not help", what)
                                        : fmt::format("whether {} would help cannot be told", what);
}

/// "+0.120 [0.080, 0.160]"
std::string gain_text(const Interval& gain) { return fmt::format("{:+.3f} [{:+.3f}, {:+.3f}]", gain.value, gain.low, gain.high); }

std::string unknown(const char* what, const std::string& why) { return fmt::format("{}: {}", opening(what, Verdict::kUnknown), why); }

constexpr const char *kData = "more data", *kEpochs = "more epochs", *kCaveat = "; the fall of the learning rate is part of that";

std::string judge_data(std::span<const CurvePoint> fresh, double most, const std::optional<Interval>& of_fresh,
                       const std::optional<Interval>& of_repeated) {
  if (const auto curve = LearningCurve::fit(fresh, most)) {
    const double end = fresh.back().tokens;
    const Interval gain = curve->gain(end, 2 * end);
    return fmt::format("{}: by the curve of the {} validations whose tokens were all new, twice as many new tokens as {:.3g} M bring {}{}",
                       opening(kData, verdict_of(gain)), fresh.size(), end / 1e6, gain_text(gain), kCaveat);
  }
  if (!of_fresh) return unknown(kData, fmt::format("{} of the validations had seen new tokens only, two are needed", fresh.size()));
  return fmt::format("{}: while tokens were new each doubling of them brought {}{}{}", opening(kData, verdict_of(*of_fresh)),
                     gain_text(*of_fresh), of_repeated ? ", since then " + gain_text(*of_repeated) : std::string(), kCaveat);
}

std::string judge_epochs(const std::optional<Interval>& fresh, const std::optional<Interval>& repeated) {
  if (!repeated) return unknown(kEpochs, "no validation was made after tokens were repeated");
  return fmt::format("{}: with repeated tokens each doubling of the tokens brought {}{}{}", opening(kEpochs, verdict_of(*repeated)),
                     gain_text(*repeated), fresh ? fmt::format(", with new ones {}", gain_text(*fresh)) : std::string(), kCaveat);
}

}  // namespace

std::optional<LearningCurve> LearningCurve::fit(std::span<const CurvePoint> given, double most) {
  std::vector<CurvePoint> points;
  std::copy_if(given.begin(), given.end(), std::back_inserter(points), usable);
  std::sort(points.begin(), points.end(), [](const CurvePoint& a, const CurvePoint& b) { return a.tokens < b.tokens; });
  size_t different = 0;
  for (size_t i = 0; i < points.size(); ++i) different += i == 0 || points[i].tokens > points[i - 1].tokens ? 1 : 0;
  if (different < kLeastValidations) return std::nullopt;

  LearningCurve out;
  out.count_ = static_cast<double>(points.size());
  out.degrees_ = static_cast<int>(points.size()) - 3;
  out.last_ = points.back().tokens;
  out.most_ = most;
  double mean_length = 0;
  for (const CurvePoint& p : points) mean_length += p.length / out.count_;
  for (double c = kLeastExponent; c < kMostExponent; c *= kExponentRatio) {
    Candidate next;
    next.c = c;
    next.level = mean_length;
    for (const CurvePoint& p : points) next.mean_x += out.x_of(next, p.tokens) / out.count_;
    double together = 0;
    for (const CurvePoint& p : points) {
      const double x = out.x_of(next, p.tokens) - next.mean_x;
      next.spread_x += x * x;
      together += x * (p.length - mean_length);
    }
    if (next.spread_x <= 0) continue;  // numbers of tokens that no double tells apart
    next.slope = together / next.spread_x;
    for (const CurvePoint& p : points) {
      const double off = p.length - mean_length - next.slope * (out.x_of(next, p.tokens) - next.mean_x);
      next.error += off * off;
    }
    out.candidates_.push_back(next);
    if (next.error < out.best().error) out.best_ = out.candidates_.size() - 1;
  }
  if (out.candidates_.empty()) return std::nullopt;
  return out;
}

double LearningCurve::x_of(const Candidate& candidate, double tokens) const { return std::pow(tokens / last_, -candidate.c); }

template <class SlopeWeight>
Interval LearningCurve::interval(double level_weight, const SlopeWeight& slope_weight) const {
  const auto value_of = [&](const Candidate& c) { return level_weight * c.level + slope_weight(c) * c.slope; };
  Interval out;
  out.value = out.low = out.high = value_of(best());
  const double t = student(degrees_), most_error = best().error * (1 + t * t / degrees_);
  for (const Candidate& c : candidates_) {
    if (c.error > most_error) continue;
    const double weight = slope_weight(c), value = value_of(c);
    // The squared error grows by d^2 / variance where the curve is bent so that the value is d away.
    const double variance = level_weight * level_weight / count_ + weight * weight / c.spread_x;
    const double width = std::sqrt(variance * (most_error - c.error));
    out.low = std::min(out.low, value - width);
    out.high = std::max(out.high, value + width);
  }
  return out;
}

Interval LearningCurve::at(double tokens) const {
  Interval out = interval(1, [&](const Candidate& c) { return x_of(c, tokens) - c.mean_x; });
  for (double* end : {&out.value, &out.low, &out.high}) *end = std::clamp(*end, 1.0, most_);
  return out;
}

Interval LearningCurve::gain(double from, double to) const {
  return interval(0, [&](const Candidate& c) { return x_of(c, to) - x_of(c, from); });
}

double LearningCurve::limit() const { return best().level - best().slope * best().mean_x; }

double LearningCurve::scatter() const { return std::sqrt(best().error / degrees_); }

Scatter scatter_of(std::span<const CurvePoint> points) {
  Scatter out;
  if (points.size() < 3) return out;
  double squares = 0;
  for (size_t i = 1; i + 1 < points.size(); ++i) {
    const CurvePoint &before = points[i - 1], &here = points[i], &after = points[i + 1];
    const double right = std::log2(here.tokens / before.tokens) / std::log2(after.tokens / before.tokens), left = 1 - right;
    const double off = here.length - left * before.length - right * after.length;
    squares += off * off / (1 + left * left + right * right);
  }
  out.deviation = std::sqrt(squares / static_cast<double>(points.size() - 2));
  out.degrees = std::max(1, static_cast<int>(points.size() - 2) / 2);
  return out;
}

std::optional<Interval> gain_per_doubling(std::span<const CurvePoint> points, const Scatter& scatter) {
  double count = 0, mean_x = 0, mean_length = 0;
  for (const CurvePoint& p : points) {
    if (!usable(p)) continue;
    ++count;
    mean_x += std::log2(p.tokens);
    mean_length += p.length;
  }
  if (count < 2) return std::nullopt;
  mean_x /= count;
  mean_length /= count;
  double spread = 0, together = 0;
  for (const CurvePoint& p : points) {
    if (!usable(p)) continue;
    const double x = std::log2(p.tokens) - mean_x;
    spread += x * x;
    together += x * (p.length - mean_length);
  }
  if (spread <= 0) return std::nullopt;
  const double value = together / spread, width = student(scatter.degrees) * scatter.deviation / std::sqrt(spread);
  return Interval{value, value - width, value + width};
}

std::vector<Finding> judge_learning_curve(std::span<const CurvePoint> points, double data_tokens, double most) {
  const auto note = [](const char* code, std::string text) { return Finding{Severity::kNote, code, std::move(text), ""}; };
  std::string too_little;
  if (points.size() < kLeastValidations) {
    too_little = fmt::format("{} validation{}, {} are needed", points.size(), points.size() == 1 ? "" : "s", kLeastValidations);
  } else if (points.back().length < kBegun) {
    too_little = fmt::format("hardly a draft is accepted yet (acceptance length {:.3f})", points.back().length);
  }
  if (!too_little.empty()) return {note("more-data", unknown(kData, too_little)), note("more-epochs", unknown(kEpochs, too_little))};
  const auto is_repeated = [&](const CurvePoint& p) { return p.tokens > data_tokens; };
  const size_t new_ones = static_cast<size_t>(std::find_if(points.begin(), points.end(), is_repeated) - points.begin());
  const std::span<const CurvePoint> fresh = points.first(new_ones);
  const Scatter scatter = scatter_of(points);
  std::optional<Interval> of_fresh = gain_per_doubling(fresh, scatter), of_repeated;
  // The gain of repeated tokens begins where the new ones ended.
  if (new_ones < points.size()) of_repeated = gain_per_doubling(points.subspan(new_ones == 0 ? 0 : new_ones - 1), scatter);
  return {note("more-data", judge_data(fresh, most, of_fresh, of_repeated)), note("more-epochs", judge_epochs(of_fresh, of_repeated))};
}

}  // namespace aerie::train
