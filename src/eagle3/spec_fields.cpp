#include "eagle3/spec_fields.h"

#include <algorithm>

#include "eagle3/layer_ids.h"
#include "formats/json_text.h"

namespace aerie {
namespace {

const char* name(FeatureNorm norm) {
  switch (norm) {
    case FeatureNorm::kNone: return "none";
    case FeatureNorm::kConcat: return "concat";
    case FeatureNorm::kPerTap: return "per-tap";
  }
  return "?";
}

const char* name(LayerLayout layout) {
  switch (layout) {
    case LayerLayout::kHiddenNorm: return "hidden-norm";
    case LayerLayout::kInputNorm: return "input-norm";
    case LayerLayout::kConcat: return "concat";
  }
  return "?";
}

std::string describe(const RopeScaling& r) {
  switch (r.kind) {
    case RopeScalingKind::kNone: return "none";
    case RopeScalingKind::kLinear: return fmt::format("linear x{}", r.factor);
    case RopeScalingKind::kLlama3:
      return fmt::format("llama3 x{} from {} ({}, {})", r.factor, r.original_max_positions, r.low_freq_factor, r.high_freq_factor);
    case RopeScalingKind::kYarn:
      return fmt::format("yarn x{} from {} (beta {}, {}; magnitude {}{})", r.factor, r.original_max_positions, r.beta_fast, r.beta_slow,
                         r.magnitude, r.truncate ? "" : "; not truncated");
  }
  return "?";
}

}  // namespace

std::string SpecField::text() const {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::vector<std::string> taps;
    for (const nlohmann::json& tap : value) taps.push_back(tap.is_null() ? "?" : tap == kFinalNormed ? "final" : tap.dump());
    return fmt::format("{}", fmt::join(taps, ","));
  }
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return value.dump();
}

std::vector<SpecField> spec_fields(const DraftSpec& s) {
  std::vector<SpecField> out;
  const auto add = [&out](const char* field, nlohmann::json value) { out.push_back({field, std::move(value)}); };
  nlohmann::json taps = nlohmann::json::array();
  for (const int tap : s.taps) taps.push_back(tap == kUnknownTap ? nlohmann::json() : nlohmann::json(tap));
  add("taps", std::move(taps));
  add("target_hidden", s.target_hidden);
  add("hidden", s.hidden);
  add("layers", s.layers);
  if (s.layers > 1) add("layout", name(s.layout));
  add("attention", s.attention == AttentionKind::kMla ? "mla" : "gqa");
  add("heads", s.heads);
  add("kv_heads", s.kv_heads);
  add("head_dim", s.head_dim);
  if (s.attention == AttentionKind::kMla) {
    add("q_rank", s.q_rank);
    add("kv_rank", s.kv_rank);
    add("nope_dim", s.nope_dim);
    add("v_dim", s.v_dim);
    add("latent_eps", shortest_decimal(s.latent_eps));
  }
  add("intermediate", s.intermediate);
  add("has_fc", s.has_fc);
  add("fc_bias", s.fc_bias);
  add("qkv_bias", s.qkv_bias);
  add("o_bias", s.o_bias);
  add("mlp_bias", s.mlp_bias);
  add("qk_norm", s.qk_norm);
  add("feature_norm", name(s.feature_norm));
  add("norm_before_residual", s.norm_before_residual);
  add("feature_normed_twice", s.feature_normed_twice);
  add("feedback", s.feedback == Feedback::kPostNorm ? "post-norm" : "pre-norm");
  add("head_norm", s.head_norm);
  add("logit_scale", shortest_decimal(s.logit_scale));
  add("rope_theta", shortest_decimal(s.rope_theta));
  add("rope_scaling", describe(s.rope_scaling));
  add("rope_dim", s.rope_dim);
  add("rope_interleaved", s.rope_interleaved);
  add("attention_scale", shortest_decimal(s.attention_scale));
  add("sliding_window", s.sliding_window);
  add("rms_eps", shortest_decimal(s.rms_eps));
  add("max_positions", s.max_positions);
  add("own_embedding", s.own_embedding);
  add("own_head", s.own_head);
  add("vocab", s.vocab);
  add("draft_vocab", s.draft_vocab);
  return out;
}

std::vector<FieldDifference> compare_fields(const DraftSpec& a, const DraftSpec& b) {
  std::vector<FieldDifference> out;
  const std::vector<SpecField> ours = spec_fields(a), theirs = spec_fields(b);
  const auto find = [](const std::vector<SpecField>& fields, const std::string& field) -> const SpecField* {
    const auto it = std::find_if(fields.begin(), fields.end(), [&](const SpecField& f) { return f.name == field; });
    return it == fields.end() ? nullptr : &*it;
  };
  for (const SpecField& field : ours) {
    const SpecField* other = find(theirs, field.name);
    if (other == nullptr || other->value != field.value) out.push_back({field.name, field.text(), other == nullptr ? "" : other->text()});
  }
  for (const SpecField& field : theirs) {
    if (find(ours, field.name) == nullptr) out.push_back({field.name, "", field.text()});
  }
  return out;
}

std::vector<std::string> differing_fields(const DraftSpec& a, const DraftSpec& b) {
  std::vector<std::string> out;
  const auto shown = [](const std::string& text) { return text.empty() ? std::string("none") : text; };
  for (const FieldDifference& d : compare_fields(a, b)) out.push_back(fmt::format("{}: {} against {}", d.field, shown(d.a), shown(d.b)));
  if (a.draft_vocab == b.draft_vocab) {
    int different = 0;
    for (int d = 0; d < a.draft_vocab; ++d) different += a.to_target(d) != b.to_target(d) ? 1 : 0;
    if (different != 0) out.push_back(fmt::format("d2t: {} of {} entries", different, a.draft_vocab));
  }
  return out;
}

}  // namespace aerie
