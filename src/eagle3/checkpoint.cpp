#include "eagle3/checkpoint.h"

namespace aerie {

std::vector<DraftTensor> draft_tensors(const DraftSpec& spec) {
  const auto size = [](int value) { return static_cast<uint64_t>(value); };
  const uint64_t h = size(spec.hidden), wide = size(2) * h, inter = size(spec.intermediate), feature = size(spec.feature_width());
  std::vector<DraftTensor> out;
  if (spec.own_embedding) out.push_back({"embed_tokens", {size(spec.vocab), h}});
  if (spec.feature_norm == FeatureNorm::kConcat) out.push_back({"input_norm", {feature}});
  if (spec.feature_norm == FeatureNorm::kPerTap) {
    for (size_t i = 0; i < spec.taps.size(); ++i) out.push_back({fmt::format("fc_norm.{}", i), {size(spec.target_hidden)}});
  }
  out.push_back({"fc", {h, feature}});
  out.push_back({"input_layernorm", {h}});
  out.push_back({"hidden_norm", {h}});
  out.push_back({"q", {size(spec.query_width()), wide}});
  out.push_back({"k", {size(spec.kv_width()), wide}});
  out.push_back({"v", {size(spec.kv_width()), wide}});
  out.push_back({"o", {h, size(spec.query_width())}});
  out.push_back({"post_attention_layernorm", {h}});
  out.push_back({"gate", {inter, h}});
  out.push_back({"up", {inter, h}});
  out.push_back({"down", {h, inter}});
  out.push_back({"norm", {h}});
  if (spec.own_head) out.push_back({"lm_head", {size(spec.draft_vocab), h}});
  return out;
}

}  // namespace aerie
