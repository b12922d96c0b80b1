#include "eagle3/dialects/gguf_eagle3.h"

#include <cmath>
#include <cstring>

#include "eagle3/dialects/named_tensors.h"
#include "eagle3/dialects/rope_config.h"
#include "eagle3/dialects/taps.h"
#include "formats/printable.h"

namespace aerie::gguf_eagle3 {
namespace {

using Json = nlohmann::json;

constexpr const char* kPrefix = "eagle3.";

struct Name {
  const char* canonical;
  const char* file;
};
constexpr Name kNames[] = {{"embed_tokens", "token_embd.weight"},
                           {"input_norm", "enc.output_norm.weight"},
                           {"fc", "fc.weight"},
                           {"layers.0.input_layernorm", "blk.0.attn_norm.weight"},
                           {"layers.0.hidden_norm", "blk.0.attn_norm_2.weight"},
                           {"layers.0.hidden_norm", "blk.0.hidden_norm.weight"},  // early files
                           {"layers.0.q", "blk.0.attn_q.weight"},
                           {"layers.0.k", "blk.0.attn_k.weight"},
                           {"layers.0.v", "blk.0.attn_v.weight"},
                           {"layers.0.o", "blk.0.attn_output.weight"},
                           {"layers.0.post_attention_layernorm", "blk.0.ffn_norm.weight"},
                           {"layers.0.gate", "blk.0.ffn_gate.weight"},
                           {"layers.0.up", "blk.0.ffn_up.weight"},
                           {"layers.0.down", "blk.0.ffn_down.weight"},
                           {"norm", "output_norm.weight"},
                           {"lm_head", "output.weight"},
                           {"d2t", "d2t"}};

Json to_json(const GgufValue& value) {
  return std::visit([](const auto& v) { return Json(v); }, value.value);
}

/// The rows of a projection of heads, each head's two halves interleaved (permute) or put back.
std::vector<uint8_t> reorder_rows(const TensorView& tensor, int heads, int head_dim, bool interleave) {
  std::vector<uint8_t> out(tensor.data.size());
  const size_t row = tensor.data.size() / (static_cast<size_t>(heads) * static_cast<size_t>(head_dim));
  const int half = head_dim / 2;
  for (int h = 0; h < heads; ++h) {
    for (int j = 0; j < head_dim; ++j) {
      // Row j of a head is value j/half of pair j%half; interleaved it is row 2 * pair + value.
      const int other = 2 * (j % half) + j / half;
      const size_t plain = static_cast<size_t>(h * head_dim + j), paired = static_cast<size_t>(h * head_dim + other);
      const size_t to = interleave ? paired : plain, from = interleave ? plain : paired;
      std::memcpy(out.data() + to * row, tensor.data.data() + from * row, row);
    }
  }
  return out;
}

/// What keeps a loaded file's views alive: the file and the tensors that had to be made anew.
struct Memory {
  std::shared_ptr<const void> file;
  std::vector<std::vector<uint8_t>> made;
};

// llama.cpp multiplies what a file states by 0.1 ln(factor) + 1.
float magnitude_of(const RopeScaling& r, double attention) { return static_cast<float>(attention * yarn_mscale(r.factor, 1.0)); }
/// What is stated for a magnitude; 1 is not.
float attention_factor(const RopeScaling& r) {
  const auto attention = static_cast<float>(r.magnitude / yarn_mscale(r.factor, 1.0));
  return std::fabs(attention - 1.0f) > 1e-6f ? attention : 1.0f;
}

/// A file keeps Llama 3's factors but not what they were made of: the usual values are tried.
std::optional<RopeScaling> scaling_of_factors(const std::vector<float>& values, const DraftSpec& spec) {
  DraftSpec tried = spec;
  for (const int context : {8192, 4096, 2048, 16384, 32768, 65536, 131072}) {
    tried.rope_scaling = {.kind = RopeScalingKind::kLlama3, .factor = values.back(), .original_max_positions = context};
    const std::vector<float> made = llama3_factors(tried);
    bool same = true;
    for (size_t i = 0; i < made.size(); ++i) same = same && std::fabs(made[i] - values[i]) <= 1e-4f * std::fabs(values[i]);
    if (same) return tried.rope_scaling;
  }
  return std::nullopt;
}

Status read_rope_scaling(ConfigReader& config, const RawCheckpoint& raw, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  const auto type = config.text("rope.scaling.type");
  const auto factor = config.number("rope.scaling.factor"), attention = config.number("rope.scaling.attn_factor");
  const auto original = config.integer("rope.scaling.original_context_length", 1, INT32_MAX);
  const auto fast = config.number("rope.scaling.yarn_beta_fast"), slow = config.number("rope.scaling.yarn_beta_slow");
  const auto log_multiplier = config.number("rope.scaling.yarn_log_multiplier");
  config.ignore({"rope.scaling.finetuned"});
  AERIE_TRY(config.status());
  RopeScaling& r = spec.rope_scaling;
  build.note("rope_scaling", type ? Source::kRead : Source::kDefaulted,
             type ? config.name("rope.scaling.type") : "there is no rope.scaling.type");
  if (type && *type != "none" && *type != "linear" && *type != "yarn") {
    return unsupported("{}rope.scaling.type is {}: none, linear and yarn are supported", kPrefix, printable(*type));
  }
  if (type && *type != "none" && factor.value_or(1.0) != 1.0) {
    r.kind = *type == "linear" ? RopeScalingKind::kLinear : RopeScalingKind::kYarn;
    r.factor = static_cast<float>(*factor);
  }
  if (r.kind == RopeScalingKind::kYarn) {
    if (log_multiplier.value_or(0.0) != 0.0) return unsupported("{}rope.scaling.yarn_log_multiplier is not supported", kPrefix);
    r.original_max_positions = original.value_or(spec.max_positions);
    r.beta_fast = static_cast<float>(fast.value_or(32.0));
    r.beta_slow = static_cast<float>(slow.value_or(1.0));
    r.magnitude = magnitude_of(r, attention.value_or(1.0));
  }
  const TensorView* factors = raw.find("rope_freqs.weight");
  if (factors == nullptr) return {};
  if (r.kind != RopeScalingKind::kNone) return corrupt("rope_freqs.weight is there, but rope.scaling.type is {}", printable(*type));
  AERIE_ASSIGN(const std::vector<float> values, to_float(*factors));
  if (values.size() != static_cast<size_t>(spec.rope_dim / 2)) {
    return corrupt("rope_freqs.weight has the shape {}, expected [{}]", factors->shape_string(), spec.rope_dim / 2);
  }
  const auto scaling = scaling_of_factors(values, spec);
  if (scaling) {
    r = *scaling;
    build.note("rope_scaling", Source::kInferred, "the factors in rope_freqs.weight");
    return {};
  }
  return unsupported("rope_freqs.weight holds factors of no llama3 scaling with low_freq_factor 1, high_freq_factor 4 and a usual context");
}

Status read_config(ConfigReader& config, const RawCheckpoint& raw, LayerClaims& claims, StatedTaps& stated, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  AERIE_TRY(build.require(config, "embedding_length", "hidden", kMaxConfigWidth, spec.hidden));
  AERIE_TRY(build.require(config, "feed_forward_length", "intermediate", kMaxConfigWidth, spec.intermediate));
  AERIE_TRY(build.require(config, "attention.head_count", "heads", kMaxConfigWidth, spec.heads));
  AERIE_TRY(build.require(config, "context_length", "max_positions", INT32_MAX, spec.max_positions));
  AERIE_TRY(build.require(config, "target_hidden_size", "target_hidden", kMaxConfigWidth, spec.target_hidden));
  const auto eps = config.number("attention.layer_norm_rms_epsilon");
  AERIE_TRY(config.status());
  if (!eps) return config.missing("attention.layer_norm_rms_epsilon");
  build.set("rms_eps", spec.rms_eps, eps, config.name("attention.layer_norm_rms_epsilon"), 0.0f, "");
  build.set("kv_heads", spec.kv_heads, config.integer("attention.head_count_kv", 1, kMaxConfigWidth),
            config.name("attention.head_count_kv"), spec.heads, "llama.cpp's default: as many as heads");
  build.set("head_dim", spec.head_dim, config.integer("attention.key_length", 1, kMaxConfigWidth), config.name("attention.key_length"),
            spec.hidden / spec.heads, "embedding_length / attention.head_count", Source::kInferred);
  const auto value_length = config.integer("attention.value_length", 1, kMaxConfigWidth);
  if (value_length && *value_length != spec.head_dim) {
    return unsupported("{}attention.value_length is {}, but keys have {} values", kPrefix, *value_length, spec.head_dim);
  }
  build.set("rope_dim", spec.rope_dim, config.integer("rope.dimension_count", 1, kMaxConfigWidth), config.name("rope.dimension_count"),
            spec.head_dim, "all of a head");
  if (spec.rope_dim != spec.head_dim) {
    return unsupported("{}rope.dimension_count is {}: with rows of q and k in llama.cpp's order only whole heads of {} are rotated",
                       kPrefix, spec.rope_dim, spec.head_dim);
  }
  build.set("rope_theta", spec.rope_theta, config.number("rope.freq_base"), config.name("rope.freq_base"), 10000.0f, "llama.cpp's default");
  AERIE_TRY(read_rope_scaling(config, raw, build));
  build.set("norm_before_residual", spec.norm_before_residual, config.boolean("norm_before_residual"), config.name("norm_before_residual"),
            false, "llama.cpp's default");
  const auto concat = config.boolean("norm_before_fc");
  spec.feature_norm = concat.value_or(false) ? FeatureNorm::kConcat : FeatureNorm::kNone;
  build.note("feature_norm", concat ? Source::kRead : Source::kDefaulted, concat ? config.name("norm_before_fc") : "llama.cpp's default");
  for (const char* field :
       {"feedback", "head_norm", "feature_normed_twice", "logit_scale", "attention", "attention_scale", "rope_interleaved"}) {
    build.note(field, Source::kDefaulted, "the architecture has one value only");
  }
  claims.layers = config.integer("block_count", 1, kMaxConfigWidth);
  claims.layers_key = config.name("block_count");
  AERIE_TRY(config.status());
  if (claims.layers.value_or(1) != 1)
    return unsupported("{}block_count is {}: llama.cpp's architecture has one layer", kPrefix, *claims.layers);

  stated.producer = "llama.cpp";
  stated.certain = true;
  stated.key = config.name("target_layers");
  stated.ids = config.integers("target_layers", -1, kMaxTap);
  if (!stated.ids) {
    stated.ids = config.integers("extract_layers", -1, kMaxTap);
    if (stated.ids) stated.key = config.name("extract_layers");
  } else {
    config.ignore({"extract_layers"});
  }
  config.ignore({"vocab_size", "rope.scale_linear"});
  return config.status();
}

/// V: stated, or from the tensors or the tokenizer that came along.
Status read_vocab(ConfigReader& config, const RawCheckpoint& raw, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  const auto stated = config.integer("vocab_size", 1, kMaxConfigVocab);
  AERIE_TRY(config.status());
  if (stated) {
    spec.vocab = *stated;
    build.note("vocab", Source::kRead, config.name("vocab_size"));
  } else if (const TensorView* table = raw.find("token_embd.weight"); table != nullptr && table->rows() <= kMaxConfigVocab) {
    spec.vocab = static_cast<int>(table->rows());
    build.note("vocab", Source::kInferred, "the rows of token_embd.weight");
  } else {
    auto tokens = raw.gguf()->get_strings("tokenizer.ggml.tokens");
    if (!tokens.ok() || tokens->empty()) return config.missing("vocab_size", "and neither an embedding nor a tokenizer says it");
    spec.vocab = static_cast<int>(tokens->size());
    build.note("vocab", Source::kInferred, "the tokens of the tokenizer in the file");
  }
  const TensorView* d2t = raw.find("d2t");
  spec.draft_vocab = d2t == nullptr ? spec.vocab : static_cast<int>(std::min(d2t->element_count(), uint64_t{kMaxConfigVocab}));
  build.note("draft_vocab", Source::kInferred, d2t == nullptr ? "there is no d2t: both vocabularies are the same" : "the length of d2t");
  return {};
}

Expected<NamedTensors> name_tensors(const RawCheckpoint& raw, const DraftSpec& spec, Memory& memory) {
  NamedTensors out;
  memory.made.reserve(2 * raw.tensors().size());
  for (const TensorView& tensor : raw.tensors()) {
    if (tensor.name == "rope_freqs.weight") continue;
    const char* canonical = nullptr;
    for (const Name& name : kNames) canonical = tensor.name == name.file ? name.canonical : canonical;
    if (canonical == nullptr) {
      out.add_unknown(tensor);
      continue;
    }
    TensorView view = tensor;
    if (block_values(tensor.type) > 1) {
      AERIE_ASSIGN(const std::vector<float> values, to_float(tensor));
      std::vector<uint8_t>& bytes = memory.made.emplace_back(values.size() * sizeof(float));
      std::memcpy(bytes.data(), values.data(), bytes.size());
      view.type = DType::kF32;
      view.data = bytes;
    }
    const bool is_q = std::strcmp(canonical, "layers.0.q") == 0, is_k = std::strcmp(canonical, "layers.0.k") == 0;
    const int heads = is_q ? spec.heads : spec.kv_heads;
    if ((is_q || is_k) && view.rows() == static_cast<uint64_t>(heads) * static_cast<uint64_t>(spec.head_dim) && spec.head_dim % 2 == 0) {
      std::vector<uint8_t> ordered = reorder_rows(view, heads, spec.head_dim, false);
      view.data = memory.made.emplace_back(std::move(ordered));
    }
    if (!out.add(canonical, view)) return corrupt("{} is there twice, under an old name and a new one", printable(tensor.name));
  }
  return out;
}

}  // namespace

std::vector<float> llama3_factors(const DraftSpec& spec) {
  std::vector<float> out(static_cast<size_t>(spec.rope_dim / 2));
  for (size_t i = 0; i < out.size(); ++i) {
    const double frequency = std::pow(static_cast<double>(spec.rope_theta), -2.0 * static_cast<double>(i) / spec.rope_dim);
    out[i] = static_cast<float>(1.0 / llama3_stretch(spec.rope_scaling, frequency));
  }
  return out;
}

bool reads_back_rope_scaling(const DraftSpec& spec) {
  const RopeScaling& r = spec.rope_scaling;
  switch (r.kind) {
    case RopeScalingKind::kNone: return true;
    case RopeScalingKind::kLinear: return r.factor != 1.0f;
    case RopeScalingKind::kLlama3: return scaling_of_factors(llama3_factors(spec), spec) == r;
    case RopeScalingKind::kYarn:
      return r.factor != 1.0f && r.beta_fast == 32.0f && r.beta_slow == 1.0f && r.truncate &&
             magnitude_of(r, attention_factor(r)) == r.magnitude;
  }
  return false;
}

Expected<DraftCheckpoint> load_checkpoint(const RawCheckpoint& raw, const OpenOptions& options) {
  Json object = Json::object();
  for (const auto& [key, value] : raw.gguf()->metadata()) {
    if (key.rfind(kPrefix, 0) == 0) object[key.substr(std::strlen(kPrefix))] = to_json(value);
  }
  DraftCheckpoint out;
  SpecBuilder build(out);
  ConfigReader config(object, kPrefix, "GGUF metadata");
  LayerClaims claims;
  StatedTaps stated;
  AERIE_TRY(read_config(config, raw, claims, stated, build));
  AERIE_TRY(read_vocab(config, raw, build));
  AERIE_TRY(config.finish());
  const TensorView* fc = raw.find("fc.weight");
  if (fc != nullptr && fc->cols() % static_cast<uint64_t>(out.spec.target_hidden) == 0) {
    stated.fc_taps = static_cast<int>(std::min<uint64_t>(fc->cols() / static_cast<uint64_t>(out.spec.target_hidden), 64));
  }
  AERIE_TRY(settle_taps(stated, options, build));
  if (stated.ids && options.taps.empty() && !options.convention) {
    const LayerIdGuess guess = guess_convention(*stated.ids, options.target_blocks);
    if (guess.convention == LayerIdConvention::kBlockOutput && guess.strength != LayerIdGuess::Strength::kNone) {
      build.find(Severity::kWarning, "gguf-ids-unconverted",
                 fmt::format("{} [{}] look like block outputs that a converter copied ({}); llama.cpp reads boundaries", stated.key,
                             fmt::join(*stated.ids, ","), guess.why),
                 "convert the drafter anew, or give --layer-id-convention block-output");
    }
  }
  auto memory = std::make_shared<Memory>();
  memory->file = raw.owner();
  AERIE_ASSIGN(const NamedTensors tensors, name_tensors(raw, out.spec, *memory));
  AERIE_TRY(settle_by_tensors(tensors, claims, {.d2t = D2tForm::kAbsolute}, build));
  AERIE_TRY(tensors.hand_out("blk.0.", out));
  out.owner = memory;
  return out;
}

Status save_checkpoint(const std::string& path, const DraftCheckpoint& checkpoint, const SaveOptions& options) {
  const DraftSpec& spec = checkpoint.spec;
  GgufMetadata meta;
  const auto put = [&](const std::string& key, GgufMeta value) { meta.emplace_back(kPrefix + key, std::move(value)); };
  const auto u32 = [](int value) { return static_cast<uint32_t>(value); };
  meta.emplace_back("general.architecture", "eagle3");
  meta.emplace_back("general.name", options.name);
  put("vocab_size", u32(spec.vocab));
  put("context_length", u32(spec.max_positions));
  put("embedding_length", u32(spec.hidden));
  put("block_count", uint32_t{1});
  put("feed_forward_length", u32(spec.intermediate));
  put("attention.head_count", u32(spec.heads));
  put("attention.head_count_kv", u32(spec.kv_heads));
  put("attention.key_length", u32(spec.head_dim));
  put("attention.value_length", u32(spec.head_dim));
  put("attention.layer_norm_rms_epsilon", spec.rms_eps);
  put("rope.dimension_count", u32(spec.rope_dim));
  put("rope.freq_base", spec.rope_theta);
  const RopeScaling& r = spec.rope_scaling;
  if (r.kind == RopeScalingKind::kLinear || r.kind == RopeScalingKind::kYarn) {
    put("rope.scaling.type", std::string(r.kind == RopeScalingKind::kLinear ? "linear" : "yarn"));
    put("rope.scaling.factor", r.factor);
  }
  if (r.kind == RopeScalingKind::kYarn) {
    put("rope.scaling.original_context_length", u32(r.original_max_positions));
    if (const float attention = attention_factor(r); attention != 1.0f) put("rope.scaling.attn_factor", attention);
  }
  put("target_layers", std::vector<int32_t>(spec.taps.begin(), spec.taps.end()));
  put("target_hidden_size", u32(spec.target_hidden));
  put("norm_before_residual", spec.norm_before_residual);
  put("norm_before_fc", spec.feature_norm == FeatureNorm::kConcat);
  if (options.tokenizer == nullptr) {
    meta.emplace_back("tokenizer.ggml.model", "no_vocab");
  } else {
    for (const auto& [key, value] : options.tokenizer->metadata()) {
      if (key.rfind("tokenizer.", 0) != 0) continue;
      auto narrowed = narrow_gguf_value(value);
      if (!narrowed.ok()) return narrowed.status().with_context("the target's key " + printable(key));
      meta.emplace_back(key, std::move(*narrowed));
    }
  }

  std::vector<TensorView> views;
  std::vector<std::vector<uint8_t>> made;
  made.reserve(2 * checkpoint.tensors.size() + 2);  // views point into it
  const auto own = [&](const std::string& name, DType type, std::vector<uint64_t> shape, std::vector<uint8_t> bytes) {
    made.push_back(std::move(bytes));
    views.push_back({name, type, std::move(shape), made.back()});
  };
  const auto bytes_of = [](const auto& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(values[0]));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  };
  for (const auto& [canonical, tensor] : checkpoint.tensors) {
    const Name* name = nullptr;
    for (const Name& n : kNames) name = name == nullptr && canonical == n.canonical ? &n : name;
    if (name == nullptr) return unsupported("llama.cpp's architecture has no tensor for {}", canonical);
    TensorView view = tensor;
    view.name = name->file;
    if ((options.float32 || tensor.shape.size() == 1) && tensor.type != DType::kF32) {
      AERIE_ASSIGN(const std::vector<float> values, to_float(tensor));
      made.push_back(bytes_of(values));
      view.type = DType::kF32;
      view.data = made.back();
    }
    if (canonical == "layers.0.q" || canonical == "layers.0.k") {
      own(view.name, view.type, view.shape,
          reorder_rows(view, canonical == "layers.0.q" ? spec.heads : spec.kv_heads, spec.head_dim, true));
    } else {
      views.push_back(view);
    }
  }
  if (!spec.d2t.empty()) {
    own("d2t", DType::kI64, {spec.d2t.size()}, bytes_of(std::vector<int64_t>(spec.d2t.begin(), spec.d2t.end())));
  }
  if (r.kind == RopeScalingKind::kLlama3) {
    const std::vector<float> factors = llama3_factors(spec);
    own("rope_freqs.weight", DType::kF32, {factors.size()}, bytes_of(factors));
  }
  return write_gguf(path, meta, views);
}

}  // namespace aerie::gguf_eagle3
