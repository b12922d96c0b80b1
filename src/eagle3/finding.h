// What a reader or a check has to say about files, flags or figures.
#pragma once

#include <string>

namespace aerie {

enum class Severity {
  kError,    // as it is, acceptance is lost or the engine refuses
  kWarning,  // probably wrong, or right by accident
  kNote,     // worth knowing
};

/// "error", "warning", "note".
inline const char* severity_name(Severity severity) {
  return severity == Severity::kError ? "error" : severity == Severity::kWarning ? "warning" : "note";
}

struct Finding {
  Severity severity = Severity::kNote;
  std::string code;  // stable, for programs: "drafts-fewer-than-asked"
  std::string text;  // one sentence with the evidence
  std::string fix;   // what to do, or ""
};

}  // namespace aerie
