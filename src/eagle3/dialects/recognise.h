// Which dialect a checkpoint is in, and which families are no EAGLE-3 drafters. The only place where either is decided.
#pragma once

#include <string>

#include "base/status.h"
#include "eagle3/raw_checkpoint.h"

namespace aerie {

enum class Dialect { kSpeculators, kSafeAiLab, kSpecForge, kModelOpt, kNemo, kAngelSlim, kGguf };

/// "speculators", "safeailab", "specforge", "modelopt", "nemo", "angelslim", "gguf".
const char* dialect_name(Dialect dialect);

struct Recognised {
  Dialect dialect = Dialect::kSpeculators;
  std::string why;  // "it has speculators_model_type"
};

/// kUnsupported names the family of what is no EAGLE-3 drafter: P-EAGLE, DFlash, DSpark, EAGLE-1/2/4, Medusa, weights in fp8 or quantised
/// ones; or the architecture, where nothing is known of it.
Expected<Recognised> recognise(const RawCheckpoint& raw);

/// Whether `path` is to be read as a drafter at all: a folder, or a GGUF file of the drafter's architecture. A file that is neither a
/// drafter nor a target is left to the target's reader to refuse.
bool is_drafter_path(const std::string& path);

}  // namespace aerie
