#include "eagle3/dialects/speculators.h"

#include <cstring>
#include <set>

#include "eagle3/config_reader.h"
#include "eagle3/dialects/speculators_names.h"
#include "formats/printable.h"

namespace aerie::speculators {
namespace {

using Json = nlohmann::json;

constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxVocab = 1 << 24;

/// Sets a field and remembers where its value came from.
class SpecBuilder {
 public:
  explicit SpecBuilder(DraftSpec& spec) : spec_(spec) {}

  template <class T, class Value>
  void set(const char* field, T& out, const std::optional<Value>& read, const std::string& key, T fallback, const std::string& why,
           Source source = Source::kDefaulted) {
    out = read ? static_cast<T>(*read) : fallback;
    note(field, read ? Source::kRead : source, read ? key : why);
  }
  void note(const char* field, Source source, const std::string& why) { spec_.provenance[field] = {source, why}; }

 private:
  DraftSpec& spec_;
};

/// RoPE is stated twice by some writers (transformers 4 reads rope_theta, transformers 5 reads rope_parameters).
Status read_rope(ConfigReader& layer, DraftSpec& spec, SpecBuilder& build) {
  const auto plain = layer.number("rope_theta");
  const auto scaled = [&](const std::string& key, const std::string& type) {
    return unsupported("config.json: {} asks for the RoPE scaling {}, which is not supported yet", layer.name(key), printable(type));
  };
  std::optional<double> nested;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* object = layer.object(key);
    if (object == nullptr) continue;
    ConfigReader reader(*object, layer.name(key) + ".");
    const auto old_type = reader.text("type");
    const auto type = reader.text("rope_type");
    const auto theta = reader.number("rope_theta");
    AERIE_TRY(reader.status());
    for (const auto& given : {type, old_type}) {
      if (given && *given != "default") return scaled(key, *given);
    }
    const auto partial = reader.number("partial_rotary_factor");
    if (partial && *partial != 1.0) return scaled(key, "partial_rotary_factor");
    AERIE_TRY(reader.finish());
    if (theta && nested && *theta != *nested) {
      return corrupt("config.json: rope_parameters says rope_theta {}, rope_scaling says {}", *nested, *theta);
    }
    if (theta) nested = theta;
  }
  AERIE_TRY(layer.status());
  if (plain && nested && *plain != *nested) {
    return corrupt("config.json: {} is {} but {} says {}: remove the wrong one", layer.name("rope_theta"), *plain,
                   layer.name("rope_parameters.rope_theta"), *nested);
  }
  build.set("rope_theta", spec.rope_theta, plain ? plain : nested, layer.name(plain ? "rope_theta" : "rope_parameters.rope_theta"),
            10000.0f, "the Llama config's default; a drafter never inherits the target's");
  return {};
}

/// What this program cannot compute, though the config may ask for it.
Status refuse_unsupported(ConfigReader& layer) {
  const auto model_type = layer.text("model_type");
  if (model_type && *model_type != "llama") {
    return unsupported("config.json: {} is {}: only llama layers are supported yet", layer.name("model_type"), printable(*model_type));
  }
  for (const char* key : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    if (layer.boolean(key).value_or(false)) return unsupported("config.json: {} is true, which is not supported yet", layer.name(key));
  }
  const auto layers = layer.integer("num_hidden_layers", 0, kMaxWidth);
  if (layers && *layers != 1) {
    return unsupported("config.json: {} is {}: only drafters of one layer are supported yet", layer.name("num_hidden_layers"), *layers);
  }
  const auto activation = layer.text("hidden_act");
  if (activation && *activation != "silu" && *activation != "swish") {
    return unsupported("config.json: {} is {}: only silu is supported", layer.name("hidden_act"), printable(*activation));
  }
  const auto types = layer.texts("layer_types");
  for (const std::string& type : types.value_or(std::vector<std::string>())) {
    if (type != "full_attention") {
      return unsupported("config.json: {} holds {}: only full_attention is supported yet", layer.name("layer_types"), printable(type));
    }
  }
  const auto window = layer.integer("sliding_window", 0, INT32_MAX);
  if (window && !types) return unsupported("config.json: {} is {}, which is not supported yet", layer.name("sliding_window"), *window);
  const auto partial = layer.number("partial_rotary_factor");
  if (partial && *partial != 1.0)
    return unsupported("config.json: {} is {}, which is not supported yet", layer.name("partial_rotary_factor"), *partial);
  return layer.status();
}

Status read_layer(const Json& object, DraftSpec& spec, SpecBuilder& build) {
  ConfigReader layer(object, "transformer_layer_config.");
  AERIE_TRY(refuse_unsupported(layer));
  const auto required = [&](const char* key, const char* field, int max, int& out) -> Status {
    const auto value = layer.integer(key, 1, max);
    AERIE_TRY(layer.status());
    if (!value) return layer.missing(key);
    out = *value;
    build.note(field, Source::kRead, layer.name(key));
    return {};
  };
  AERIE_TRY(required("hidden_size", "hidden", kMaxWidth, spec.hidden));
  AERIE_TRY(required("intermediate_size", "intermediate", kMaxWidth, spec.intermediate));
  AERIE_TRY(required("num_attention_heads", "heads", kMaxWidth, spec.heads));
  AERIE_TRY(required("vocab_size", "vocab", kMaxVocab, spec.vocab));
  build.set("kv_heads", spec.kv_heads, layer.integer("num_key_value_heads", 1, kMaxWidth), layer.name("num_key_value_heads"), spec.heads,
            "the Llama config's default: as many as heads");
  build.set("head_dim", spec.head_dim, layer.integer("head_dim", 1, kMaxWidth), layer.name("head_dim"), spec.hidden / spec.heads,
            "hidden_size / num_attention_heads", Source::kInferred);
  spec.rope_dim = spec.head_dim;
  build.note("rope_dim", Source::kDefaulted, "the Llama config's default: all of a head");
  build.set("rms_eps", spec.rms_eps, layer.number("rms_norm_eps"), layer.name("rms_norm_eps"), 1e-6f, "the Llama config's default");
  build.set("max_positions", spec.max_positions, layer.integer("max_position_embeddings", 1, INT32_MAX),
            layer.name("max_position_embeddings"), 2048, "the Llama config's default");
  AERIE_TRY(read_rope(layer, spec, build));
  // Of the rest of a Llama config nothing reaches a drafter's forward: whether a head is tied is answered by its tensors.
  layer.ignore({"architectures", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "is_llama_config",
                "max_window_layers", "pad_token_id", "pretraining_tp", "tie_word_embeddings", "torch_dtype", "transformers_version",
                "use_cache", "_attn_implementation_autoset", "_name_or_path"});
  return layer.finish();
}

/// The whole config; what the tensors decide (own_embedding, own_head, d2t, a missing draft_vocab_size) is left to read_tensors.
Status read_config(const Json& root, DraftSpec& spec) {
  SpecBuilder build(spec);
  ConfigReader config(root, "");
  const auto type = config.text("speculators_model_type");
  if (!type) return config.missing("speculators_model_type", "this is not a checkpoint of the speculators dialect");
  if (*type != "eagle3") {
    return unsupported("config.json: speculators_model_type is {}: only eagle3 drafters are supported", printable(*type));
  }
  for (const std::string& architecture : config.texts("architectures").value_or(std::vector<std::string>())) {
    if (architecture != "Eagle3DraftModel" && architecture != "Eagle3Speculator") {
      return unsupported("config.json: architectures names {}, expected Eagle3DraftModel", printable(architecture));
    }
  }
  const Json* layer = config.object("transformer_layer_config");
  AERIE_TRY(config.status());
  if (layer == nullptr) return config.missing("transformer_layer_config");
  AERIE_TRY(read_layer(*layer, spec, build));

  const auto taps = config.integers("eagle_aux_hidden_state_layer_ids", 0, 1 << 14);
  AERIE_TRY(config.status());
  if (!taps) {
    return config.missing("eagle_aux_hidden_state_layer_ids",
                          "for a target of N blocks this dialect's default is [2, N/2, N-3]; write the numbers that it was trained with");
  }
  spec.taps = *taps;
  build.note("taps", Source::kRead, "eagle_aux_hidden_state_layer_ids (boundaries in this dialect)");
  build.set("target_hidden", spec.target_hidden, config.integer("target_hidden_size", 1, kMaxWidth), "target_hidden_size", spec.hidden,
            "the dialect's default: as wide as the drafter");
  build.set("draft_vocab", spec.draft_vocab, config.integer("draft_vocab_size", 1, kMaxVocab), "draft_vocab_size", 0,
            "from the rows of lm_head.weight", Source::kInferred);
  build.set("norm_before_residual", spec.norm_before_residual, config.boolean("norm_before_residual"), "norm_before_residual", false,
            "the speculators config class's default; vLLM's reader takes true where the key is absent, so state it");
  const auto concat = config.boolean("norm_before_fc"), per_tap = config.boolean("fc_norm"), post = config.boolean("norm_output");
  if (concat.value_or(false) && per_tap.value_or(false)) {
    return corrupt("config.json: norm_before_fc and fc_norm are both true, but a feature is normalised in one way only");
  }
  spec.feature_norm = concat.value_or(false) ? FeatureNorm::kConcat : per_tap.value_or(false) ? FeatureNorm::kPerTap : FeatureNorm::kNone;
  build.note("feature_norm", concat || per_tap ? Source::kRead : Source::kDefaulted,
             concat || per_tap ? "norm_before_fc, fc_norm" : "the dialect's defaults of norm_before_fc and fc_norm are false");
  spec.feedback = post.value_or(false) ? Feedback::kPostNorm : Feedback::kPreNorm;
  build.note("feedback", post ? Source::kRead : Source::kDefaulted, post ? "norm_output" : "the dialect's default of norm_output is false");

  if (config.boolean("tie_word_embeddings").value_or(false)) {
    return unsupported("config.json: tie_word_embeddings is true, but a drafter's head is not tied to its embedding");
  }
  const auto count = config.integer("num_aux_hidden_states", 0, 1 << 14);
  AERIE_TRY(config.status());
  if (count && static_cast<size_t>(*count) != spec.taps.size()) {
    return corrupt("config.json: num_aux_hidden_states is {}, but eagle_aux_hidden_state_layer_ids has {} entries", *count,
                   spec.taps.size());
  }
  config.ignore({"aerie_training", "auto_map", "dtype", "embed_requires_grad", "has_no_defaults_at_init", "model_type",
                 "speculators_config", "speculators_version", "torch_dtype", "transformers_version"});
  return config.finish();
}

std::string shape_string(const std::vector<uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// Why a tensor that no canonical name asks for is there.
Status explain_unknown(const std::string& name, const DraftSpec& spec) {
  const auto contains = [&](const char* part) { return name.find(part) != std::string::npos; };
  const std::string shown = printable(name);
  if (name == "input_norm.weight")
    return corrupt("{} is there, but norm_before_fc is not true in config.json: it would never be applied", shown);
  if (name.rfind("fc_norm.", 0) == 0) {
    if (spec.feature_norm != FeatureNorm::kPerTap) {
      return corrupt("{} is there, but fc_norm is not true in config.json: it would never be applied", shown);
    }
    return corrupt("{} is there, but the drafter has only {} taps", shown, spec.taps.size());
  }
  if (contains("q_norm") || contains("k_norm")) return unsupported("{}: norms of queries and keys are not supported yet", shown);
  if (name.size() > 5 && name.compare(name.size() - 5, 5, ".bias") == 0) return unsupported("{}: biases are not supported yet", shown);
  if (name.rfind("midlayer.", 0) == 0)
    return unsupported("{} is a name of the SpecForge dialect, but config.json is of the speculators one", shown);
  if (name.rfind("layers.", 0) == 0 && name.rfind("layers.0.", 0) != 0) {
    return unsupported("{}: only drafters of one layer are supported yet", shown);
  }
  return corrupt("{} is a tensor that no part of the forward uses; remove it if it belongs to training only", shown);
}

Status read_d2t(const TensorView& tensor, DraftSpec& spec) {
  if (tensor.type != DType::kI64 && tensor.type != DType::kI32) {
    return corrupt("d2t has the type {}, expected I64", dtype_name(tensor.type));
  }
  if (tensor.shape != std::vector<uint64_t>{static_cast<uint64_t>(spec.draft_vocab)}) {
    return corrupt("d2t has the shape {}, expected [{}] (draft_vocab_size)", tensor.shape_string(), spec.draft_vocab);
  }
  bool all_zero = true, absolute = true;
  int64_t previous = -1;
  Status out_of_range;
  spec.d2t.resize(static_cast<size_t>(spec.draft_vocab));
  for (int d = 0; d < spec.draft_vocab; ++d) {
    int64_t offset = 0;
    if (tensor.type == DType::kI64) {
      std::memcpy(&offset, tensor.data.data() + static_cast<size_t>(d) * 8, 8);
    } else {
      int32_t narrow = 0;
      std::memcpy(&narrow, tensor.data.data() + static_cast<size_t>(d) * 4, 4);
      offset = narrow;
    }
    all_zero = all_zero && offset == 0;
    absolute = absolute && offset > previous && offset < spec.vocab;
    previous = offset;
    // Compared before the addition, which could overflow.
    if (offset < -static_cast<int64_t>(d) || offset >= spec.vocab - static_cast<int64_t>(d)) {
      if (out_of_range.ok()) {
        out_of_range =
            corrupt("d2t[{}] is {}: draft token {} plus this offset is outside the target's vocabulary of {}", d, offset, d, spec.vocab);
      }
      continue;
    }
    spec.d2t[static_cast<size_t>(d)] = static_cast<int32_t>(d + offset);
  }
  if (!out_of_range.ok()) {
    if (!absolute) return out_of_range;
    return corrupt("{}; the values look like target ids, but this dialect stores offsets (target id = d + d2t[d])", out_of_range.message());
  }
  if (all_zero && spec.draft_vocab == spec.vocab) spec.d2t.clear();  // the identity
  return {};
}

Status check_t2d(const TensorView& tensor, const DraftSpec& spec) {
  if (tensor.type != DType::kBool && tensor.type != DType::kU8)
    return corrupt("t2d has the type {}, expected BOOL", dtype_name(tensor.type));
  if (tensor.shape != std::vector<uint64_t>{static_cast<uint64_t>(spec.vocab)}) {
    return corrupt("t2d has the shape {}, expected [{}] (vocab_size)", tensor.shape_string(), spec.vocab);
  }
  const std::vector<int32_t> to_draft = invert_d2t(spec);
  for (size_t t = 0; t < to_draft.size(); ++t) {
    if (tensor.data[t] > 1) return corrupt("t2d[{}] is {}, expected 0 or 1", t, tensor.data[t]);
    if ((tensor.data[t] != 0) != (to_draft[t] >= 0)) {
      return corrupt("t2d says that target token {} is {}the draft vocabulary, d2t says the opposite", t,
                     tensor.data[t] != 0 ? "in " : "outside ");
    }
  }
  return {};
}

/// Decides what the tensors decide, then accounts for every one of them.
Status read_tensors(const RawCheckpoint& file, DraftCheckpoint& out) {
  DraftSpec& spec = out.spec;
  SpecBuilder build(spec);
  spec.own_embedding = file.has(file_name("embed_tokens"));
  build.note("own_embedding", Source::kInferred,
             spec.own_embedding ? "embed_tokens.weight is in the checkpoint" : "embed_tokens.weight is not in the checkpoint");
  spec.own_head = file.has(file_name("lm_head"));
  if (spec.own_head) {
    const TensorView* head = file.find(file_name("lm_head"));
    if (spec.draft_vocab == 0 && head->rows() <= static_cast<uint64_t>(spec.vocab)) spec.draft_vocab = static_cast<int>(head->rows());
    if (spec.draft_vocab == 0) {
      return corrupt("lm_head.weight has {} rows, more than the target's vocabulary of {}", head->rows(), spec.vocab);
    }
  } else if (spec.draft_vocab == 0) {
    return not_found("config.json has no draft_vocab_size and there is no lm_head.weight to infer it from");
  } else if (spec.draft_vocab != spec.vocab || spec.hidden != spec.target_hidden) {
    return not_found("lm_head.weight is missing, and the target's head [{}, {}] cannot stand in for one of [{}, {}]", spec.vocab,
                     spec.target_hidden, spec.draft_vocab, spec.hidden);
  }
  build.note("own_head", Source::kInferred,
             spec.own_head ? "lm_head.weight is in the checkpoint" : "lm_head.weight is not in the checkpoint");

  if (spec.draft_vocab > spec.vocab) {
    return corrupt("config.json: draft_vocab_size is {}, larger than vocab_size, which is {}", spec.draft_vocab, spec.vocab);
  }
  if (file.has("d2t")) {
    AERIE_TRY(read_d2t(*file.find("d2t"), spec));
    build.note("d2t", Source::kRead, "d2t (offsets in this dialect)");
  } else if (spec.draft_vocab != spec.vocab) {
    return not_found("d2t is missing, but the draft vocabulary of {} is smaller than the target's of {}", spec.draft_vocab, spec.vocab);
  } else {
    build.note("d2t", Source::kDefaulted, "both vocabularies are the same");
  }
  AERIE_TRY(spec.validate());
  if (file.has("t2d")) {
    AERIE_TRY(check_t2d(*file.find("t2d"), spec));
  } else if (!spec.d2t.empty() && spec.d2t.back() == spec.draft_vocab - 1 && spec.draft_vocab < spec.vocab) {
    bool identity = true;
    for (int d = 0; d < spec.draft_vocab; ++d) identity = identity && spec.to_target(d) == d;
    if (identity) {
      return corrupt(
          "d2t is all zeros, so that the {} draft tokens would be the first of the target's {}, and there is no t2d to confirm it",
          spec.draft_vocab, spec.vocab);
    }
  }

  const std::vector<DraftTensor> wanted_tensors = draft_tensors(spec);
  std::set<std::string> known = {"d2t", "t2d"};
  for (const DraftTensor& wanted : wanted_tensors) known.insert(file_name(wanted.name));
  for (const TensorView& tensor : file.tensors()) {
    if (known.count(tensor.name) == 0) return explain_unknown(tensor.name, spec);
  }
  for (const DraftTensor& wanted : wanted_tensors) {
    const std::string name = file_name(wanted.name);
    if (!file.has(name)) {
      const bool flagged = wanted.name == "input_norm" || wanted.name.rfind("fc_norm.", 0) == 0;
      return not_found("the tensor {} {} is missing{}", name, shape_string(wanted.shape),
                       flagged ? ", though config.json says that the feature is normalised with it" : "");
    }
    const TensorView* tensor = file.find(name);
    if (tensor->shape != wanted.shape) {
      return corrupt("{} has the shape {}, expected {} from config.json", name, tensor->shape_string(), shape_string(wanted.shape));
    }
    if (tensor->type != DType::kF32 && tensor->type != DType::kF16 && tensor->type != DType::kBF16) {
      return unsupported("{} has the type {}: only F32, F16 and BF16 weights are supported", name, dtype_name(tensor->type));
    }
    out.tensors[wanted.name] = *tensor;
  }
  return {};
}

}  // namespace

std::string file_name(const std::string& canonical) {
  static const std::map<std::string, std::string> kModules = {{"input_layernorm", "input_layernorm"},
                                                              {"hidden_norm", "hidden_norm"},
                                                              {"post_attention_layernorm", "post_attention_layernorm"},
                                                              {"q", "self_attn.q_proj"},
                                                              {"k", "self_attn.k_proj"},
                                                              {"v", "self_attn.v_proj"},
                                                              {"o", "self_attn.o_proj"},
                                                              {"gate", "mlp.gate_proj"},
                                                              {"up", "mlp.up_proj"},
                                                              {"down", "mlp.down_proj"}};
  const std::string layer = "layers.0.";
  if (canonical.rfind(layer, 0) != 0) return canonical + ".weight";
  return layer + kModules.at(canonical.substr(layer.size())) + ".weight";
}

Expected<DraftCheckpoint> load_checkpoint(const RawCheckpoint& raw) {
  DraftCheckpoint out;
  out.spec.dialect = "speculators";
  out.spec.path = raw.path();
  out.owner = raw.owner();
  AERIE_TRY(read_config(raw.config(), out.spec).with_context(raw.path()));
  AERIE_TRY(read_tensors(raw, out).with_context(raw.path()));
  return out;
}

Expected<DraftCheckpoint> load_checkpoint(const std::string& folder) {
  AERIE_ASSIGN(const RawCheckpoint raw, RawCheckpoint::open(folder));
  return load_checkpoint(raw);
}

}  // namespace aerie::speculators
