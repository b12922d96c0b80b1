#include "eagle3/dialects/speculators.h"

#include "eagle3/dialects/named_tensors.h"
#include "eagle3/dialects/taps.h"
#include "formats/printable.h"

namespace aerie::speculators {
namespace {

using Json = nlohmann::json;

Status read_norms(ConfigReader& config, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  const auto residual = config.boolean("norm_before_residual");
  build.set("norm_before_residual", spec.norm_before_residual, residual, "norm_before_residual", false,
            "the speculators config class's default; vLLM's reader takes true where the key is absent, so state it");
  const auto concat = config.boolean("norm_before_fc"), per_tap = config.boolean("fc_norm"), post = config.boolean("norm_output");
  AERIE_TRY(config.status());
  if (!residual) {
    build.find(Severity::kWarning, "norm-before-residual-defaulted",
               "norm_before_residual is not stated: the library's default is false, its training program's and vLLM's true",
               "state the value that the drafter was trained with");
  }
  if (concat.value_or(false) && per_tap.value_or(false)) {
    return corrupt("config.json: norm_before_fc and fc_norm are both true, but a feature is normalised in one way only");
  }
  spec.feature_norm = concat.value_or(false) ? FeatureNorm::kConcat : per_tap.value_or(false) ? FeatureNorm::kPerTap : FeatureNorm::kNone;
  build.note("feature_norm", concat || per_tap ? Source::kRead : Source::kDefaulted,
             concat || per_tap ? "norm_before_fc, fc_norm" : "the dialect's defaults of norm_before_fc and fc_norm are false");
  spec.feedback = post.value_or(false) ? Feedback::kPostNorm : Feedback::kPreNorm;
  build.note("feedback", post ? Source::kRead : Source::kDefaulted, post ? "norm_output" : "the dialect's default of norm_output is false");
  for (const char* field : {"head_norm", "feature_normed_twice", "logit_scale"})
    build.note(field, Source::kDefaulted, "the dialect has one value only");
  return {};
}

}  // namespace

Expected<DraftCheckpoint> load_checkpoint(const RawCheckpoint& raw, const OpenOptions& options) {
  DraftCheckpoint out;
  out.owner = raw.owner();
  SpecBuilder build(out);
  DraftSpec& spec = out.spec;

  ConfigReader config(raw.config(), "");
  const auto type = config.text("speculators_model_type");
  AERIE_TRY(config.status());
  if (!type) return config.missing("speculators_model_type", "this is not a checkpoint of the speculators dialect");
  if (*type != "eagle3") {
    return unsupported("config.json: speculators_model_type is {}: only eagle3 drafters are supported", printable(*type));
  }
  for (const std::string& architecture : config.texts("architectures").value_or(std::vector<std::string>())) {
    if (architecture != "Eagle3DraftModel" && architecture != "Eagle3Speculator") {
      return unsupported("config.json: architectures names {}, expected Eagle3DraftModel", printable(architecture));
    }
  }
  const Json* object = config.object("transformer_layer_config");
  AERIE_TRY(config.status());
  if (object == nullptr) return config.missing("transformer_layer_config");
  ConfigReader layer(*object, "transformer_layer_config.");
  LayerClaims claims;
  AERIE_TRY(read_layer_config(layer, build, claims));
  AERIE_TRY(layer.finish());
  AERIE_TRY(read_norms(config, build));

  AERIE_ASSIGN(const NamedTensors tensors, NamedTensors::of_folder(raw));
  StatedTaps stated;
  stated.ids = config.integers("eagle_aux_hidden_state_layer_ids", 0, kMaxTap);
  stated.key = "eagle_aux_hidden_state_layer_ids";
  stated.producer = "speculators";
  stated.certain = true;
  build.set("target_hidden", spec.target_hidden, config.integer("target_hidden_size", 1, kMaxConfigWidth), "target_hidden_size",
            spec.hidden, "the dialect's default: as wide as the drafter");
  build.set("draft_vocab", spec.draft_vocab, config.integer("draft_vocab_size", 1, kMaxConfigVocab), "draft_vocab_size", 0,
            "from the rows of lm_head.weight", Source::kInferred);
  claims.tied = config.boolean("tie_word_embeddings");
  const auto count = config.integer("num_aux_hidden_states", 0, kMaxTap);
  AERIE_TRY(config.status());
  if (claims.tied.value_or(false)) {
    return unsupported("config.json: tie_word_embeddings is true, but a drafter's head is not tied to its embedding");
  }
  stated.fc_taps = tensors.taps_of_fc(spec.target_hidden);
  AERIE_TRY(settle_taps(stated, options, build));
  if (count && spec.has_fc && static_cast<size_t>(*count) != spec.taps.size()) {
    return corrupt("config.json: num_aux_hidden_states is {}, but eagle_aux_hidden_state_layer_ids has {} entries", *count,
                   spec.taps.size());
  }
  config.ignore({"aerie_training", "auto_map", "dtype", "embed_requires_grad", "has_no_defaults_at_init", "model_type",
                 "speculators_config", "speculators_version", "torch_dtype", "transformers_version"});
  AERIE_TRY(config.finish());

  AERIE_TRY(settle_by_tensors(tensors, claims, {.layers_as_claimed = true}, build));
  AERIE_TRY(tensors.hand_out("layers.0.", out));
  return out;
}

}  // namespace aerie::speculators
