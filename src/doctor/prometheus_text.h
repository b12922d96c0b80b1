// The text that an engine's /metrics page shows (Prometheus exposition format).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aerie {

struct MetricSample {
  std::string name;
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0;

  /// The label's value, or "".
  std::string label(std::string_view label_name) const;
};

/// One line; nothing if it is a comment or no sample with a finite value. A timestamp after the value is passed over.
std::optional<MetricSample> parse_metric_line(std::string_view line);

}  // namespace aerie
