#include "doctor/economics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "formats/printable.h"

namespace aerie {

Expected<CostCurve> CostCurve::create(std::vector<std::pair<int, double>> verify, double draft_step, double per_cycle) {
  std::sort(verify.begin(), verify.end());
  if (verify.empty() || verify.front().first != 1) return invalid_argument("the cost of verifying one row is needed: it is plain decoding");
  for (size_t i = 0; i < verify.size(); ++i) {
    const auto& [rows, cost] = verify[i];
    if (!(cost > 0.0) || !std::isfinite(cost))
      return invalid_argument("the cost of verifying {} rows is {}, expected a positive number", rows, cost);
    if (i > 0 && verify[i - 1].first == rows) return invalid_argument("the cost of verifying {} rows is given twice", rows);
  }
  for (const double cost : {draft_step, per_cycle}) {
    if (!(cost >= 0.0) || !std::isfinite(cost)) return invalid_argument("a cost of {} was given, expected none or a positive one", cost);
  }
  CostCurve out;
  out.points_ = std::move(verify);
  out.draft_step_ = draft_step, out.per_cycle_ = per_cycle;
  return out;
}

double CostCurve::verify(int rows) const {
  const auto after = std::lower_bound(points_.begin(), points_.end(), rows, [](const auto& point, int n) { return point.first < n; });
  if (after == points_.begin()) return points_.front().second;
  const bool beyond = after == points_.end();
  if (beyond && points_.size() == 1) return points_.front().second;
  const auto& [n1, c1] = beyond ? *(after - 1) : *after;
  const auto& [n0, c0] = beyond ? *(after - 2) : *(after - 1);
  const double slope = (c1 - c0) / (n1 - n0);
  return beyond ? c1 + std::max(slope, 0.0) * (rows - n1) : c0 + slope * (rows - n0);
}

double break_even_length(const CostCurve& costs, int k) { return costs.cycle(k) / costs.cycle(0); }

double expected_length(const std::vector<double>& conditional, int k) {
  double length = 1.0, reached = 1.0;
  for (int step = 0; step < k && !conditional.empty(); ++step) {
    reached *= conditional[std::min(static_cast<size_t>(step), conditional.size() - 1)];
    length += reached;
  }
  return length;
}

DraftChoice best_draft_tokens(const CostCurve& costs, const std::vector<double>& conditional, int max_k) {
  DraftChoice best{0, 1.0, tokens_per_second(costs, 0, 1.0)};
  for (int k = 1; k <= max_k; ++k) {
    const double length = expected_length(conditional, k), speed = tokens_per_second(costs, k, length);
    if (speed > best.tokens_per_second) best = {k, length, speed};
  }
  return best;
}

Expected<std::vector<std::pair<int, double>>> parse_verify_costs(std::string_view text) {
  std::vector<std::pair<int, double>> out;
  const std::string given(text);
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view entry = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    int rows = 0;
    double cost = 0;
    const auto [colon, error] = std::from_chars(entry.data(), entry.data() + entry.size(), rows);
    const char* end = entry.data() + entry.size();
    const bool separated = error == std::errc() && colon != end && *colon == ':' && rows >= 1 && rows <= 1'000'000;
    if (!separated || std::from_chars(colon + 1, end, cost).ptr != end || colon + 1 == end) {
      return invalid_argument("{}: expected ROWS:MILLISECONDS entries like 1:27.5,2:29,4:33", printable(given));
    }
    out.emplace_back(rows, cost);
  }
  return out;
}

}  // namespace aerie
