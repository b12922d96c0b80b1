#include "eagle3/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "eagle3/spec_fields.h"

namespace aerie {
namespace {

constexpr double kRounded = 0.05;

Expected<double> relative_difference(const TensorView& a, const TensorView& b) {
  AERIE_ASSIGN(const std::vector<float> x, to_float(a));
  AERIE_ASSIGN(const std::vector<float> y, to_float(b));
  if (x.size() != y.size()) return std::numeric_limits<double>::infinity();
  // Bytes, so that -0 and NaN are compared too.
  if (std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0) return 0.0;
  double difference = 0, length = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += std::pow(static_cast<double>(x[i]) - y[i], 2.0);
    length += std::pow(static_cast<double>(x[i]), 2.0);
  }
  // Of zeros that differ in their signs alone the square is nothing, and they differ all the same.
  const double out = std::max(std::sqrt(difference / length), std::numeric_limits<double>::min());
  return std::isfinite(out) ? out : std::numeric_limits<double>::infinity();
}

}  // namespace

Expected<std::vector<WeightDifference>> differing_weights(const DraftCheckpoint& a, const DraftCheckpoint& b) {
  std::vector<WeightDifference> out;
  for (const auto& [name, tensor] : a.tensors) {
    const auto other = b.tensors.find(name);
    double relative = std::numeric_limits<double>::infinity();
    if (other != b.tensors.end()) {
      AERIE_ASSIGN(relative, relative_difference(tensor, other->second));
    }
    if (relative > 0.0) out.push_back({name, relative});
  }
  for (const auto& [name, tensor] : b.tensors) {
    if (a.tensors.count(name) == 0) out.push_back({name, std::numeric_limits<double>::infinity()});
  }
  return out;
}

Expected<std::vector<Finding>> source_findings(const DraftCheckpoint& given, const DraftCheckpoint& source) {
  std::vector<Finding> out;
  for (const std::string& difference : differing_fields(given.spec, source.spec)) {
    const bool positions = difference.rfind("max_positions:", 0) == 0;
    out.push_back({positions ? Severity::kWarning : Severity::kError, "differs-from-source",
                   fmt::format("another forward than the source's, {}", difference),
                   "state it as the source does, or convert the source anew"});
  }
  AERIE_ASSIGN(std::vector<WeightDifference> weights, differing_weights(source, given));
  if (weights.empty()) return out;
  std::stable_sort(weights.begin(), weights.end(), [](const auto& a, const auto& b) { return a.relative > b.relative; });
  const bool rounded = weights.front().relative <= kRounded;
  out.push_back({rounded ? Severity::kNote : Severity::kError, rounded ? "weights-rounded" : "weights-differ",
                 fmt::format("{} tensor{} hold{} other values than the source's, {} by {}", weights.size(), weights.size() == 1 ? "" : "s",
                             weights.size() == 1 ? "s" : "", weights.front().name,
                             std::isfinite(weights.front().relative) ? fmt::format("{:.2f} %", 100.0 * weights.front().relative)
                                                                     : std::string("more than can be compared")),
                 ""});
  return out;
}

}  // namespace aerie
