#include "doctor/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace aerie {
namespace {

// Pixels.
constexpr double kWidth = 720, kPlotHeight = 200, kRowHeight = 22, kLeft = 52, kTop = 10, kBelow = 26, kNames = 300, kLegend = 20,
                 kApart = 8, kCharacter = 6.5;
// Told apart by colour-blind eyes too (Tol, bright).
constexpr const char* kColours[] = {"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb"};

const char* colour(size_t series) { return kColours[series % std::size(kColours)]; }

std::string value_text(const Chart& chart, const Interval& point) {
  if (point.low == point.high) return chart.percent ? fmt::format("{:.1f} %", 100 * point.value) : fmt::format("{:.4g}", point.value);
  return chart.percent ? point.percent() : point.text();
}

/// The ends of the axis: round numbers around what is drawn, 0 among them for shares and counts.
struct Axis {
  double low = 0, high = 1, step = 0.25;

  explicit Axis(const Chart& chart) {
    bool any = false;
    double least = 0, most = 0;
    for (const ChartSeries& series : chart.series) {
      for (const auto& point : series.points) {
        if (!point) continue;
        least = any ? std::min(least, point->low) : point->low;
        most = any ? std::max(most, point->high) : point->high;
        any = true;
      }
    }
    if (!any) return;
    if (!chart.sideways && !chart.curve) least = std::min(least, 0.0);
    if (chart.percent) most = std::min(most, 1.0);
    const double wide = std::max({1e-9, most - least, chart.curve ? 1e-3 * std::abs(most) : 0.0});  // one that does not move, too
    step = std::pow(10.0, std::floor(std::log10(wide)));
    step /= wide / step < 2 ? 5 : wide / step < 5 ? 2 : 1;
    low = std::floor(least / step) * step;
    high = std::max(low + step, std::ceil(most / step) * step);
  }
  double share(double value) const { return std::clamp((value - low) / (high - low), 0.0, 1.0); }
  std::string tick(const Chart& chart, double value) const {
    return chart.percent  ? fmt::format("{:.{}f} %", 100 * value, step < 0.01 ? 1 : 0)
           : step < 0.001 ? fmt::format("{:.{}f}", value, std::min(12, static_cast<int>(std::ceil(-std::log10(step)))))
           : step < 0.01  ? fmt::format("{:.3f}", value)
           : step < 0.1   ? fmt::format("{:.2f}", value)
           : step < 1     ? fmt::format("{:.1f}", value)
                          : fmt::format("{:.0f}", value);
  }
  std::vector<double> ticks() const {
    std::vector<double> out;
    for (int i = 0; low + i * step <= high + step / 100; ++i) out.push_back(low + i * step);
    return out;
  }
};

std::string text_at(double x, double y, const char* anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, html_escape(text));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view shade) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, shade);
}

constexpr std::string_view kGrid = "class=\"grid\"", kWhisker = "class=\"whisker\"";

std::string legend(const Chart& chart, double y) {
  std::string out;
  double x = kLeft;
  for (size_t s = 0; s < chart.series.size() && chart.series.size() > 1; ++s) {
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", x, y - 9, colour(s));
    out += text_at(x + 14, y, "start", chart.series[s].name);
    x += 30 + kCharacter * static_cast<double>(chart.series[s].name.size());
  }
  return out;
}

/// What is shown where a pointer rests.
std::string tip(const Chart& chart, size_t series, size_t label, const Interval& point) {
  return fmt::format("<title>{}</title>",
                     html_escape(fmt::format("{}, {}: {}", chart.labels[label], chart.series[series].name, value_text(chart, point))));
}

std::string upright(const Chart& chart) {
  const Axis axis(chart);
  const double right = kWidth - 10, foot = kTop + kPlotHeight;
  const auto y_of = [&](double value) { return foot - axis.share(value) * kPlotHeight; };
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">\n", kWidth, foot + kBelow + kLegend);
  for (const double tick : axis.ticks()) {
    out += line(kLeft, y_of(tick), right, y_of(tick), kGrid) + text_at(kLeft - 6, y_of(tick) + 4, "end", axis.tick(chart, tick));
  }
  const double group = (right - kLeft) / static_cast<double>(std::max<size_t>(1, chart.labels.size()));
  const double bar = std::min(36.0, group * 0.8 / static_cast<double>(std::max<size_t>(1, chart.series.size())));
  for (size_t l = 0; l < chart.labels.size(); ++l) {
    const double middle = kLeft + group * (static_cast<double>(l) + 0.5);
    out += text_at(middle, foot + 16, "middle", chart.labels[l]);
    for (size_t s = 0; s < chart.series.size(); ++s) {
      const auto& points = chart.series[s].points;
      if (l >= points.size() || !points[l]) continue;
      const Interval& point = *points[l];
      const double x = middle + bar * (static_cast<double>(s) - static_cast<double>(chart.series.size()) / 2);
      out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\">{}</rect>\n", x + 1,
                         y_of(point.value), bar - 2, foot - y_of(point.value), colour(s), tip(chart, s, l, point));
      if (point.high > point.low) out += line(x + bar / 2, y_of(point.low), x + bar / 2, y_of(point.high), kWhisker);
    }
  }
  return out + legend(chart, foot + kBelow + 12) + "</svg>\n";
}

