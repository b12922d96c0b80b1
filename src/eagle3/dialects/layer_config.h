// The keys of a transformer's config that every dialect but GGUF shares.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eagle3/config_reader.h"
#include "eagle3/dialects/spec_builder.h"

namespace aerie {

// Bounds of what a config may state: far above any real model, low enough that a spec's own checks can multiply.
inline constexpr int kMaxConfigWidth = 1 << 20;
inline constexpr int kMaxConfigVocab = 1 << 24;

/// What a config says of things that the tensors have a say in too.
struct LayerClaims {
  std::optional<int> layers;
  std::string layers_key = "num_hidden_layers";  // where that is said
  std::optional<bool> attention_bias, mlp_bias, tied;
  bool qk_norm = false;  // the model type has norms of queries and keys
  std::vector<std::string> layer_types;
  std::optional<int> window;
};

/// Reads widths, heads, eps, positions, activation, MLA's ranks and RoPE into the spec, and the claims. Does not finish the reader.
Status read_layer_config(ConfigReader& layer, SpecBuilder& build, LayerClaims& claims);

/// spec.sliding_window from the claims; spec.layers is set.
Status settle_window(const LayerClaims& claims, SpecBuilder& build);

}  // namespace aerie
