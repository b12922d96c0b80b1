#include "drafter_flags.h"

#include "base/log.h"

namespace aerie::cli {

void DrafterFlags::add_to(CLI::App& app) {
  app.add_option("--taps", taps,
                 "boundaries that the drafter reads, instead of those of its files: 2,15,27; embed is 0, final the normed final state");
  app.add_option("--layer-id-convention", convention, "how the drafter's files count layer ids: boundary, or block-output (boundary - 1)");
}

Expected<OpenOptions> DrafterFlags::options() const {
  OpenOptions out;
  if (!taps.empty()) {
    auto parsed = parse_taps(taps);
    if (!parsed.ok()) return parsed.status().with_context("--taps");
    out.taps = std::move(*parsed);
  }
  if (!convention.empty()) {
    auto parsed = parse_layer_id_convention(convention);
    if (!parsed.ok()) return parsed.status().with_context("--layer-id-convention");
    out.convention = *parsed;
  }
  return out;
}

void warn_of(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    if (finding.severity != Severity::kNote)
      spdlog::warn("{}: {}{}{}", finding.code, finding.text, finding.fix.empty() ? "" : "; ", finding.fix);
  }
}

}  // namespace aerie::cli