/// One series of a curve: its band behind it, its line, and a mark at each value. Where nothing is known the line is broken.
template <class XOf, class YOf>
std::string curve_of(const Chart& chart, size_t series, const XOf& x_of, const YOf& y_of) {
  const auto& points = chart.series[series].points;
  const auto at = [&](size_t l, double value) { return fmt::format("{:.1f},{:.1f} ", x_of(l), y_of(value)); };
  const size_t end = std::min(points.size(), chart.labels.size());
  std::string bands, lines, marks;
  for (size_t l = 0; l < end;) {
    if (!points[l]) {
      ++l;
      continue;
    }
    std::string along, back;
    bool wide = false;
    for (; l < end && points[l]; ++l) {
      const Interval& point = *points[l];
      along += at(l, point.value);
      back = at(l, point.low) + back;
      wide = wide || point.high > point.low;
      marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\">{}</circle>\n", x_of(l), y_of(point.value),
                           colour(series), tip(chart, series, l, point));
    }
    lines += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\"/>\n", along, colour(series));
    if (!wide) continue;
    std::string above;
    for (size_t b = l; b > 0 && points[b - 1]; --b) above = at(b - 1, points[b - 1]->high) + above;
    bands += fmt::format("<polygon class=\"band\" points=\"{}{}\" fill=\"{}\" opacity=\"0.15\"/>\n", above, back, colour(series));
  }
  return bands + lines + marks;
}

std::string curves(const Chart& chart) {
  const Axis axis(chart);
  const double right = kWidth - 30, foot = kTop + kPlotHeight;
  const double apart = (right - kLeft - 20) / static_cast<double>(std::max<size_t>(2, chart.labels.size()) - 1);
  const auto x_of = [&](size_t label) { return kLeft + 20 + apart * static_cast<double>(label); };
  const auto y_of = [&](double value) { return foot - axis.share(value) * kPlotHeight; };
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">\n", kWidth, foot + kBelow + kLegend);
  for (const double tick : axis.ticks()) {
    out += line(kLeft, y_of(tick), right, y_of(tick), kGrid) + text_at(kLeft - 6, y_of(tick) + 4, "end", axis.tick(chart, tick));
  }
  double taken = 0;
  for (size_t l = 0; l < chart.labels.size(); ++l) {
    const double half = kCharacter * static_cast<double>(chart.labels[l].size()) / 2;
    if (x_of(l) - half < taken) continue;
    out += text_at(x_of(l), foot + 16, "middle", chart.labels[l]);
    taken = x_of(l) + half + 8;
  }
  for (size_t s = 0; s < chart.series.size(); ++s) out += curve_of(chart, s, x_of, y_of);
  return out + legend(chart, foot + kBelow + 12) + "</svg>\n";
}

std::string sideways(const Chart& chart) {
  const Axis axis(chart);
  const double right = kWidth - 20, foot = kTop + kRowHeight * static_cast<double>(chart.labels.size());
  const auto x_of = [&](double value) { return kNames + axis.share(value) * (right - kNames); };
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">\n", kWidth, foot + kBelow + kLegend);
  for (const double tick : axis.ticks())
    out += line(x_of(tick), kTop, x_of(tick), foot, kGrid) + text_at(x_of(tick), foot + 16, "middle", axis.tick(chart, tick));
  for (size_t l = 0; l < chart.labels.size(); ++l) {
    const double y = kTop + kRowHeight * (static_cast<double>(l) + 0.5);
    out += text_at(kNames - 8, y + 4, "end", chart.labels[l]);
    for (size_t s = 0; s < chart.series.size(); ++s) {
      const auto& points = chart.series[s].points;
      if (l >= points.size() || !points[l]) continue;
      const Interval& point = *points[l];
      const double at = y + kApart * (static_cast<double>(s) - static_cast<double>(chart.series.size() - 1) / 2);
      if (point.high > point.low) out += line(x_of(point.low), at, x_of(point.high), at, kWhisker);
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\">{}</circle>\n", x_of(point.value), at, colour(s),
                         tip(chart, s, l, point));
    }
  }
  return out + legend(chart, foot + kBelow + 12) + "</svg>\n";
}

bool has_points(const Chart& chart) {
  return std::any_of(chart.series.begin(), chart.series.end(), [](const ChartSeries& s) {
    return std::any_of(s.points.begin(), s.points.end(), [](const auto& point) { return point.has_value(); });
  });
}

}  // namespace

ChartSeries exact_series(const std::string& name, std::span<const double> values) {
  ChartSeries out{name, {}};
  for (const double value : values) out.points.push_back(Interval{value, value, value});
  return out;
}

nlohmann::json interval_json(const Interval& interval) {
  return {{"value", interval.value}, {"low", interval.low}, {"high", interval.high}};
}

nlohmann::json chart_json(const Chart& chart) {
  nlohmann::json series = nlohmann::json::array();
  for (const ChartSeries& s : chart.series) {
    nlohmann::json points = nlohmann::json::array();
    for (const auto& point : s.points) points.push_back(point ? interval_json(*point) : nlohmann::json());
    series.push_back({{"name", s.name}, {"points", points}});
  }
  return {{"name", chart.name}, {"title", chart.title}, {"labels", chart.labels}, {"series", series}};
}

std::vector<std::string> chart_lines(const Chart& chart) {
  size_t width = 8;
  for (const std::string& label : chart.labels) width = std::max(width, label.size());
  std::string head = fmt::format("{:<{}}", "", width);
  for (const ChartSeries& s : chart.series) head += fmt::format("  {:<24}", s.name);
  std::vector<std::string> out = {head};
  for (size_t l = 0; l < chart.labels.size(); ++l) {
    std::string& row = out.emplace_back(fmt::format("{:<{}}", chart.labels[l], width));
    for (const ChartSeries& s : chart.series)
      row += fmt::format("  {:<24}", l < s.points.size() && s.points[l] ? value_text(chart, *s.points[l]) : "-");
  }
  for (std::string& row : out) row.erase(row.find_last_not_of(' ') + 1);
  return out;
}

std::string chart_svg(const Chart& chart) {
  if (!has_points(chart)) return "";
  return chart.sideways ? sideways(chart) : chart.curve ? curves(chart) : upright(chart);
}

std::string html_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace aerie
