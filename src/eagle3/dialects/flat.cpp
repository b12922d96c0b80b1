#include "eagle3/dialects/flat.h"

#include <algorithm>

#include "eagle3/dialects/named_tensors.h"
#include "eagle3/dialects/taps.h"

namespace aerie::flat {
namespace {

using Json = nlohmann::json;

bool any_tensor_starts_with(const RawCheckpoint& raw, const std::string& prefix) {
  return std::any_of(raw.tensors().begin(), raw.tensors().end(), [&](const TensorView& t) { return t.name.rfind(prefix, 0) == 0; });
}

/// A flag that may stand in eagle_config or at the top level; both at once must agree.
Expected<std::optional<bool>> flag_of(ConfigReader& config, ConfigReader* eagle, const char* key) {
  const std::optional<bool> top = config.boolean(key);
  std::optional<bool> nested;
  if (eagle != nullptr) nested = eagle->boolean(key);
  AERIE_TRY(config.status());
  if (eagle != nullptr) AERIE_TRY(eagle->status());
  if (top && nested && *top != *nested) {
    return corrupt("config.json: {} is {} but {} is {}: remove the wrong one", key, *top ? "true" : "false", eagle->name(key),
                   *top ? "false" : "true");
  }
  return nested ? nested : top;
}

Status read_norms(ConfigReader& config, ConfigReader* eagle, Dialect dialect, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  AERIE_ASSIGN(const auto concat, flag_of(config, eagle, "norm_before_fc"));
  const auto per_tap = config.boolean("fc_norm"), old_name = config.boolean("use_aux_norm");
  const auto residual = config.boolean("norm_before_residual");
  const auto post = config.boolean("norm_output");
  AERIE_TRY(config.status());
  if (per_tap && old_name && *per_tap != *old_name)
    return corrupt("config.json: fc_norm is {} but use_aux_norm is {}", *per_tap, *old_name);
  const std::optional<bool> taps = per_tap ? per_tap : old_name;
  if (concat.value_or(false) && taps.value_or(false)) {
    return corrupt("config.json: norm_before_fc and fc_norm are both true, but a feature is normalised in one way only");
  }
  spec.feature_norm = concat.value_or(false) ? FeatureNorm::kConcat : taps.value_or(false) ? FeatureNorm::kPerTap : FeatureNorm::kNone;
  build.note("feature_norm", concat || taps ? Source::kRead : Source::kDefaulted,
             concat || taps ? "norm_before_fc, fc_norm" : "the defaults of norm_before_fc and fc_norm are false");
  build.set("norm_before_residual", spec.norm_before_residual, residual, "norm_before_residual", false,
            "the reference's residual is the raw feature");
  std::optional<bool> hidden_post;
  if (eagle != nullptr) hidden_post = eagle->boolean("return_hidden_post_norm");
  if (post && hidden_post && *post != *hidden_post) {
    return corrupt("config.json: norm_output is {} but eagle_config.return_hidden_post_norm is {}", *post, *hidden_post);
  }
  const std::optional<bool> feedback = post ? post : hidden_post;
  spec.feedback = feedback.value_or(false) ? Feedback::kPostNorm : Feedback::kPreNorm;
  build.note("feedback", feedback ? Source::kRead : Source::kDefaulted, feedback ? "norm_output" : "the default of norm_output is false");
  if (post && dialect == Dialect::kSpecForge) {
    build.find(Severity::kWarning, "norm-output-meaning",
               fmt::format("norm_output is {}: read as engines and SpecForge after 0.2.0 do ({} is fed back); SpecForge 0.2.0 itself meant "
                           "\"{}\"",
                           *post, *post ? "the normed state" : "the raw state",
                           *post ? "norm before the head, raw state fed back" : "no norm before the head"),
               "if SpecForge 0.2.0 or older trained it, " + std::string(*post ? "remove norm_output" : "it cannot be served faithfully"));
  }
  return {};
}

Status read_ids(ConfigReader& config, ConfigReader* eagle, StatedTaps& stated) {
  const auto top = config.integers("eagle_aux_hidden_state_layer_ids", -1, kMaxTap);
  const auto slim = config.integers("aux_hidden_states_layer_ids", -1, kMaxTap);
  std::optional<std::vector<int>> nested;
  if (eagle != nullptr) {
    nested = eagle->integers("eagle_aux_hidden_state_layer_ids", -1, kMaxTap);
    const auto short_name = eagle->integers("layer_ids", -1, kMaxTap);
    if (nested && short_name && *nested != *short_name)
      return corrupt("config.json: eagle_config states layer_ids and other eagle_aux_hidden_state_layer_ids");
    if (!nested) nested = short_name;
    AERIE_TRY(eagle->status());
  }
  AERIE_TRY(config.status());
  if (top && nested && *top != *nested) {
    return corrupt(
        "config.json: eagle_aux_hidden_state_layer_ids is [{}], but in eagle_config it is [{}]: engines read different ones, remove the "
        "wrong one",
        fmt::join(*top, ","), fmt::join(*nested, ","));
  }
  stated.ids = nested ? nested : top ? top : slim;
  stated.key = nested         ? "eagle_config.eagle_aux_hidden_state_layer_ids"
               : slim && !top ? "aux_hidden_states_layer_ids"
                              : "eagle_aux_hidden_state_layer_ids";
  if (const auto convention = config.text("layer_id_convention")) {
    AERIE_ASSIGN(stated.convention, parse_layer_id_convention(*convention));
  }
  return config.status();
}

/// eagle_config, but for the flags that read_norms and read_ids ask for.
Status read_eagle_config(ConfigReader& eagle, StatedTaps& stated, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  stated.no_aux = !eagle.boolean("use_aux_hidden_state").value_or(true);
  const auto last_norm = eagle.boolean("use_last_layernorm"), first_norm = eagle.boolean("use_input_layernorm_in_first_layer");
  const auto mtp = eagle.boolean("use_mtp_layernorm"), regular = eagle.boolean("next_layer_regular"),
             before = eagle.boolean("eh_proj_before_attn");
  const auto parallel = eagle.integer("parallel_draft_step", 0, kMaxConfigWidth);
  AERIE_TRY(eagle.status());
  if (mtp.value_or(false)) return unsupported("config.json: eagle_config.use_mtp_layernorm is true: MTP layers are not supported");
  if (before.value_or(false)) return unsupported("config.json: eagle_config.eh_proj_before_attn is true, which is not supported");
  if (parallel.value_or(1) > 1)
    return unsupported("config.json: eagle_config.parallel_draft_step is {}: parallel draft heads are not supported", *parallel);
  if (first_norm && !*first_norm) {
    return unsupported("config.json: eagle_config.use_input_layernorm_in_first_layer is false: a layer without it is not supported");
  }
  spec.head_norm = last_norm.value_or(true);
  if (last_norm) build.note("head_norm", Source::kRead, "eagle_config.use_last_layernorm");
  if (regular && !*regular)
    build.find(Severity::kNote, "next-layer-not-regular", "next_layer_regular is false: TensorRT-LLM hands every layer the 2H concat");
  eagle.ignore({"parallel_draft_heads_num_layers", "eagle_decoder_type", "has_lm_head", "head_dim"});
  return {};
}

/// Where config.json ties the head to the embedding and both are the drafter's, the table is both; false where it is not.
bool tie_head(NamedTensors& tensors, LayerClaims& claims, SpecBuilder& build) {
  const DraftSpec& spec = build.spec();
  const TensorView* table = tensors.find("embed_tokens");
  const bool whole = spec.draft_vocab == 0 || spec.draft_vocab == spec.vocab;
  if (!claims.tied.value_or(false) || !whole || table == nullptr || tensors.has("lm_head")) return false;
  const TensorView head = *table;
  tensors.add("lm_head", head);
  claims.tied.reset();
  build.find(Severity::kWarning, "head-tied",
             "tie_word_embeddings is true and lm_head.weight is not stored, so that the head is the drafter's own embedding: SGLang takes "
             "the target's",
             "store it as lm_head.weight too, and set tie_word_embeddings to false");
  return true;
}

/// What ModelOpt's exporter does to a drafter that was trained otherwise.
void look_for_export_changes(SpecBuilder& build) {
  const RopeScaling& r = build.spec().rope_scaling;
  if (r.kind == RopeScalingKind::kYarn && r.factor == 32.0f && r.original_max_positions == 2048) {
    build.find(Severity::kWarning, "yarn-added-at-export",
               "RoPE is scaled by YaRN x32 from 2048, which ModelOpt's exporter adds to drafters that were trained without it",
               "compare acceptance with and without rope_scaling");
  }
}

}  // namespace

Expected<DraftCheckpoint> load_checkpoint(const RawCheckpoint& raw, Dialect dialect, const OpenOptions& options) {
  AERIE_ASSIGN(NamedTensors tensors, NamedTensors::of_folder(raw));
  DraftCheckpoint out;
  out.owner = raw.owner();
  SpecBuilder build(out);
  DraftSpec& spec = out.spec;

  ConfigReader config(raw.config(), "");
  LayerClaims claims;
  AERIE_TRY(read_layer_config(config, build, claims));
  const Json* nested = config.object("eagle_config");
  AERIE_TRY(config.status());
  std::optional<ConfigReader> eagle;
  if (nested != nullptr) eagle.emplace(*nested, "eagle_config.");
  ConfigReader* inner = eagle ? &*eagle : nullptr;

  StatedTaps stated;
  stated.producer = dialect == Dialect::kSafeAiLab ? "reference" : dialect_name(dialect);
  // The reference hard-codes boundaries; AngelSlim and NeMo have written one meaning only.
  stated.certain = dialect == Dialect::kAngelSlim || dialect == Dialect::kNemo || dialect == Dialect::kSafeAiLab;
  build.note("head_norm", Source::kDefaulted, "the head reads the normed state");
  if (inner != nullptr) AERIE_TRY(read_eagle_config(*inner, stated, build));
  AERIE_TRY(read_norms(config, inner, dialect, build));
  AERIE_TRY(read_ids(config, inner, stated));

  build.set("target_hidden", spec.target_hidden, config.integer("target_hidden_size", 1, kMaxConfigWidth), "target_hidden_size",
            spec.hidden, "as wide as the drafter, where target_hidden_size is not stated");
  build.set("draft_vocab", spec.draft_vocab, config.integer("draft_vocab_size", 1, kMaxConfigVocab), "draft_vocab_size", 0,
            "from the rows of lm_head.weight", Source::kInferred);
  if (raw.config().contains("draft_vocab_size") && raw.config()["draft_vocab_size"].is_null() && !tensors.has("lm_head")) {
    spec.draft_vocab = spec.vocab;
    build.note("draft_vocab", Source::kRead, "draft_vocab_size is null: the target's vocabulary and head");
  }
  build.set("logit_scale", spec.logit_scale, config.number("logit_scale"), "logit_scale", 1.0f, "the default of logit_scale");
  const auto twice = config.boolean("feature_normed_twice");
  spec.feature_normed_twice = twice.value_or(dialect == Dialect::kModelOpt);
  build.note("feature_normed_twice",
             twice                       ? Source::kRead
             : spec.feature_normed_twice ? Source::kInferred
                                         : Source::kDefaulted,
             twice                       ? "feature_normed_twice"
             : spec.feature_normed_twice ? "ModelOpt's trainer applies input_layernorm to the feature before hidden_norm"
                                         : "hidden_norm reads the feature itself");
  if (spec.feature_normed_twice) {
    build.find(Severity::kWarning, "feature-normed-twice",
               "ModelOpt's trainer norms the feature by input_layernorm and then by hidden_norm, every engine by hidden_norm only",
               "compare acceptance both ways: feature_normed_twice false in config.json is what engines do");
  }

  stated.fc_taps = tensors.taps_of_fc(spec.target_hidden);
  if (spec.attention == AttentionKind::kMla && dialect == Dialect::kSpecForge) stated.usual_target = "deepseek_v3";
  AERIE_TRY(settle_taps(stated, options, build));
  const auto count = config.integer("num_aux_hidden_states", 0, kMaxTap);
  AERIE_TRY(config.status());
  if (count && spec.has_fc && static_cast<size_t>(*count) != spec.taps.size()) {
    return corrupt("config.json: num_aux_hidden_states is {}, but {} taps are read", *count, spec.taps.size());
  }
  const bool tied = tie_head(tensors, claims, build);
  AERIE_TRY(settle_by_tensors(tensors, claims, {}, build));
  if (tied) build.note("own_head", Source::kRead, "tie_word_embeddings: embed_tokens.weight is the head too");
  if (dialect == Dialect::kModelOpt) look_for_export_changes(build);
  if (dialect == Dialect::kSpecForge && !tensors.has("t2d") && !spec.d2t.empty()) {
    build.find(Severity::kNote, "t2d-missing",
               "t2d is not in the checkpoint, though SpecForge writes it; nothing needs it but a check of d2t");
  }
  // Keys of a DeepSeek or a generation config, of a trainer, and `bias`, which the tensors answer.
  // clang-format off
  config.ignore({"aerie_training", "aux_loss_alpha", "bias", "chunk_size_feed_forward", "diversity_penalty", "do_sample", "early_stopping",
                 "encoder_no_repeat_ngram_size", "ep_size", "first_k_dense_replace", "forced_bos_token_id", "forced_eos_token_id", "id2label",
                 "is_decoder", "is_encoder_decoder", "label2id", "length_penalty", "max_length", "min_length", "moe_intermediate_size",
                 "moe_layer_freq", "n_group", "n_routed_experts", "n_shared_experts", "no_repeat_ngram_size", "norm_topk_prob", "num_beam_groups",
                 "num_beams", "num_experts_per_tok", "num_nextn_predict_layers", "num_return_sequences", "output_attentions",
                 "output_hidden_states", "output_scores", "prefix", "problem_type", "pruned_heads", "quantization_config", "remove_invalid_values",
                 "repetition_penalty", "return_dict", "return_dict_in_generate", "routed_scaling_factor", "scoring_func", "sep_token_id", "seq_aux",
                 "suppress_tokens", "target_model_type", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
                 "tokenizer_class", "top_k", "top_p", "topk_group", "topk_method", "torchscript", "typical_p", "use_bfloat16", "bad_words_ids",
                 "begin_suppress_tokens", "cross_attention_hidden_size", "decoder_start_token_id", "exponential_decay_length_penalty",
                 "finetuning_task", "add_cross_attention", "unsloth_version", "compression_config"});
  // clang-format on
  if (inner != nullptr) AERIE_TRY(inner->finish());
  AERIE_TRY(config.finish());
  AERIE_TRY(tensors.hand_out(any_tensor_starts_with(raw, "midlayer.") ? "midlayer." : "layers.0.", out));
  return out;
}

}  // namespace aerie::flat
