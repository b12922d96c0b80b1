// The part of a DraftSpec on which the tensors have the last word.
#include <algorithm>

#include "eagle3/dialects/named_tensors.h"
#include "formats/printable.h"

namespace aerie {
namespace {

constexpr int kMaxDraftLayers = 64;

Status settle_layers(const NamedTensors& tensors, const LayerClaims& claims, const TensorRules& rules, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  const int stored = std::max(tensors.layers(), 1);
  spec.layers = stored;
  if (stored > kMaxDraftLayers) return corrupt("the tensors have {} layers, at most {} are supported", stored, kMaxDraftLayers);
  if (claims.layers && *claims.layers >= 1 && (rules.layers_as_claimed || *claims.layers <= stored)) {
    if (*claims.layers > kMaxDraftLayers)
      return corrupt("config.json: num_hidden_layers is {}, at most {} are supported", *claims.layers, kMaxDraftLayers);
    spec.layers = *claims.layers;
    build.note("layers", Source::kRead, claims.layers_key);
  } else {
    build.note("layers", Source::kInferred, fmt::format("tensors of {} are stored", stored == 1 ? "one layer" : "these layers"));
    if (claims.layers.value_or(0) > stored) {
      build.find(Severity::kWarning, "layers-overstated",
                 fmt::format("config.json says num_hidden_layers {}, but {} stored: SGLang would leave the others uninitialised",
                             *claims.layers, stored == 1 ? "one is" : fmt::format("{} are", stored)),
                 fmt::format("set num_hidden_layers to {}", stored));
    }
  }
  if (spec.layers == 1) return {};
  bool hidden_norm = false, input_norm = false, wide = false;
  for (int j = 1; j < spec.layers; ++j) {
    const std::string layer = fmt::format("layers.{}.", j);
    hidden_norm = hidden_norm || tensors.has(layer + "hidden_norm");
    input_norm = input_norm || tensors.has(layer + "input_layernorm");
    for (const char* in : {"q", "q_a", "kv_a"}) {
      const TensorView* tensor = tensors.find(layer + in);
      wide = wide || (tensor != nullptr && tensor->cols() == 2 * static_cast<uint64_t>(spec.hidden));
    }
  }
  const auto set = [&](LayerLayout layout, const char* why) {
    spec.layout = layout;
    build.note("layout", Source::kInferred, why);
  };
  if (wide) {
    set(LayerLayout::kConcat, "the projections of the later layers are 2H wide");
  } else if (hidden_norm && !input_norm) {
    set(LayerLayout::kHiddenNorm, "the later layers have hidden_norm only");
  } else if (input_norm && !hidden_norm) {
    set(LayerLayout::kInputNorm, "the later layers have input_layernorm only");
  } else {
    return corrupt("the later layers have {} hidden_norm and input_layernorm, so that what they read cannot be told: engines differ",
                   hidden_norm ? "both" : "neither");
  }
  return {};
}

/// A bias that a flag promises and tensors may hold. Set where the tensors are there; a flag that says otherwise is an error.
Status settle_bias(const NamedTensors& tensors, const char* field, const std::string& tensor, const std::optional<bool>& flag,
                   const char* key, bool required, bool& out, SpecBuilder& build) {
  out = tensors.has(tensor);
  const bool stated = flag && *flag == out;
  build.note(field, stated ? Source::kRead : Source::kInferred,
             stated ? key : fmt::format("{} is {}in the checkpoint", checkpoint_name(tensor), out ? "" : "not "));
  if (flag && !*flag && out) {
    return corrupt("{} is there, but config.json says that {} is false: it would never be applied", printable(tensors.find(tensor)->name),
                   key);
  }
  if (required && flag.value_or(false) && !out)
    return not_found("{} is missing, though config.json says that {} is true", checkpoint_name(tensor), key);
  return {};
}

Status settle_vocabulary(const NamedTensors& tensors, const LayerClaims& claims, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  const TensorView* embedding = tensors.find("embed_tokens");
  spec.own_embedding = embedding != nullptr;
  build.note("own_embedding", Source::kInferred,
             spec.own_embedding ? "embed_tokens.weight is in the checkpoint" : "embed_tokens.weight is not in the checkpoint");
  const TensorView* head = tensors.find("lm_head");
  spec.own_head = head != nullptr;
  if (head != nullptr) {
    if (spec.draft_vocab == 0 && head->rows() <= static_cast<uint64_t>(spec.vocab)) spec.draft_vocab = static_cast<int>(head->rows());
    if (spec.draft_vocab == 0) {
      return corrupt("lm_head.weight has {} rows, more than the target's vocabulary of {}", head->rows(), spec.vocab);
    }
  } else {
    if (spec.draft_vocab == 0 && tensors.has("d2t"))
      spec.draft_vocab = static_cast<int>(std::min(tensors.find("d2t")->cols(), uint64_t{kMaxConfigVocab}));
    if (spec.draft_vocab == 0) return not_found("config.json has no draft_vocab_size and there is no lm_head.weight to infer it from");
    if (spec.draft_vocab != spec.vocab || spec.hidden != spec.target_hidden) {
      return not_found("lm_head.weight is missing, and the target's head [{}, {}] cannot stand in for one of [{}, {}]", spec.vocab,
                       spec.target_hidden, spec.draft_vocab, spec.hidden);
    }
    build.find(Severity::kNote, "target-head", "the drafter has no lm_head of its own: the target's is used");
  }
  build.note("own_head", Source::kInferred,
             spec.own_head ? "lm_head.weight is in the checkpoint" : "lm_head.weight is not in the checkpoint");
  if (spec.draft_vocab > spec.vocab) {
    return corrupt("config.json: draft_vocab_size is {}, larger than vocab_size, which is {}", spec.draft_vocab, spec.vocab);
  }
  if (claims.tied.value_or(false) && spec.own_head) {
    build.find(Severity::kWarning, "head-said-to-be-tied",
               "tie_word_embeddings is true though lm_head.weight is stored: SGLang would use the embedding instead",
               "set tie_word_embeddings to false");
  }
  return {};
}

}  // namespace

Status settle_by_tensors(const NamedTensors& tensors, const LayerClaims& claims, const TensorRules& rules, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  AERIE_TRY(settle_layers(tensors, claims, rules, build));
  AERIE_TRY(settle_vocabulary(tensors, claims, build));
  AERIE_TRY(settle_bias(tensors, "fc_bias", "fc_bias", std::nullopt, "bias", false, spec.fc_bias, build));
  AERIE_TRY(settle_bias(tensors, "o_bias", "layers.0.o_bias", claims.attention_bias, "attention_bias", false, spec.o_bias, build));
  AERIE_TRY(settle_bias(tensors, "mlp_bias", "layers.0.gate_bias", claims.mlp_bias, "mlp_bias", true, spec.mlp_bias, build));
  if (spec.attention == AttentionKind::kGqa) {
    AERIE_TRY(settle_bias(tensors, "qkv_bias", "layers.0.q_bias", claims.attention_bias, "attention_bias", true, spec.qkv_bias, build));
    spec.qk_norm = claims.qk_norm || tensors.has("layers.0.q_norm");
    build.note("qk_norm", Source::kInferred,
               claims.qk_norm ? "layers of this model type have them"
               : spec.qk_norm ? "the tensors are there"
                              : "there are no such tensors");
    if (spec.qk_norm && !claims.qk_norm) {
      build.find(Severity::kWarning, "qk-norm-unannounced",
                 "queries and keys have norms, but the model type has none: engines drop them or refuse the file",
                 "name the Qwen3 architecture in config.json");
    }
  }
  if (spec.attention == AttentionKind::kMla) {
    for (const char* field : {"qkv_bias", "qk_norm"}) build.note(field, Source::kDefaulted, "MLA has none");
  }
  AERIE_TRY(settle_window(claims, build));
  AERIE_TRY(read_vocab_map(tensors.find("d2t"), tensors.find("t2d"), rules.d2t, build));
  return validate_but_unknown_taps(spec);
}

Status validate_but_unknown_taps(const DraftSpec& spec) {
  DraftSpec copy = spec;
  for (int& tap : copy.taps) tap = tap == kUnknownTap ? 0 : tap;
  return copy.validate();
}

}  // namespace aerie
