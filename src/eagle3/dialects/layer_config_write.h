// The inverse of layer_config.h and rope_config.h: the keys of a transformer's config that state a spec.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "eagle3/draft_spec.h"

namespace aerie {

/// Widths, attention, biases, window, eps, positions, vocabulary and RoPE (in both schemas, transformers 4's and 5's), all stated.
/// The spec must be valid, and one that such a config can hold: see convert.h.
nlohmann::ordered_json layer_config(const DraftSpec& spec);

/// The values by which DeepSeek's rule arrives at the spec's YaRN magnitude and attention_scale; nothing if none do. MLA only.
struct YarnMscales {
  double mscale = 1.0, mscale_all_dim = 0.0;
};
std::optional<YarnMscales> yarn_mscales(const RopeScaling& scaling, float attention_scale);

}  // namespace aerie
