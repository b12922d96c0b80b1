#include "eagle3/finding_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/status.h"

namespace aerie {

std::string finding_text(const Finding& finding, const std::string& indent, const std::string& word) {
  std::string out = fmt::format("{}{}: {} [{}]", indent, word.empty() ? severity_name(finding.severity) : word, finding.text, finding.code);
  if (!finding.fix.empty()) out += fmt::format("\n{}    mend: {}", indent, finding.fix);
  return out;
}

nlohmann::json findings_json(const std::vector<Finding>& findings) {
  nlohmann::json out = nlohmann::json::array();
  for (const Finding& f : findings)
    out.push_back({{"severity", severity_name(f.severity)}, {"code", f.code}, {"text", f.text}, {"fix", f.fix}});
  return out;
}

bool has_error(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.severity == Severity::kError; });
}

std::vector<Finding> ranked(std::vector<Finding> findings) {
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return findings;
}

}  // namespace aerie
