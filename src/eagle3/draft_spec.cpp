#include "eagle3/draft_spec.h"

#include <cmath>

#include "eagle3/layer_ids.h"

namespace aerie {
namespace {

// Far above any real model, low enough that products of two of them stay inside an int.
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxHeads = 1 << 10;
constexpr int kMaxHeadDim = 1 << 12;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxTaps = 64;
constexpr int kMaxLayers = 64;

Status check_range(const char* field, int value, int max) {
  if (value >= 1 && value <= max) return {};
  return corrupt("{} is {}, expected a value from 1 to {}", field, value, max);
}

Status check_d2t(const DraftSpec& spec) {
  if (spec.d2t.empty()) {
    if (spec.draft_vocab == spec.vocab) return {};
    return corrupt("d2t is missing though the draft vocabulary ({}) is smaller than the target's ({})", spec.draft_vocab, spec.vocab);
  }
  if (spec.d2t.size() != static_cast<size_t>(spec.draft_vocab)) {
    return corrupt("d2t has {} entries, expected one for each of the {} draft tokens", spec.d2t.size(), spec.draft_vocab);
  }
  std::vector<int32_t> seen(static_cast<size_t>(spec.vocab), -1);
  for (size_t d = 0; d < spec.d2t.size(); ++d) {
    const int32_t target = spec.d2t[d];
    if (target < 0 || target >= spec.vocab) {
      return corrupt("d2t maps draft token {} to target token {}, outside the target's vocabulary of {}", d, target, spec.vocab);
    }
    int32_t& owner = seen[static_cast<size_t>(target)];
    if (owner >= 0) return corrupt("d2t maps the draft tokens {} and {} to the same target token {}", owner, d, target);
    owner = static_cast<int32_t>(d);
  }
  return {};
}

Status check_positive(const char* field, float value) {
  if (value > 0.0f && std::isfinite(value)) return {};
  return corrupt("{} is {}, expected a positive number", field, value);
}

Status check_rope(const DraftSpec& spec) {
  AERIE_TRY(check_positive("rope_theta", spec.rope_theta));
  if (spec.rope_dim < 2 || spec.rope_dim > spec.head_dim || spec.rope_dim % 2 != 0) {
    return corrupt("rope_dim is {}, expected an even value from 2 to head_dim, which is {}", spec.rope_dim, spec.head_dim);
  }
  const RopeScaling& r = spec.rope_scaling;
  if (r.kind == RopeScalingKind::kNone) return {};
  AERIE_TRY(check_positive("rope_scaling.factor", r.factor));
  if (r.kind == RopeScalingKind::kLinear) return {};
  if (r.original_max_positions < 1) {
    return corrupt("rope_scaling.original_max_positions is {}, expected at least 1", r.original_max_positions);
  }
  if (r.kind == RopeScalingKind::kLlama3) {
    AERIE_TRY(check_positive("rope_scaling.low_freq_factor", r.low_freq_factor));
    AERIE_TRY(check_positive("rope_scaling.high_freq_factor", r.high_freq_factor));
    if (r.low_freq_factor == r.high_freq_factor)
      return corrupt("rope_scaling's low_freq_factor and high_freq_factor are both {}", r.low_freq_factor);
    return {};
  }
  AERIE_TRY(check_positive("rope_scaling.beta_fast", r.beta_fast));
  AERIE_TRY(check_positive("rope_scaling.beta_slow", r.beta_slow));
  return check_positive("rope_scaling.magnitude", r.magnitude);
}

Status check_attention(const DraftSpec& spec) {
  AERIE_TRY(check_range("heads", spec.heads, kMaxHeads));
  AERIE_TRY(check_range("kv_heads", spec.kv_heads, kMaxHeads));
  AERIE_TRY(check_range("head_dim", spec.head_dim, kMaxHeadDim));
  if (spec.heads % spec.kv_heads != 0) {
    return corrupt("heads is {}, not a multiple of kv_heads, which is {}", spec.heads, spec.kv_heads);
  }
  AERIE_TRY(check_rope(spec));
  AERIE_TRY(check_positive("attention_scale", spec.attention_scale));
  if (spec.sliding_window < 0) return corrupt("sliding_window is {}, expected 0 (none) or a number of rows", spec.sliding_window);
  if (spec.attention == AttentionKind::kGqa) return {};
  AERIE_TRY(check_range("kv_rank", spec.kv_rank, kMaxWidth));
  if (spec.q_rank != 0) AERIE_TRY(check_range("q_rank", spec.q_rank, kMaxWidth));
  AERIE_TRY(check_range("nope_dim", spec.nope_dim, kMaxHeadDim));
  AERIE_TRY(check_range("v_dim", spec.v_dim, kMaxHeadDim));
  AERIE_TRY(check_positive("latent_eps", spec.latent_eps));
  if (spec.nope_dim + spec.rope_dim != spec.head_dim) {
    return corrupt("head_dim is {}, expected nope_dim + rope_dim = {} + {}", spec.head_dim, spec.nope_dim, spec.rope_dim);
  }
  if (spec.kv_heads != spec.heads)
    return corrupt("kv_heads is {}, with MLA attention it equals heads, which is {}", spec.kv_heads, spec.heads);
  if (spec.qk_norm || spec.qkv_bias) return corrupt("qk_norm and qkv_bias have no meaning with MLA attention");
  return {};
}

}  // namespace

Status DraftSpec::validate() const {
  if (taps.empty()) return corrupt("taps is empty, expected at least one boundary of the target");
  if (taps.size() > static_cast<size_t>(kMaxTaps)) return corrupt("taps has {} entries, at most {} are supported", taps.size(), kMaxTaps);
  for (const int tap : taps) {
    if (tap != kFinalNormed && (tap < 0 || tap > kMaxTap)) {
      return corrupt("taps holds {}, expected boundaries from 0 to the target's number of blocks, or {} for the normed final state", tap,
                     kFinalNormed);
    }
  }
  AERIE_TRY(check_range("target_hidden", target_hidden, kMaxWidth));
  AERIE_TRY(check_range("hidden", hidden, kMaxWidth));
  AERIE_TRY(check_range("layers", layers, kMaxLayers));
  AERIE_TRY(check_attention(*this));
  AERIE_TRY(check_range("intermediate", intermediate, kMaxWidth));
  AERIE_TRY(check_range("vocab", vocab, kMaxVocab));
  AERIE_TRY(check_range("draft_vocab", draft_vocab, kMaxVocab));
  if (!has_fc && feature_width() != hidden) {
    return corrupt("has_fc is false, but the feature of width {} is not as wide as the drafter, which is {}", feature_width(), hidden);
  }
  if (max_positions < 1) return corrupt("max_positions is {}, expected at least 1", max_positions);
  AERIE_TRY(check_positive("rms_eps", rms_eps));
  AERIE_TRY(check_positive("logit_scale", logit_scale));
  if (draft_vocab > vocab) return corrupt("draft_vocab is {}, larger than the target's vocabulary of {}", draft_vocab, vocab);
  if (!own_embedding && hidden != target_hidden) {
    return corrupt("own_embedding is false, but the target's table of width {} does not fit the drafter's hidden width {}", target_hidden,
                   hidden);
  }
  if (!own_head && (draft_vocab != vocab || hidden != target_hidden)) {
    return corrupt("own_head is false, but the target's head [{}, {}] does not fit the drafter's [{}, {}]", vocab, target_hidden,
                   draft_vocab, hidden);
  }
  return check_d2t(*this);
}

Status check_fits_target(const DraftSpec& spec, int target_hidden, int target_vocab, int target_blocks) {
  if (spec.target_hidden != target_hidden) {
    return invalid_argument("the drafter was made for a target of hidden width {}, this target has {}: use the drafter of this target",
                            spec.target_hidden, target_hidden);
  }
  if (spec.vocab != target_vocab) {
    return invalid_argument("the drafter was made for a target vocabulary of {} tokens, this target has {}: use the drafter of this target",
                            spec.vocab, target_vocab);
  }
  for (const int tap : spec.taps) {
    if (tap > target_blocks) {
      return invalid_argument("the drafter reads boundary {}, this target has only {} blocks: use the drafter of this target", tap,
                              target_blocks);
    }
  }
  return {};
}

std::vector<int32_t> invert_d2t(const DraftSpec& spec) {
  std::vector<int32_t> out(static_cast<size_t>(spec.vocab), -1);
  for (int32_t d = 0; d < spec.draft_vocab; ++d) out[static_cast<size_t>(spec.to_target(d))] = d;
  return out;
}

}  // namespace aerie
