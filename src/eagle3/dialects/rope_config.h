// RoPE as the config of a drafter states it, in the schemas of transformers 4 and 5.
#pragma once

#include <optional>

#include "eagle3/config_reader.h"
#include "eagle3/dialects/spec_builder.h"

namespace aerie {

/// Reads rope_theta, rope_scaling (transformers 4) and rope_parameters (transformers 5), partial_rotary_factor and rope_interleave
/// into the spec, whose head_dim, attention and max_positions (and, with MLA, rope_dim) are set. Two places that state different
/// values are an error: engines differ in which of them they read. Frequencies are never taken from the target.
/// YaRN's magnitude follows transformers (modeling_rope_utils.py), with MLA DeepSeek's rule for mscale and the softmax.
Status read_rope(ConfigReader& layer, SpecBuilder& build);

/// YaRN's keys as a config states them.
struct YarnKeys {
  std::optional<int> original;  // original_max_position_embeddings
  std::optional<double> beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor;
  std::optional<bool> truncate;
};
YarnKeys yarn_keys(ConfigReader& reader);

/// Makes `out`, whose factor is set, the YaRN of these keys, and returns what multiplies the softmax's scale. What is absent has
/// transformers' default; with MLA DeepSeek's rule for the mscales holds (modeling_deepseek.py).
double set_yarn(const YarnKeys& keys, bool mla, int max_positions, RopeScaling& out);

/// 0.1 m ln(factor) + 1, or 1 for a factor of at most 1 (YaRN, arXiv 2309.00071).
double yarn_mscale(double factor, double m);

}  // namespace aerie
