// When drafting pays: acceptance against the cost of drafting and of verifying more rows.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace aerie {

/// Seconds (or any unit) of the parts of one cycle. A cycle with K drafts is K draft steps and one forward of the target over K+1 rows.
class CostCurve {
 public:
  /// `verify` holds (rows, cost) for one row and as many more as were measured; between them the cost is interpolated, beyond the last
  /// it goes on with the last slope (never falling). `draft_step` is the cost of one draft; `per_cycle` what every cycle with drafts
  /// costs besides. An error if there is no cost for one row, a row count is repeated, or a cost is not positive.
  static Expected<CostCurve> create(std::vector<std::pair<int, double>> verify, double draft_step, double per_cycle = 0.0);

  double verify(int rows) const;
  /// A cycle with K drafts; K = 0 is plain decoding.
  double cycle(int k) const { return verify(k + 1) + (k > 0 ? k * draft_step_ + per_cycle_ : 0.0); }
  int measured_rows() const { return points_.back().first; }

 private:
  std::vector<std::pair<int, double>> points_;  // by rows
  double draft_step_ = 0, per_cycle_ = 0;
};

/// The acceptance length at which K drafts are as fast as none.
double break_even_length(const CostCurve& costs, int k);

/// 1 + a_0 + a_0 a_1 + ... of the first K conditional acceptances. A step beyond those given repeats the last.
double expected_length(const std::vector<double>& conditional, int k);

/// Tokens per second of a cycle with K drafts that emits `length` tokens.
inline double tokens_per_second(const CostCurve& costs, int k, double length) { return length / costs.cycle(k); }

struct DraftChoice {
  int k = 0;
  double length = 1.0;
  double tokens_per_second = 0.0;
};

/// The fastest K from 0 to `max_k`, the smallest of equals. `conditional` must not be empty unless max_k is 0.
DraftChoice best_draft_tokens(const CostCurve& costs, const std::vector<double>& conditional, int max_k);

/// Parses "1:27.5,2:29,4:33" (rows:milliseconds).
Expected<std::vector<std::pair<int, double>>> parse_verify_costs(std::string_view text);

}  // namespace aerie
