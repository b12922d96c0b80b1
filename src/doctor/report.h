// What the doctor says: sections of facts, and findings ranked by what they cost.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "doctor/economics.h"
#include "doctor/engine_flags.h"
#include "doctor/engine_metrics.h"
#include "eagle3/finding.h"

namespace aerie {

struct ReportSection {
  std::string name;                // key of its data in JSON
  std::string title;               // one line
  std::vector<std::string> lines;  // for people
  nlohmann::json data;             // for programs
};

struct Report {
  std::vector<ReportSection> sections;
  std::vector<Finding> findings;

  void add(ReportSection section) { sections.push_back(std::move(section)); }
  /// A finding that is there already (same code and text) is not repeated.
  void add(const std::vector<Finding>& more);
  /// Findings first, errors before warnings before notes, then the sections.
  std::string text() const;
  nlohmann::json json() const;
};

/// What the flags put in force.
ReportSection describe(const EngineSetup& setup);
/// What a log or page says; `condition` ("cold") is part of its title, or "".
ReportSection describe(const MetricsReading& reading, const std::string& condition);
/// What the acceptance is worth at these costs (milliseconds); adds findings where drafting loses, or another K would win.
ReportSection describe(const CostCurve& costs, const Acceptance& acceptance, std::vector<Finding>& findings);

}  // namespace aerie
