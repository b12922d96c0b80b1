// What the shape of the acceptance figures says before anything is replayed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/engine_metrics.h"
#include "eagle3/finding.h"

namespace aerie {

/// Judges one reading by the signatures of public reports: nothing accepted, a constant number accepted, everything accepted, a poor
/// first draft, a cliff after it, a decay over time, a fall with the batch. `depth` is the most drafts that one verify can accept, if
/// known (otherwise K). Too few figures give a note that says how many are needed, and no more. A healthy reading gives nothing.
std::vector<Finding> judge_acceptance(const MetricsReading& reading, std::optional<int> depth = std::nullopt);

/// Under which condition a reading was made.
struct LabelledReading {
  enum class Kind { kCold, kWarm, kBatch, kContext };
  Kind kind = Kind::kCold;
  int value = 0;  // kBatch: sequences at once; kContext: tokens of context
  MetricsReading reading;
};

/// Parses "cold", "warm", "batch:8" or "context:4096".
Expected<std::pair<LabelledReading::Kind, int>> parse_condition(const std::string& text);

/// Compares readings of one server under different conditions: warm with cold, larger batches with the smallest, longer contexts with the
/// shortest. A difference counts when it is above 10 % of the drafts accepted and three standard errors.
std::vector<Finding> compare_conditions(const std::vector<LabelledReading>& readings);

}  // namespace aerie
