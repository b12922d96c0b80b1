// Which specs a format's files can state.
#include <algorithm>

#include "eagle3/convert.h"
#include "eagle3/dialects/flat.h"
#include "eagle3/dialects/gguf_eagle3.h"
#include "eagle3/dialects/layer_config_write.h"
#include "eagle3/dialects/named_tensors.h"
#include "eagle3/dialects/vocab_map.h"
#include "eagle3/spec_fields.h"

namespace aerie {
namespace {

/// A demand of a format on a spec.
struct Demand {
  const char* field;
  bool met;
  const char* why;
};

bool boundaries_only(const DraftSpec& s) {
  return std::all_of(s.taps.begin(), s.taps.end(), [](int tap) { return tap >= 0; });
}

/// Without a t2d that confirms it, a map of the target's first ids looks like one that was never filled.
bool map_can_be_told(const DraftSpec& s) { return s.d2t.empty() || s.draft_vocab == s.vocab || !vocab_map_shape(s).identity; }
constexpr const char* kUnfilled = "without a t2d, the target's first ids look like a map that was never filled";

/// llama.cpp's graph of the architecture (src/models/eagle3.cpp): what it computes, whatever a file says.
std::vector<Demand> demands_of_gguf(const DraftSpec& s) {
  return {{"has_fc", s.has_fc, "the graph always has fc"},
          {"taps", s.taps.size() == 3 && boundaries_only(s), "the graph reads exactly three boundaries"},
          {"layers", s.layers == 1, "the graph has one layer"},
          {"attention", s.attention == AttentionKind::kGqa, "the graph has no MLA"},
          {"fc_bias", !s.fc_bias, "there is no tensor for it"},
          {"qkv_bias", !s.qkv_bias, "there is no tensor for it"},
          {"o_bias", !s.o_bias, "there is no tensor for it"},
          {"mlp_bias", !s.mlp_bias, "there is no tensor for it"},
          {"qk_norm", !s.qk_norm, "there is no tensor for it"},
          {"feature_norm", s.feature_norm != FeatureNorm::kPerTap, "the graph norms the whole feature or nothing"},
          {"feature_normed_twice", !s.feature_normed_twice, "the graph norms it once"},
          {"feedback", s.feedback == Feedback::kPreNorm, "the graph feeds the raw state back"},
          {"head_norm", s.head_norm, "the graph's head reads the normed state"},
          {"logit_scale", s.logit_scale == 1.0f, "the graph has none"},
          {"rope_dim", s.rope_dim == s.head_dim, "rows of q and k are stored for the rotation of whole heads"},
          {"rope_interleaved", !s.rope_interleaved, "rows of q and k are stored for the rotation of halves"},
          {"attention_scale", s.attention_scale == 1.0f, "the graph has none"},
          {"sliding_window", s.sliding_window == 0, "the graph ignores windows"},
          {"rope_scaling", gguf_eagle3::reads_back_rope_scaling(s),
           "the file has no key for some of it, or keeps frequencies that are not read back as this"},
          {"d2t", map_can_be_told(s), kUnfilled}};
}

/// What a config of transformers states of a layer, whoever wrote it; `o_bias_key`: a key gives o a bias without the others'.
std::vector<Demand> demands_of_layers(const DraftSpec& s, bool o_bias_key) {
  const bool mla = s.attention == AttentionKind::kMla, yarn = s.rope_scaling.kind == RopeScalingKind::kYarn;
  const bool mscales = mla && yarn && yarn_mscales(s.rope_scaling, s.attention_scale).has_value();
  return {{"mlp_bias", !s.mlp_bias || !(mla || s.qk_norm), "layers of this kind have none"},
          {"fc_bias", !s.fc_bias || !mla, "a drafter with MLA has none"},
          {"o_bias", !s.o_bias || !mla, "a drafter with MLA has none"},
          {"o_bias", s.o_bias == (s.qkv_bias || (o_bias_key && s.fc_bias)), "one key gives it to q, k, v and o"},
          {"rope_interleaved", !s.rope_interleaved || mla, "only MLA's rotation is stated so"},
          {"rope_scaling", !(mla && yarn) || mscales,
           "no values of DeepSeek's mscale and mscale_all_dim give this magnitude and attention_scale"},
          {"latent_eps", !mla || s.latent_eps == 1e-6f, "DeepSeek's code fixes it at 1e-6"},
          {"attention_scale", s.attention_scale == 1.0f || mscales, "only YaRN with MLA sets it"}};
}

/// Eagle3DraftModel of speculators 0.9.0 over layers of Llama or Qwen3.
std::vector<Demand> demands_of_speculators(const DraftSpec& s) {
  std::vector<Demand> out = {{"has_fc", s.has_fc, "the model always has fc"},
                             {"taps", boundaries_only(s), "the ids are boundaries"},
                             {"layout", s.layers == 1 || s.layout == LayerLayout::kInputNorm, "the later layers are ordinary ones"},
                             {"attention", s.attention == AttentionKind::kGqa, "the model has no MLA"},
                             {"fc_bias", !s.fc_bias, "the model has none"},
                             {"feature_normed_twice", !s.feature_normed_twice, "the model norms it once"},
                             {"head_norm", s.head_norm, "the model's head reads the normed state"},
                             {"logit_scale", s.logit_scale == 1.0f, "the model has none"},
                             {"rope_dim", s.rope_dim == s.head_dim, "the model rotates whole heads"}};
  for (const Demand& demand : demands_of_layers(s, false)) out.push_back(demand);
  return out;
}

/// Without fc a drafter reads the target's last state alone.
std::vector<Demand> demands_of_flat(const DraftSpec& s) {
  const bool last_state = s.taps == std::vector<int>{kFinalNormed};
  std::vector<Demand> out = {{"has_fc", s.has_fc || last_state, "without fc a drafter reads the normed final state alone"},
                             {"feature_norm", s.has_fc || s.feature_norm == FeatureNorm::kNone, "without fc there is no norm before it"}};
  for (const Demand& demand : demands_of_layers(s, true)) out.push_back(demand);
  return out;
}

std::vector<Demand> demands_of_specforge(const DraftSpec& s) {
  std::vector<Demand> out = {{"taps", !s.has_fc || boundaries_only(s), "the ids have no word for the normed final state"},
                             {"feature_normed_twice", !s.feature_normed_twice, "there is no key for it"},
                             {"head_norm", s.head_norm, "there is no key for it"}};
  for (const Demand& demand : demands_of_flat(s)) out.push_back(demand);
  return out;
}

std::vector<Demand> demands_of_modelopt(const DraftSpec& s) {
  bool once = true;
  for (size_t i = 1; i < s.taps.size(); ++i) once = once && s.taps[i] != s.taps[i - 1];
  std::vector<Demand> out = {{"taps", once, "each layer is read once"},
                             {"layout", s.layers == 1 || s.layout == LayerLayout::kInputNorm, "the later layers are ordinary ones"},
                             {"qk_norm", !s.qk_norm, "its layers are Llama's or DeepSeek's"},
                             {"norm_before_residual", !s.norm_before_residual, "there is no key for it"},
                             {"head_norm", s.head_norm || s.feedback == Feedback::kPreNorm, "norm serves both or neither"},
                             {"logit_scale", s.logit_scale == 1.0f, "there is no key for it"},
                             {"rope_dim", s.rope_dim == s.head_dim || s.attention == AttentionKind::kMla, "there is no key for it"},
                             {"sliding_window", s.sliding_window == 0, "there is no key for it"},
                             {"d2t", map_can_be_told(s), kUnfilled}};
  for (const Demand& demand : demands_of_flat(s)) out.push_back(demand);
  return out;
}

std::vector<Demand> demands_of(DraftFormat format, const DraftSpec& spec) {
  switch (format) {
    case DraftFormat::kSpeculators: return demands_of_speculators(spec);
    case DraftFormat::kSpecForge:
    case DraftFormat::kSglang: return demands_of_specforge(spec);
    case DraftFormat::kModelOpt: return demands_of_modelopt(spec);
    case DraftFormat::kGguf: return demands_of_gguf(spec);
  }
  return {};
}

Status cannot_hold(DraftFormat format, const DraftSpec& spec, const std::string& field, const std::string& why) {
  std::string value;
  for (const SpecField& f : spec_fields(spec)) value = f.name == field ? " " + f.text() : value;
  return unsupported("the format {} cannot hold {}{}: {}", draft_format_name(format), field, value, why);
}

/// What the newest SGLang that was read would make of the files must be the spec.
Status check_served_by_sglang(const DraftSpec& spec, const ServedTarget& target, const LayerIds& ids) {
  const auto refuse = [&](const std::string& field, const std::string& why) { return cannot_hold(DraftFormat::kSglang, spec, field, why); };
  // How ids are read depends on the target; where that is not known, both rules must agree.
  if (spec.has_fc && target.architecture.empty() && spec.attention == AttentionKind::kGqa) {
    const auto other = to_boundaries(LayerIdRule::kFirstOne, ids.ids, 0);
    if (!other.ok() || *other != spec.taps) {
      return refuse("taps", "which ids SGLang reads as these depends on the target's architecture: name the target with -m");
    }
  }
  const DraftFolder folder = flat::draft_folder(spec, flat::Maker::kSglang, ids);
  DrafterFiles files;
  files.config = folder.config;
  for (const DraftTensor& tensor : draft_tensors(spec)) files.tensors[checkpoint_name(tensor.name, folder.first_layer)] = tensor.shape;
  if (!spec.d2t.empty()) {
    for (size_t d = 0; d < spec.d2t.size(); ++d) files.d2t.push_back(spec.d2t[d] - static_cast<int64_t>(d));
    files.tensors["d2t"] = {spec.d2t.size()};
  }
  AERIE_ASSIGN(const EngineVersion newest, parse_engine("sglang"));
  const ServedReading read = read_as_served(files, newest, target, &spec).front();
  if (!read.spec) return refuse("attention", read.refuses() ? read.refusals.front().text : read.unknown);
  if (spec.own_embedding && !read.spec->own_embedding) {
    return refuse("own_embedding", "SGLang puts the target's embedding in its place, unless the widths differ");
  }
  for (const ServedDifference& difference : read.differences)
    return refuse(difference.field, fmt::format("{} has {}", read.engine, difference.served));
  for (const std::vector<Finding>* findings : {&read.refusals, &read.misreadings}) {
    for (const Finding& finding : *findings) {
      if (finding.severity == Severity::kError) return refuse("taps", finding.text);
    }
  }
  return {};
}

}  // namespace

Expected<LayerIds> layer_ids_of(DraftFormat format, const DraftSpec& spec, const ServedTarget& target) {
  if (!spec.has_fc) return LayerIds{};
  LayerIdRule rule = LayerIdRule::kBlockOutputAndFinal;
  if (format != DraftFormat::kModelOpt) {
    // MLA drafters are made for targets of DeepSeek's kind.
    const bool deepseek = target.architecture.empty() && spec.attention == AttentionKind::kMla;
    AERIE_ASSIGN(rule, layer_id_rule("sglang", deepseek ? "deepseek_v3" : target.architecture));
  }
  auto out = to_layer_ids(rule, spec.taps, target.blocks);
  if (!out.ok()) return cannot_hold(format, spec, "taps", out.status().message());
  return out;
}

Status check_expressible(DraftFormat format, const DraftSpec& spec, const ServedTarget& target) {
  for (const Demand& demand : demands_of(format, spec)) {
    if (!demand.met) return cannot_hold(format, spec, demand.field, demand.why);
  }
  if (format == DraftFormat::kSpeculators || format == DraftFormat::kGguf) return {};
  AERIE_ASSIGN(const LayerIds ids, layer_ids_of(format, spec, target));
  return format == DraftFormat::kSglang ? check_served_by_sglang(spec, target, ids) : Status();
}

}  // namespace aerie
