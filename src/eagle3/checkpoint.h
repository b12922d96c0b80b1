// What a dialect's reader hands out: a drafter with one set of names, whatever its files call them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "eagle3/draft_spec.h"
#include "eagle3/finding.h"
#include "eagle3/layer_ids.h"
#include "formats/tensor.h"

namespace aerie {

/// A drafter's spec and weights. The tensors' keys are the canonical names of draft_tensors(): "fc", "fc_norm.0", "layers.0.q",
/// "layers.0.q_bias", ..., "norm", "lm_head", and "embed_tokens" [V, H] where spec.own_embedding. The views point into `owner`.
/// Exactly the tensors that the spec calls for are there, each F32, F16 or BF16 and of the shape that draft_tensors() states.
struct DraftCheckpoint {
  DraftSpec spec;
  std::map<std::string, TensorView> tensors;
  std::shared_ptr<const void> owner;
  std::vector<Finding> findings;  // what reading it had to say, in the order in which it was noticed
};

/// What a person knows about a drafter and its files do not say.
struct OpenOptions {
  std::vector<int> taps;                        // ordered boundaries that replace those of the files; empty: the files' own
  std::optional<LayerIdConvention> convention;  // how the files' layer ids are read; none: as the dialect has it
  int target_blocks = 0;                        // N of the target, for default taps; 0: not known
  std::string target_architecture;              // "DeepseekV3ForCausalLM"; some ids depend on it; "": not known
};

/// A tensor that a drafter of some spec must have.
struct DraftTensor {
  std::string name;             // canonical
  std::vector<uint64_t> shape;  // [rows, cols] or [width]
};

/// The tensors that `spec` calls for, in the order in which they are written. The spec must be valid.
std::vector<DraftTensor> draft_tensors(const DraftSpec& spec);

/// Reads a drafter of any known dialect (dialects/recognise.h tells which). `path` is a folder or a GGUF file of
/// llama.cpp's `eagle3` architecture. A family that is known but no EAGLE-3 drafter is named in the error. What cannot be decided
/// from the files is a finding of the severity error, and the spec then holds the likeliest value (or kUnknownTap).
Expected<DraftCheckpoint> read_drafter(const std::string& path, const OpenOptions& options = {});

/// The same for whoever is going to use the drafter: the first finding that is an error is the result.
Expected<DraftCheckpoint> open_drafter(const std::string& path, const OpenOptions& options = {});

}  // namespace aerie
