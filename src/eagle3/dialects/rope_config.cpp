#include "eagle3/dialects/rope_config.h"

#include <cmath>

#include "formats/printable.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

/// What one object says.
struct Stated {
  std::string key;  // "rope_scaling"
  std::optional<double> theta, partial;
  bool has_type = false;
  RopeScaling scaling;
  double softmax_scale = 1.0;
  bool guessed_original = false;
};

Status read_yarn(ConfigReader& reader, const DraftSpec& spec, Stated& out) {
  const YarnKeys keys = yarn_keys(reader);
  AERIE_TRY(reader.status());
  out.guessed_original = !keys.original;
  out.softmax_scale = set_yarn(keys, spec.attention == AttentionKind::kMla, spec.max_positions, out.scaling);
  return {};
}

Status read_llama3(ConfigReader& reader, RopeScaling& r) {
  r.kind = RopeScalingKind::kLlama3;
  const auto original = reader.integer("original_max_position_embeddings", 1, INT32_MAX);
  const auto low = reader.number("low_freq_factor"), high = reader.number("high_freq_factor");
  AERIE_TRY(reader.status());
  if (!original) return reader.missing("original_max_position_embeddings");
  if (!low) return reader.missing("low_freq_factor");
  if (!high) return reader.missing("high_freq_factor");
  r.original_max_positions = *original;
  r.low_freq_factor = static_cast<float>(*low);
  r.high_freq_factor = static_cast<float>(*high);
  return {};
}

Expected<Stated> read_object(const Json& object, const std::string& key, const DraftSpec& spec) {
  Stated out;
  out.key = key;
  ConfigReader reader(object, key + ".");
  const auto old_type = reader.text("type"), type = reader.text("rope_type");
  out.theta = reader.number("rope_theta");
  out.partial = reader.number("partial_rotary_factor");
  const auto factor = reader.number("factor");
  AERIE_TRY(reader.status());
  if (type && old_type && *type != *old_type) {
    return corrupt("config.json: {} says rope_type {} and type {}: remove the wrong one", key, printable(*type), printable(*old_type));
  }
  const std::string kind = type ? *type : old_type.value_or("default");
  out.has_type = type || old_type;
  // Sections of positions for images: a text has the same position in each, so that nothing changes.
  reader.ignore({"mrope_section", "mrope_interleaved"});
  if (kind == "default" || kind == "mrope") {
    if (factor && *factor != 1.0) return corrupt("config.json: {}factor is {}, but there is no rope_type that uses it", key + ".", *factor);
    AERIE_TRY(reader.finish());
    return out;
  }
  if (kind != "linear" && kind != "llama3" && kind != "yarn" && kind != "deepseek_yarn") {
    return unsupported("config.json: {} asks for the RoPE scaling {}: default, linear, llama3 and yarn are supported", key,
                       printable(kind));
  }
  if (!factor) return reader.missing("factor");
  out.scaling.factor = static_cast<float>(*factor);
  out.scaling.kind = RopeScalingKind::kLinear;
  if (kind == "llama3") AERIE_TRY(read_llama3(reader, out.scaling));
  if (kind == "yarn" || kind == "deepseek_yarn") AERIE_TRY(read_yarn(reader, spec, out));
  AERIE_TRY(reader.finish());
  return out;
}

/// Both schemas at once: values that one of them leaves out come from the other, values that differ are an error.
Status merge(const Stated& v5, const Stated& v4, Stated& out) {
  const auto differ = [&](const char* what, double a, double b) {
    return corrupt("config.json: {} says {} {}, {} says {}: remove the wrong one", v5.key, what, a, v4.key, b);
  };
  if (v5.theta && v4.theta && *v5.theta != *v4.theta) return differ("rope_theta", *v5.theta, *v4.theta);
  if (v5.partial && v4.partial && *v5.partial != *v4.partial) return differ("partial_rotary_factor", *v5.partial, *v4.partial);
  if (v5.has_type && v4.has_type && (v5.scaling != v4.scaling || v5.softmax_scale != v4.softmax_scale)) {
    return corrupt("config.json: {} and {} state different scalings of RoPE: remove the wrong one", v5.key, v4.key);
  }
  out = v5.has_type ? v5 : v4;
  out.theta = v5.theta ? v5.theta : v4.theta;
  out.partial = v5.partial ? v5.partial : v4.partial;
  return {};
}

}  // namespace

double yarn_mscale(double factor, double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; }

YarnKeys yarn_keys(ConfigReader& reader) {
  return {reader.integer("original_max_position_embeddings", 1, INT32_MAX),
          reader.number("beta_fast"),
          reader.number("beta_slow"),
          reader.number("mscale"),
          reader.number("mscale_all_dim"),
          reader.number("attention_factor"),
          reader.boolean("truncate")};
}

