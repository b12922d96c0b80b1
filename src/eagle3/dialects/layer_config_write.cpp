#include "eagle3/dialects/layer_config_write.h"

#include <cmath>

#include "eagle3/dialects/rope_config.h"
#include "formats/json_text.h"

namespace aerie {
namespace {

using Json = nlohmann::ordered_json;

/// What is stretched, without theta; empty where nothing is.
Json scaling_of(const DraftSpec& spec) {
  const RopeScaling& r = spec.rope_scaling;
  if (r.kind == RopeScalingKind::kNone) return Json::object();
  const char* const names[] = {"default", "linear", "llama3", "yarn"};
  Json out = {{"rope_type", names[static_cast<int>(r.kind)]}, {"factor", shortest_decimal(r.factor)}};
  if (r.kind == RopeScalingKind::kLinear) return out;
  out["original_max_position_embeddings"] = r.original_max_positions;
  if (r.kind == RopeScalingKind::kLlama3) {
    out["low_freq_factor"] = shortest_decimal(r.low_freq_factor);
    out["high_freq_factor"] = shortest_decimal(r.high_freq_factor);
    return out;
  }
  out["beta_fast"] = shortest_decimal(r.beta_fast);
  out["beta_slow"] = shortest_decimal(r.beta_slow);
  if (!r.truncate) out["truncate"] = false;
  if (spec.attention == AttentionKind::kMla) {
    const YarnMscales m = yarn_mscales(r, spec.attention_scale).value_or(YarnMscales());
    out["mscale"] = m.mscale;
    out["mscale_all_dim"] = m.mscale_all_dim;
  } else {
    out["attention_factor"] = shortest_decimal(r.magnitude);
  }
  return out;
}

/// The share that, multiplied by head_dim and cut off, is rope_dim.
double rotated_share(const DraftSpec& spec) {
  double share = static_cast<double>(spec.rope_dim) / spec.head_dim;
  while (static_cast<int>(spec.head_dim * share) < spec.rope_dim) share = std::nextafter(share, 1.0);
  return share;
}

void add_rope(const DraftSpec& spec, Json& out) {
  const Json scaling = scaling_of(spec);
  Json parameters = {{"rope_type", "default"}, {"rope_theta", shortest_decimal(spec.rope_theta)}};
  parameters.update(scaling);
  if (spec.attention == AttentionKind::kMla) {
    out["rope_interleave"] = spec.rope_interleaved;
  } else if (spec.rope_dim != spec.head_dim) {
    out["partial_rotary_factor"] = parameters["partial_rotary_factor"] = rotated_share(spec);
  }
  // Both schemas, since transformers 4 reads the first and transformers 5 the second.
  out["rope_theta"] = shortest_decimal(spec.rope_theta);
  if (!scaling.empty()) {
    out["rope_scaling"] = scaling;
    out["rope_scaling"]["type"] = scaling["rope_type"];  // what it was called before transformers 4.43
  }
  out["rope_parameters"] = std::move(parameters);
}

}  // namespace

Json layer_config(const DraftSpec& spec) {
  const bool mla = spec.attention == AttentionKind::kMla;
  Json out = {{"model_type", mla            ? "deepseek_v3"
                             : spec.qk_norm ? "qwen3"
                                            : "llama"},
              {"hidden_size", spec.hidden},
              {"intermediate_size", spec.intermediate},
              {"num_hidden_layers", spec.layers},
              {"num_attention_heads", spec.heads},
              {"num_key_value_heads", spec.kv_heads}};
  if (mla) {
    out["q_lora_rank"] = spec.q_rank == 0 ? Json() : Json(spec.q_rank);
    out["kv_lora_rank"] = spec.kv_rank;
    out["qk_nope_head_dim"] = spec.nope_dim;
    out["qk_rope_head_dim"] = spec.rope_dim;
    out["v_head_dim"] = spec.v_dim;
  } else {
    out["head_dim"] = spec.head_dim;
  }
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = shortest_decimal(spec.rms_eps);
  add_rope(spec, out);
  out["max_position_embeddings"] = spec.max_positions;
  out["vocab_size"] = spec.vocab;
  // Stated as false it would contradict a bias of o that another key calls for.
  if (spec.qkv_bias || !spec.o_bias) out["attention_bias"] = spec.qkv_bias;
  if (!mla && !spec.qk_norm) out["mlp_bias"] = spec.mlp_bias;
  if (spec.sliding_window != 0) {
    out["sliding_window"] = spec.sliding_window;
    out["layer_types"] = std::vector<std::string>(static_cast<size_t>(spec.layers), "sliding_attention");
    if (spec.qk_norm) out["use_sliding_window"] = true;  // without it Qwen3's config class drops the window
  }
  out["tie_word_embeddings"] = false;
  return out;
}

std::optional<YarnMscales> yarn_mscales(const RopeScaling& r, float attention_scale) {
  const double growth = yarn_mscale(r.factor, 1.0) - 1.0, root = std::sqrt(static_cast<double>(attention_scale));
  const auto reads_back = [&](const YarnMscales& m) {
    YarnKeys keys;
    keys.mscale = m.mscale;
    keys.mscale_all_dim = m.mscale_all_dim;
    RopeScaling found = {.kind = r.kind, .factor = r.factor};
    const double scale = set_yarn(keys, true, r.original_max_positions, found);
    return found.magnitude == r.magnitude && static_cast<float>(scale) == attention_scale;
  };
  if (growth <= 0.0) {
    const YarnMscales none;
    return reads_back(none) ? std::optional(none) : std::nullopt;
  }
  YarnMscales exact;
  exact.mscale_all_dim = attention_scale == 1.0f ? 0.0 : (root - 1.0) / growth;
  exact.mscale = (r.magnitude * yarn_mscale(r.factor, exact.mscale_all_dim) - 1.0) / growth;
  // As a person wrote them, where such short numbers give the same floats.
  const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
  const YarnMscales shorter = {rounded(exact.mscale), rounded(exact.mscale_all_dim)};
  if (reads_back(shorter)) return shorter;
  return reads_back(exact) ? std::optional(exact) : std::nullopt;
}

}  // namespace aerie
