// A plot as data: what --json gives programs, and what the HTML report draws.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/statistics.h"

namespace aerie {

struct ChartSeries {
  std::string name;
  std::vector<std::optional<Interval>> points;  // one for each label of the chart, as far as they go; nothing where nothing is known
};

/// A series of figures that are known without an interval.
ChartSeries exact_series(const std::string& name, std::span<const double> values);

/// Values at labels. An interval whose ends are its value is drawn without whiskers, or without a band.
struct Chart {
  std::string name;   // key in JSON: "accepted_by_step"
  std::string title;  // what is plotted
  std::vector<std::string> labels;
  std::vector<ChartSeries> series;
  bool percent = false;   // the values are shares
  bool sideways = false;  // labels are long names: a row each, with the values along it
  bool curve = false;     // labels follow each other along one axis: a line for each series; those without room are left out
};

/// {"value", "low", "high"}
nlohmann::json interval_json(const Interval& interval);

/// {"name", "title", "labels", "series": [{"name", "points": [{"value", "low", "high"} or null]}]}
nlohmann::json chart_json(const Chart& chart);

/// One line for each label, for terminals: "writing   1.702 [1.650, 1.754]   1.811 [1.750, 1.872]"; the first names the series.
std::vector<std::string> chart_lines(const Chart& chart);

/// A drawing of its own: no script, no font, no address. "" for a chart without a point.
std::string chart_svg(const Chart& chart);

/// `text` as HTML shows it literally, in elements and in attributes.
std::string html_escape(std::string_view text);

}  // namespace aerie
