#include "eagle3/checkpoint.h"
#include "eagle3/dialects/flat.h"
#include "eagle3/dialects/gguf_eagle3.h"
#include "eagle3/dialects/recognise.h"
#include "eagle3/dialects/speculators.h"
#include "eagle3/target_fit.h"

namespace aerie {

Expected<DraftCheckpoint> read_drafter(const std::string& path, const OpenOptions& options) {
  AERIE_ASSIGN(const RawCheckpoint raw, RawCheckpoint::open(path));
  const auto load = [&]() -> Expected<DraftCheckpoint> {
    AERIE_ASSIGN(const Recognised as, recognise(raw));
    auto out = as.dialect == Dialect::kGguf          ? gguf_eagle3::load_checkpoint(raw, options)
               : as.dialect == Dialect::kSpeculators ? speculators::load_checkpoint(raw, options)
                                                     : flat::load_checkpoint(raw, as.dialect, options);
    if (!out.ok()) return out;
    out->spec.dialect = dialect_name(as.dialect);
    out->spec.path = path;
    out->spec.provenance["dialect"] = {Source::kInferred, as.why};
    AERIE_ASSIGN(const std::vector<Finding> embedding, embedding_findings(*out));
    out->findings.insert(out->findings.end(), embedding.begin(), embedding.end());
    return out;
  };
  auto out = load();
  if (!out.ok()) return out.status().with_context(path);
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