double set_yarn(const YarnKeys& keys, bool mla, int max_positions, RopeScaling& out) {
  out.kind = RopeScalingKind::kYarn;
  out.original_max_positions = keys.original.value_or(max_positions);
  out.beta_fast = static_cast<float>(keys.beta_fast.value_or(32.0));
  out.beta_slow = static_cast<float>(keys.beta_slow.value_or(1.0));
  out.truncate = keys.truncate.value_or(true);
  const double m = keys.mscale.value_or(mla ? 1.0 : 0.0), all = keys.mscale_all_dim.value_or(0.0), factor = out.factor;
  const double ratio = mla || (m != 0.0 && all != 0.0) ? yarn_mscale(factor, m) / yarn_mscale(factor, all) : yarn_mscale(factor, 1.0);
  out.magnitude = static_cast<float>(keys.attention_factor.value_or(ratio));
  return mla && all != 0.0 ? std::pow(yarn_mscale(factor, all), 2.0) : 1.0;
}

Status read_rope(ConfigReader& layer, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  const auto plain = layer.number("rope_theta");
  const Json* parameters = layer.object("rope_parameters");
  const Json* scaling = layer.object("rope_scaling");
  const auto partial = layer.number("partial_rotary_factor");
  const auto interleave = layer.boolean("rope_interleave");
  AERIE_TRY(layer.status());
  Stated v5, v4, stated;
  if (parameters != nullptr) {
    AERIE_ASSIGN(v5, read_object(*parameters, layer.name("rope_parameters"), spec));
  }
  if (scaling != nullptr) {
    AERIE_ASSIGN(v4, read_object(*scaling, layer.name("rope_scaling"), spec));
  }
  AERIE_TRY(merge(v5, v4, stated));
  const std::string theta_key = v5.theta ? v5.key + ".rope_theta" : v4.theta ? v4.key + ".rope_theta" : layer.name("rope_theta");
  if (plain && stated.theta && *plain != *stated.theta) {
    return corrupt("config.json: {} is {} but {} says {}: remove the wrong one", layer.name("rope_theta"), *plain, theta_key,
                   *stated.theta);
  }
  build.set("rope_theta", spec.rope_theta, plain ? plain : stated.theta, plain ? layer.name("rope_theta") : theta_key, 10000.0f,
            "the Llama config's default; a drafter never inherits the target's");
  if (!plain && !stated.theta) {
    build.find(Severity::kWarning, "rope-theta-defaulted", "the config states no rope_theta, so that it is 10000, whatever the target's is",
               "state the value that the drafter was trained with");
  }
  if (!plain && v5.theta && !v4.theta) {
    build.find(Severity::kNote, "rope-theta-v5-only",
               "rope_theta stands in rope_parameters only, where programs of transformers 4 do not look", "state it at the top level too");
  }

  if (partial && stated.partial && *partial != *stated.partial) {
    return corrupt("config.json: {} is {} but {} says {}: remove the wrong one", layer.name("partial_rotary_factor"), *partial, stated.key,
                   *stated.partial);
  }
  const std::optional<double> share = partial ? partial : stated.partial;
  if (spec.attention == AttentionKind::kMla) {
    build.set("rope_interleaved", spec.rope_interleaved, interleave, layer.name("rope_interleave"), true, "DeepSeek's default");
  } else {
    if (share && !(*share > 0.0 && *share <= 1.0)) {
      return corrupt("config.json: partial_rotary_factor is {}, expected a share of a head above 0 and at most 1", *share);
    }
    spec.rope_dim = static_cast<int>(spec.head_dim * share.value_or(1.0));
    build.note("rope_dim", share ? Source::kRead : Source::kDefaulted,
               share ? layer.name("partial_rotary_factor") : "the Llama config's default: all of a head");
    if (interleave.value_or(false)) return unsupported("config.json: {} is true without MLA attention", layer.name("rope_interleave"));
    build.note("rope_interleaved", Source::kDefaulted, "false but for MLA attention");
  }

  spec.rope_scaling = stated.scaling;
  spec.attention_scale = static_cast<float>(stated.softmax_scale);
  build.note("rope_scaling", stated.has_type ? Source::kRead : Source::kDefaulted,
             stated.has_type ? stated.key : "the config states no scaling of RoPE");
  build.note(
      "attention_scale", spec.attention_scale != 1.0f ? Source::kRead : Source::kDefaulted,
      spec.attention_scale != 1.0f ? stated.key + ".mscale_all_dim: (0.1 m ln factor + 1) squared" : "1 unless DeepSeek's YaRN sets it");
  if (v5.has_type && v5.scaling.kind != RopeScalingKind::kNone && !v4.has_type) {
    build.find(Severity::kWarning, "rope-scaling-v5-only",
               "RoPE's scaling stands in rope_parameters only: programs of transformers 4 would run without it",
               "state it in rope_scaling too");
  }
  if (stated.guessed_original) {
    build.find(Severity::kWarning, "rope-original-defaulted",
               fmt::format("{} has no original_max_position_embeddings, so that it is max_position_embeddings, {}", stated.key,
                           spec.max_positions),
               "state the context length that the frequencies were trained with");
  }
  return {};
}

}  // namespace aerie
