#include "drafter_flags.h"

namespace aerie::cli {

void DrafterFlags::add_to(CLI::App& app) {
  app.add_option("--taps", taps, "boundaries that the drafter reads, instead of those of its files: 2,15,27; embed is 0, final the normed final state");
  app.add_option("--layer-id-convention", convention, "how the files' layer ids are counted: boundary, or block-output (boundary - 1)");
}

Expected<OpenOptions> DrafterFlags::options(const GgufFile* target) const {
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
  if (target != nullptr) {
    AERIE_ASSIGN(out.target_architecture, target->get_string("general.architecture"));
    AERIE_ASSIGN(const uint32_t blocks, target->get_u32(out.target_architecture + ".block_count"));
    if (blocks > 1u << 14) return corrupt("{}: a target of {} blocks is not believed", target->path(), blocks);
    out.target_blocks = static_cast<int>(blocks);
  }
  return out;
}

}  // namespace aerie::cli
