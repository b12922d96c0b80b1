// What the doctor says: sections of facts, and findings ranked by what they cost.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/chart.h"
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
  std::vector<Chart> charts = {};  // for programs too, as "charts" of its data
};

struct Report {
  static constexpr std::string_view kNothingFound = "nothing wrong was found in what was given";

  std::vector<ReportSection> sections;
  std::vector<Finding> findings;
  /// Cycles that accept the draft of each step: replayed, served, as an engine's figures say; beside each other in one chart.
  std::vector<ChartSeries> accepted_by_step;

  void add(ReportSection section) { sections.push_back(std::move(section)); }
  /// A finding that is there already (same code and text) is not repeated.
  void add(const std::vector<Finding>& more);
  /// Findings first, errors before warnings before notes, then the sections.
  std::string text() const;
  nlohmann::json json() const;
  /// The same as text with plots, as a page that needs no network.
  std::string html(std::string_view title) const;

 private:
  /// Those that were added, and what they have in common.
  std::vector<ReportSection> all_sections() const;
};

/// What the flags put in force.
ReportSection describe(const EngineSetup& setup);
/// What a log or page says; `condition` ("cold") is part of its title, or "".
ReportSection describe(const MetricsReading& reading, const std::string& condition);
/// What the acceptance is worth at these costs (milliseconds); adds findings where drafting loses, or another K would win.
ReportSection describe(const CostCurve& costs, const Acceptance& acceptance, std::vector<Finding>& findings);

}  // namespace aerie
