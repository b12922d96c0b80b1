// The checkpoints of the `speculators` library (https://github.com/vllm-project/speculators): config.json with a nested
// transformer_layer_config, tensors layers.0.*, taps as boundaries, d2t as offsets (target id = d + d2t[d]).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "eagle3/checkpoint.h"
#include "eagle3/raw_checkpoint.h"

namespace aerie::speculators {

/// Strict: every tensor and every config key is used, known to be without effect, or an error that names it (without the path).
Expected<DraftCheckpoint> load_checkpoint(const RawCheckpoint& raw, const OpenOptions& options);

struct SaveOptions {
  std::string verifier;  // name of the target, for config.json
  std::vector<std::string> verifier_architectures;
  int speculative_tokens = 3;  // what the config proposes to an engine
  std::string training_json;   // a JSON object that is kept as "aerie_training", or empty
};

/// Writes the drafter, as write_draft_folder() does.
Status save_checkpoint(const std::string& folder, const DraftSpec& spec, const std::map<std::string, TensorView>& tensors,
                       const SaveOptions& options = {});
/// The same of weights in memory, stored as `type`: BF16 or F32.
Status save_checkpoint(const std::string& folder, const DraftSpec& spec, const std::map<std::string, std::vector<float>>& weights,
                       DType type = DType::kBF16, const SaveOptions& options = {});

}  // namespace aerie::speculators
