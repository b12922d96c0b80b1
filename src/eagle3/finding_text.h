// Findings as people and programs read them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eagle3/finding.h"

namespace aerie {

/// "error: TEXT [CODE]", with "    mend: FIX" on a line of its own where there is a fix. Every line begins with `indent` and none ends
/// the text; `word` stands in the severity's place where it is not empty.
std::string finding_text(const Finding& finding, const std::string& indent = "", const std::string& word = "");

/// [{"severity", "code", "text", "fix"}], in the given order.
nlohmann::json findings_json(const std::vector<Finding>& findings);

/// Whether one of them is an error.
bool has_error(const std::vector<Finding>& findings);

/// Errors first, then warnings, then notes; otherwise in the given order.
std::vector<Finding> ranked(std::vector<Finding> findings);

}  // namespace aerie
