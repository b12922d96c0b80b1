// RoPE as an engine finds it in a drafter's config.
#include "eagle3/dialects/rope_config.h"
#include "eagle3/engines/emulation.h"
#include "formats/printable.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

const Json& dict(const Json& config, const char* key) {
  static const Json kEmpty = Json::object();
  const auto it = config.find(key);
  return it != config.end() && it->is_object() ? *it : kEmpty;
}

/// What the engine looks at: one dict, and the theta that goes with it.
struct Seen {
  const Json* scaling = nullptr;
  std::optional<double> theta;
};

Seen rope_seen(const Json& config, RopeSource source) {
  const Json &parameters = dict(config, "rope_parameters"), &scaling = dict(config, "rope_scaling");
  const bool use_parameters =
      source != RopeSource::kVersion4 && !parameters.empty() && (source == RopeSource::kParametersFirst || scaling.empty());
  Seen out{use_parameters ? &parameters : &scaling, ConfigReader(config, "").number("rope_theta")};
  const auto inside = ConfigReader(*out.scaling, "").number("rope_theta");
  // SGLang takes 10000 for a rope_parameters without theta; transformers looks at the top level then.
  if (use_parameters && source == RopeSource::kParametersFirst) out.theta = inside;
  if (source == RopeSource::kScalingFirst && inside) out.theta = inside;
  return out;
}

}  // namespace

void Emulation::read_rope() {
  const Seen seen = rope_seen(config_, rules_.rope);
  spec_.rope_theta = static_cast<float>(seen.theta.value_or(10000.0));
  if (rules_.rope == RopeSource::kVersion4 && !seen.theta && dict(config_, "rope_parameters").contains("rope_theta")) {
    misread(Severity::kError, "rope-theta-unseen",
            fmt::format("rope_theta stands in rope_parameters only, where {} does not look: it runs at 10000", out_.engine),
            "state rope_theta at the top level too");
  }
  ConfigReader top(config_, ""), scaling(*seen.scaling, "");
  if (mla()) {
    spec_.rope_interleaved = top.boolean("rope_interleave").value_or(true);
  } else {
    const double share = top.number("partial_rotary_factor").value_or(1.0);
    spec_.rope_dim = share > 0.0 && share <= 1.0 ? static_cast<int>(spec_.head_dim * share) : spec_.head_dim;
  }
  const auto type = scaling.text("rope_type"), old_type = scaling.text("type");
  std::string kind = type ? *type : old_type.value_or("default");
  // SGLang's MLA drafter takes whatever scaling there is for DeepSeek's YaRN.
  if (mla() && version_.engine == Engine::kSglang && kind != "default") kind = "deepseek_yarn";
  RopeScaling& r = spec_.rope_scaling;
  r.factor = static_cast<float>(scaling.number("factor").value_or(1.0));
  r.original_max_positions = scaling.integer("original_max_position_embeddings", 1, INT32_MAX).value_or(spec_.max_positions);
  if (kind == "linear") {
    r.kind = RopeScalingKind::kLinear;
  } else if (kind == "llama3") {
    r.kind = RopeScalingKind::kLlama3;
    r.low_freq_factor = static_cast<float>(scaling.number("low_freq_factor").value_or(1.0));
    r.high_freq_factor = static_cast<float>(scaling.number("high_freq_factor").value_or(4.0));
  } else if (kind == "yarn" || kind == "deepseek_yarn") {
    spec_.attention_scale = static_cast<float>(set_yarn(yarn_keys(scaling), mla(), spec_.max_positions, r));
  } else {
    r = {};
    if (kind != "default" && kind != "mrope")
      out_.caveats.push_back(fmt::format("what {} does with the RoPE scaling {} is not emulated", engine_, printable(kind)));
  }
  for (const ConfigReader* reader : {&top, &scaling}) {
    if (!reader->status().ok()) out_.unknown = reader->status().message();
  }
}

}  // namespace aerie
