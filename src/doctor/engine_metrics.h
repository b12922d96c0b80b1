// What an engine says of its acceptance: log lines, the metrics page, and the figures of single requests.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "doctor/acceptance.h"
#include "eagle3/engines/engine_version.h"
#include "eagle3/finding.h"

namespace aerie {

/// One line of a log that covers a window of time, or one request.
struct MetricWindow {
  double length = 1.0;  // tokens per verify, bonus token included
  int running = 0;      // sequences that were served at once; 0: not said
  double verifies = 0;  // 0: not said
};

struct MetricsReading {
  Acceptance acceptance;
  std::string source;                 // "37 log lines", "metrics page", "3 requests"
  std::string definition;             // the definitions that were assumed, in words
  std::vector<MetricWindow> windows;  // in the order of the text
  std::vector<int> captured_layers;   // as a log states them, or empty
  std::vector<Finding> findings;      // of the reading itself: contradictions with the version, faked acceptance
};

/// Reads whatever of the engine's acceptance stands in `text`: JSON of requests is preferred to a metrics page, and that to log lines.
/// `k` is what the flags put in force, if known. kNotFound when nothing of this engine's acceptance is there; kCorrupt for JSON that
/// breaks off. Figures of a version are read by the definitions of that version; where they contradict it, a finding says so.
Expected<MetricsReading> read_engine_metrics(const EngineVersion& engine, std::string_view text, std::optional<int> k = std::nullopt);

}  // namespace aerie
