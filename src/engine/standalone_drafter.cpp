#include "engine/standalone_drafter.h"

#include <utility>

#include "engine/runtime.h"

namespace aerie {

Expected<TargetTables> tables_without_target(const DraftSpec& spec) {
  if (!spec.own_embedding || !spec.own_head) {
    return invalid_argument("{}: the drafter shares its target's {}: give the target with -m", spec.path,
                            spec.own_head        ? "embedding"
                            : spec.own_embedding ? "output matrix"
                                                 : "embedding and output matrix");
  }
  TargetTables sizes;
  sizes.hidden = spec.target_hidden;
  sizes.vocab = spec.vocab;
  sizes.blocks = kMaxTap;
  return sizes;
}

Expected<std::unique_ptr<StandaloneDrafter>> StandaloneDrafter::load(const StandaloneOptions& options) {
  AERIE_ASSIGN(const kernels::Kernels* kernels, choose_kernels(options.isa));
  AERIE_ASSIGN(const int threads, choose_threads(options.threads));
  AERIE_ASSIGN(const std::string path, resolve_drafter(options.drafter));
  std::unique_ptr<StandaloneDrafter> out(new StandaloneDrafter);
  OpenOptions reading = options.reading;
  if (!options.target.empty()) {
    AERIE_ASSIGN(const std::string target, resolve_target(options.target));
    AERIE_ASSIGN(out->file_, GgufFile::open(target));
    AERIE_TRY(add_target_facts(*out->file_, reading));
  }
  AERIE_ASSIGN(out->checkpoint_, open_drafter(path, reading));
  TargetTables tables;
  out->pool_ = std::make_unique<ThreadPool>(threads);
  if (out->file_) {
    TargetOptions target;
    target.precision = options.precision == DraftPrecision::kServed ? Precision::kServed : Precision::kFloat32;
    target.kernels = kernels;
    AERIE_ASSIGN(out->target_, load_target(*out->file_, target, *out->pool_));
    tables = tables_of(*out->target_, *out->pool_);
  } else {
    AERIE_ASSIGN(tables, tables_without_target(out->checkpoint_.spec));
  }
  out->ops_.emplace(*kernels, *out->pool_);
  AERIE_ASSIGN(out->drafter_, Drafter::create(out->checkpoint_, std::move(tables), options.precision));
  return out;
}

}  // namespace aerie
