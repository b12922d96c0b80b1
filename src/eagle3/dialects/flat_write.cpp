#include "eagle3/dialects/flat.h"
#include "eagle3/dialects/layer_config_write.h"
#include "formats/json_text.h"

namespace aerie::flat {
namespace {

using Json = nlohmann::ordered_json;

const char* architecture_of(const DraftSpec& spec, Maker maker) {
  if (spec.attention == AttentionKind::kMla)
    return maker == Maker::kModelOpt ? "Eagle3DeepSeekV3ForCausalLM" : "Eagle3DeepseekV2ForCausalLM";
  return spec.qk_norm && maker == Maker::kSpecForge ? "Eagle3Qwen3ForCausalLM" : "LlamaForCausalLMEagle3";
}

/// Flags are stated only where they are true: they are false by default in every reader, and SpecForge's releases have given
/// norm_output two meanings.
void add_flags(const DraftSpec& spec, Json& config, Json& eagle) {
  const auto flag = [&](const char* key, bool value) {
    if (value) config[key] = true;
  };
  flag("bias", spec.fc_bias);
  flag("fc_norm", spec.feature_norm == FeatureNorm::kPerTap);
  flag("norm_output", spec.feedback == Feedback::kPostNorm);
  flag("norm_before_residual", spec.norm_before_residual);
  if (spec.feature_norm == FeatureNorm::kConcat) config["norm_before_fc"] = eagle["norm_before_fc"] = true;  // engines look in either
  if (spec.logit_scale != 1.0f) config["logit_scale"] = shortest_decimal(spec.logit_scale);
}

}  // namespace

DraftFolder draft_folder(const DraftSpec& spec, Maker maker, const LayerIds& ids) {
  DraftFolder out;
  Json& config = out.config;
  config["architectures"] = {architecture_of(spec, maker)};
  config.update(layer_config(spec));
  // Null is how a drafter asks for the target's head: SGLang leaves one that is stated and not stored uninitialised.
  config["draft_vocab_size"] = spec.own_head || maker == Maker::kModelOpt ? Json(spec.draft_vocab) : Json();
  if (spec.target_hidden != spec.hidden) config["target_hidden_size"] = spec.target_hidden;
  Json eagle = {{"use_aux_hidden_state", spec.has_fc}};
  if (spec.has_fc) {
    eagle["eagle_aux_hidden_state_layer_ids"] = ids.ids;
    config["num_aux_hidden_states"] = spec.taps.size();
    // Aerie's own key, with which the numbers have one meaning. Neither convention has a name for the normed final state.
    if (spec.taps.back() != kFinalNormed) config["layer_id_convention"] = layer_id_convention_name(ids.convention);
  }
  add_flags(spec, config, eagle);
  if (maker == Maker::kModelOpt) {
    out.t2d = false;
    eagle.update({{"next_layer_regular", true},
                  {"use_input_layernorm_in_first_layer", true},
                  {"use_last_layernorm", spec.head_norm},
                  {"use_mtp_layernorm", false},
                  {"parallel_draft_step", 1},
                  {"parallel_draft_heads_num_layers", 1}});
    config["feature_normed_twice"] = spec.feature_normed_twice;  // Aerie's own too: its trainer and all engines differ in it
  } else {
    out.first_layer = "midlayer.";
  }
  config["eagle_config"] = std::move(eagle);
  return out;
}

Status save_checkpoint(const std::string& folder, const DraftSpec& spec, const std::map<std::string, TensorView>& tensors, Maker maker,
                       const LayerIds& ids) {
  AERIE_TRY(spec.validate().with_context(folder));
  return write_draft_folder(folder, draft_folder(spec, maker, ids), spec, tensors);
}

}  // namespace aerie::flat
