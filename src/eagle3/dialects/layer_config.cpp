#include "eagle3/dialects/layer_config.h"

#include <algorithm>

#include "eagle3/dialects/rope_config.h"
#include "formats/printable.h"

namespace aerie {
namespace {

struct ModelType {
  const char* name;
  bool qk_norm;
};
constexpr ModelType kModelTypes[] = {{"llama", false},       {"mistral", false},     {"qwen2", false},  {"qwen3", true},
                                     {"deepseek_v2", false}, {"deepseek_v3", false}, {"kimi_k2", false}};

Status read_mla(ConfigReader& layer, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  const auto kv_rank = layer.integer("kv_lora_rank", 1, kMaxConfigWidth), q_rank = layer.integer("q_lora_rank", 1, kMaxConfigWidth);
  const auto nope = layer.integer("qk_nope_head_dim", 1, kMaxConfigWidth), rope = layer.integer("qk_rope_head_dim", 1, kMaxConfigWidth);
  const auto value = layer.integer("v_head_dim", 1, kMaxConfigWidth);
  AERIE_TRY(layer.status());
  if (!kv_rank) return {};
  spec.attention = AttentionKind::kMla;
  build.note("attention", Source::kRead, layer.name("kv_lora_rank") + " is there");
  for (const auto& [key, found] : {std::pair("qk_nope_head_dim", nope), {"qk_rope_head_dim", rope}, {"v_head_dim", value}}) {
    if (!found) return layer.missing(key, "an MLA drafter needs it");
  }
  spec.kv_rank = *kv_rank;
  spec.nope_dim = *nope;
  spec.rope_dim = *rope;
  spec.v_dim = *value;
  spec.head_dim = spec.nope_dim + spec.rope_dim;
  spec.kv_heads = spec.heads;
  build.note("kv_rank", Source::kRead, layer.name("kv_lora_rank"));
  build.note("latent_eps", Source::kDefaulted,
             "DeepSeek's code makes the norms of the latents with their class's default, not with rms_norm_eps");
  build.note("nope_dim", Source::kRead, layer.name("qk_nope_head_dim"));
  build.note("rope_dim", Source::kRead, layer.name("qk_rope_head_dim"));
  build.note("v_dim", Source::kRead, layer.name("v_head_dim"));
  build.note("head_dim", Source::kInferred, "qk_nope_head_dim + qk_rope_head_dim");
  build.note("kv_heads", Source::kInferred, "as many as heads, as always with MLA");
  build.set("q_rank", spec.q_rank, q_rank, layer.name("q_lora_rank"), 0, "no q_lora_rank: queries are projected directly");
  // Its value says nothing here: MLA has one latent for all heads.
  layer.ignore({"num_key_value_heads", "head_dim", "qk_head_dim"});
  return {};
}

}  // namespace

Status read_layer_config(ConfigReader& layer, SpecBuilder& build, LayerClaims& claims) {
  DraftSpec& spec = build.spec();
  if (const auto type = layer.text("model_type")) {
    const auto it = std::find_if(std::begin(kModelTypes), std::end(kModelTypes), [&](const ModelType& m) { return *type == m.name; });
    if (it == std::end(kModelTypes)) {
      return unsupported("config.json: {} is {}, expected llama, mistral, qwen2, qwen3, deepseek_v2, deepseek_v3 or kimi_k2",
                         layer.name("model_type"), printable(*type));
    }
    claims.qk_norm = it->qk_norm;
  }
  const auto activation = layer.text("hidden_act");
  if (activation && *activation != "silu" && *activation != "swish") {
    return unsupported("config.json: {} is {}: only silu is supported", layer.name("hidden_act"), printable(*activation));
  }
  AERIE_TRY(build.require(layer, "hidden_size", "hidden", kMaxConfigWidth, spec.hidden));
  AERIE_TRY(build.require(layer, "intermediate_size", "intermediate", kMaxConfigWidth, spec.intermediate));
  AERIE_TRY(build.require(layer, "num_attention_heads", "heads", kMaxConfigWidth, spec.heads));
  AERIE_TRY(build.require(layer, "vocab_size", "vocab", kMaxConfigVocab, spec.vocab));
  build.set("rms_eps", spec.rms_eps, layer.number("rms_norm_eps"), layer.name("rms_norm_eps"), 1e-6f, "the Llama config's default");
  build.set("max_positions", spec.max_positions, layer.integer("max_position_embeddings", 1, INT32_MAX),
            layer.name("max_position_embeddings"), 2048, "the Llama config's default");
  AERIE_TRY(read_mla(layer, build));
  if (spec.attention == AttentionKind::kGqa) {
    build.note("attention", Source::kDefaulted, "there is no kv_lora_rank");
    build.set("kv_heads", spec.kv_heads, layer.integer("num_key_value_heads", 1, kMaxConfigWidth), layer.name("num_key_value_heads"),
              spec.heads, "the Llama config's default: as many as heads");
    build.set("head_dim", spec.head_dim, layer.integer("head_dim", 1, kMaxConfigWidth), layer.name("head_dim"), spec.hidden / spec.heads,
              "hidden_size / num_attention_heads", Source::kInferred);
  }
  AERIE_TRY(read_rope(layer, build));

  claims.layers = layer.integer("num_hidden_layers", 0, kMaxConfigWidth);
  claims.attention_bias = layer.boolean("attention_bias");
  claims.mlp_bias = layer.boolean("mlp_bias");
  claims.tied = layer.boolean("tie_word_embeddings");
  claims.layer_types = layer.texts("layer_types").value_or(std::vector<std::string>());
  claims.window = layer.integer("sliding_window", 0, INT32_MAX);
  const auto use_window = layer.boolean("use_sliding_window");
  AERIE_TRY(layer.status());
  if (claims.layer_types.empty() && use_window.value_or(false)) {
    return unsupported("config.json: {} is true, but no layer_types say which layers have the window", layer.name("use_sliding_window"));
  }
  if (claims.layer_types.empty() && use_window && !*use_window) claims.window.reset();
  // Of the rest of such a config nothing reaches a drafter's forward.
  layer.ignore({"architectures", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "is_llama_config",
                "max_window_layers", "pad_token_id", "pretraining_tp", "torch_dtype", "transformers_version", "use_cache",
                "_attn_implementation_autoset", "_name_or_path", "auto_map", "vocab_size"});
  return {};
}

Status settle_window(const LayerClaims& claims, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  build.note("sliding_window", Source::kDefaulted, "no layer has a window");
  if (claims.layer_types.empty()) {
    if (claims.window.value_or(0) == 0) return {};
    return corrupt("config.json: sliding_window is {}, but no layer_types say which layers have it: state layer_types", *claims.window);
  }
  if (claims.layer_types.size() < static_cast<size_t>(spec.layers)) {
    return corrupt("config.json: layer_types has {} entries for {} layers", claims.layer_types.size(), spec.layers);
  }
  int windowed = 0;
  for (int j = 0; j < spec.layers; ++j) {
    const std::string& type = claims.layer_types[static_cast<size_t>(j)];
    if (type != "full_attention" && type != "sliding_attention") {
      return unsupported("config.json: layer_types holds {}, expected full_attention or sliding_attention", printable(type));
    }
    windowed += type == "sliding_attention" ? 1 : 0;
  }
  if (windowed == 0) {
    build.note("sliding_window", Source::kRead, "layer_types");
    return {};
  }
  if (windowed != spec.layers)
    return unsupported("config.json: layer_types mixes full_attention and sliding_attention, which is not supported");
  if (claims.window.value_or(0) == 0) return corrupt("config.json: layer_types holds sliding_attention, but there is no sliding_window");
  spec.sliding_window = *claims.window;
  build.note("sliding_window", Source::kRead, "sliding_window, layer_types");
  build.find(Severity::kNote, "sliding-window",
             fmt::format("every draft layer sees {} rows only; SGLang's drafter and llama.cpp ignore this", spec.sliding_window));
  return {};
}

}  // namespace aerie
