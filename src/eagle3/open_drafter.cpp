#include "eagle3/checkpoint.h"
#include "eagle3/dialects/families.h"
#include "eagle3/dialects/flat.h"
#include "eagle3/dialects/gguf_eagle3.h"
#include "eagle3/dialects/speculators.h"
#include "eagle3/target_fit.h"

namespace aerie {

Expected<DraftCheckpoint> read_drafter(const std::string& path, const OpenOptions& options) {
  AERIE_ASSIGN(const RawCheckpoint raw, RawCheckpoint::open(path));
  const auto load = [&]() -> Expected<DraftCheckpoint> {
    AERIE_TRY(check_family(raw));
    if (raw.gguf() != nullptr) return gguf_eagle3::load_checkpoint(raw, options);
    if (raw.config().contains("speculators_model_type")) return speculators::load_checkpoint(raw, options);
    return flat::load_checkpoint(raw, options);
  };
  auto out = load();
  if (!out.ok()) return out.status().with_context(path);
  AERIE_ASSIGN(const std::vector<Finding> embedding, embedding_findings(*out));
  out->findings.insert(out->findings.end(), embedding.begin(), embedding.end());
  return out;
}

Expected<DraftCheckpoint> open_drafter(const std::string& path, const OpenOptions& options) {
  AERIE_ASSIGN(DraftCheckpoint out, read_drafter(path, options));
  for (const Finding& finding : out.findings) {
    if (finding.severity != Severity::kError) continue;
    return corrupt("{}: {}{}{}", path, finding.text, finding.fix.empty() ? "" : ": ", finding.fix);
  }
  AERIE_TRY(out.spec.validate().with_context(path));
  return out;
}

}  // namespace aerie
