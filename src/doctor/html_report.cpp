// The report as one HTML page that needs nothing else: no script, no font, no address.
#include <fmt/format.h>

#include "doctor/report.h"
#include "eagle3/finding_text.h"

namespace aerie {
namespace {

constexpr std::string_view kStyle = R"(
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } h3 { font-size: 0.95rem; margin: 1.4rem 0 0.3rem; }
.finding { border-left: 4px solid #888; padding: 0.3rem 0.8rem; margin: 0.6rem 0; background: #f6f6f6; }
.error { border-color: #c03030; } .warning { border-color: #c88a00; } .note { border-color: #4477aa; }
.finding b { text-transform: capitalize; } .code { color: #666; font-family: monospace; } .fix { margin: 0.2rem 0 0; }
pre { overflow-x: auto; font-size: 12.5px; line-height: 1.4; background: #f6f6f6; padding: 0.6rem; }
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif; fill: #333; }
.grid { stroke: #ddd; } .whisker { stroke: #222; stroke-width: 1.4; }
)";

std::string finding_html(const Finding& finding) {
  const char* severity = severity_name(finding.severity);
  return fmt::format("<div class=\"finding {}\"><b>{}</b> <span class=\"code\">{}</span><br>{}{}</div>\n", severity, severity,
                     html_escape(finding.code), html_escape(finding.text),
                     finding.fix.empty() ? "" : fmt::format("<p class=\"fix\"><b>mend</b>: {}</p>", html_escape(finding.fix)));
}

std::string section_html(const ReportSection& section) {
  std::string out = fmt::format("<h2>{}</h2>\n", html_escape(section.title));
  if (!section.lines.empty()) out += "<pre>";
  for (const std::string& line : section.lines) out += html_escape(line) + "\n";
  if (!section.lines.empty()) out += "</pre>\n";
  for (const Chart& chart : section.charts) {
    const std::string drawing = chart_svg(chart);
    if (!drawing.empty()) out += fmt::format("<h3>{}</h3>\n{}", html_escape(chart.title), drawing);
  }
  return out;
}

}  // namespace

std::string Report::html(std::string_view title) const {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta "
      "charset=\"utf-8\">\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
      html_escape(title), kStyle);
  if (findings.empty()) out += fmt::format("<p>{}</p>\n", kNothingFound);
  for (const Finding& finding : ranked(findings)) out += finding_html(finding);
  for (const ReportSection& section : all_sections()) out += section_html(section);
  return out + "</body>\n</html>\n";
}

}  // namespace aerie
