#include "eagle3/checkpoint.h"

namespace aerie {
namespace {

uint64_t size(int value) { return static_cast<uint64_t>(value); }

void add_gqa(const DraftSpec& spec, const std::string& layer, uint64_t in, std::vector<DraftTensor>& out) {
  const struct {
    const char* name;
    int width;
  } projections[] = {{"q", spec.query_width()}, {"k", spec.kv_width()}, {"v", spec.kv_width()}};
  for (const auto& [name, width] : projections) {
    out.push_back({layer + name, {size(width), in}});
    if (spec.qkv_bias) out.push_back({layer + name + "_bias", {size(width)}});
  }
  if (spec.qk_norm) {
    out.push_back({layer + "q_norm", {size(spec.head_dim)}});
    out.push_back({layer + "k_norm", {size(spec.head_dim)}});
  }
}

void add_mla(const DraftSpec& spec, const std::string& layer, uint64_t in, std::vector<DraftTensor>& out) {
  if (spec.q_rank == 0) {
    out.push_back({layer + "q", {size(spec.query_width()), in}});
  } else {
    out.push_back({layer + "q_a", {size(spec.q_rank), in}});
    out.push_back({layer + "q_a_norm", {size(spec.q_rank)}});
    out.push_back({layer + "q_b", {size(spec.query_width()), size(spec.q_rank)}});
  }
  out.push_back({layer + "kv_a", {size(spec.kv_rank + spec.rope_dim), in}});
  out.push_back({layer + "kv_a_norm", {size(spec.kv_rank)}});
  out.push_back({layer + "kv_b", {size(spec.heads * (spec.nope_dim + spec.v_dim)), size(spec.kv_rank)}});
}

void add_layer(const DraftSpec& spec, int j, std::vector<DraftTensor>& out) {
  const std::string layer = fmt::format("layers.{}.", j);
  const uint64_t h = size(spec.hidden), inter = size(spec.intermediate), in = size(spec.layer_input_width(j));
  if (j == 0 || spec.layout != LayerLayout::kHiddenNorm) out.push_back({layer + "input_layernorm", {h}});
  if (j == 0 || spec.layout != LayerLayout::kInputNorm) out.push_back({layer + "hidden_norm", {h}});
  spec.attention == AttentionKind::kMla ? add_mla(spec, layer, in, out) : add_gqa(spec, layer, in, out);
  out.push_back({layer + "o", {h, size(spec.attended_width())}});
  if (spec.o_bias) out.push_back({layer + "o_bias", {h}});
  out.push_back({layer + "post_attention_layernorm", {h}});
  out.push_back({layer + "gate", {inter, h}});
  out.push_back({layer + "up", {inter, h}});
  out.push_back({layer + "down", {h, inter}});
  if (spec.mlp_bias) {
    out.push_back({layer + "gate_bias", {inter}});
    out.push_back({layer + "up_bias", {inter}});
    out.push_back({layer + "down_bias", {h}});
  }
}

}  // namespace

std::vector<DraftTensor> draft_tensors(const DraftSpec& spec) {
  const uint64_t h = size(spec.hidden), feature = size(spec.feature_width());
  std::vector<DraftTensor> out;
  if (spec.own_embedding) out.push_back({"embed_tokens", {size(spec.vocab), h}});
  if (spec.feature_norm == FeatureNorm::kConcat) out.push_back({"input_norm", {feature}});
  if (spec.feature_norm == FeatureNorm::kPerTap) {
    for (size_t i = 0; i < spec.taps.size(); ++i) out.push_back({fmt::format("fc_norm.{}", i), {size(spec.target_hidden)}});
  }
  if (spec.has_fc) out.push_back({"fc", {h, feature}});
  if (spec.has_fc && spec.fc_bias) out.push_back({"fc_bias", {h}});
  for (int j = 0; j < spec.layers; ++j) add_layer(spec, j, out);
  if (spec.head_norm || spec.feedback == Feedback::kPostNorm) out.push_back({"norm", {h}});
  if (spec.own_head) out.push_back({"lm_head", {size(spec.draft_vocab), h}});
  return out;
}

}  // namespace aerie
