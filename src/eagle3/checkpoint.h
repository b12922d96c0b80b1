// What a dialect's reader hands out: a drafter with one set of names, whatever its files call them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "eagle3/draft_spec.h"
#include "formats/tensor.h"

namespace aerie {

/// A drafter's spec and weights. The tensors' keys are the canonical names of draft_tensors(): "fc", "fc_norm.0", "layers.0.q",
/// "layers.0.q_bias", ..., "norm", "lm_head", and "embed_tokens" [V, H] where spec.own_embedding. The views point into `owner`.
/// Exactly the tensors that the spec calls for are there, each F32, F16 or BF16 and of the shape that draft_tensors() states.
struct DraftCheckpoint {
  DraftSpec spec;
  std::map<std::string, TensorView> tensors;
  std::shared_ptr<const void> owner;
};

/// A tensor that a drafter of some spec must have.
struct DraftTensor {
  std::string name;             // canonical
  std::vector<uint64_t> shape;  // [rows, cols] or [width]
};

/// The tensors that `spec` calls for, in the order in which they are written. The spec must be valid.
std::vector<DraftTensor> draft_tensors(const DraftSpec& spec);

/// Opens a drafter of any known dialect: the only place where a dialect is recognised. `path` is a folder (or a GGUF file, which
/// is refused by name as not supported yet). A family that is known but not readable is named in the error.
Expected<DraftCheckpoint> open_drafter(const std::string& path);

}  // namespace aerie
