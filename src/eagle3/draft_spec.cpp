#include "eagle3/draft_spec.h"

#include <cmath>
#include <string_view>

namespace aerie {
namespace {

// Far above any real model, low enough that products of two of them stay inside an int.
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxHeads = 1 << 10;
constexpr int kMaxHeadDim = 1 << 12;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxTaps = 64;
constexpr int kMaxTap = 1 << 14;

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

const char* name(FeatureNorm norm) {
  switch (norm) {
    case FeatureNorm::kNone: return "none";
    case FeatureNorm::kConcat: return "one over the concat";
    case FeatureNorm::kPerTap: return "one per tap";
  }
  return "?";
}

const char* name(Feedback feedback) { return feedback == Feedback::kPostNorm ? "post-norm" : "pre-norm"; }

}  // namespace

Status DraftSpec::validate() const {
  if (taps.empty()) return corrupt("taps is empty, expected at least one boundary of the target");
  if (taps.size() > static_cast<size_t>(kMaxTaps)) return corrupt("taps has {} entries, at most {} are supported", taps.size(), kMaxTaps);
  for (const int tap : taps) {
    if (tap < 0 || tap > kMaxTap) return corrupt("taps holds {}, expected boundaries from 0 to the target's number of blocks", tap);
  }
  AERIE_TRY(check_range("target_hidden", target_hidden, kMaxWidth));
  AERIE_TRY(check_range("hidden", hidden, kMaxWidth));
  AERIE_TRY(check_range("heads", heads, kMaxHeads));
  AERIE_TRY(check_range("kv_heads", kv_heads, kMaxHeads));
  AERIE_TRY(check_range("head_dim", head_dim, kMaxHeadDim));
  AERIE_TRY(check_range("intermediate", intermediate, kMaxWidth));
  AERIE_TRY(check_range("vocab", vocab, kMaxVocab));
  AERIE_TRY(check_range("draft_vocab", draft_vocab, kMaxVocab));
  if (heads % kv_heads != 0) return corrupt("heads is {}, not a multiple of kv_heads, which is {}", heads, kv_heads);
  if (head_dim % 2 != 0) return corrupt("head_dim is {}, expected an even value (RoPE turns pairs)", head_dim);
  if (max_positions < 1) return corrupt("max_positions is {}, expected at least 1", max_positions);
  if (!(rope_theta > 0.0f) || !std::isfinite(rope_theta)) return corrupt("rope_theta is {}, expected a positive number", rope_theta);
  if (!(rms_eps > 0.0f) || !std::isfinite(rms_eps)) return corrupt("rms_eps is {}, expected a positive number", rms_eps);
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

std::vector<std::string> differing_fields(const DraftSpec& a, const DraftSpec& b) {
  std::vector<std::string> out;
  const auto compare = [&out](std::string_view field, const auto& x, const auto& y) {
    if (x != y) out.push_back(fmt::format("{}: {} against {}", field, x, y));
  };
  if (a.taps != b.taps) {
    const auto list = [](const std::vector<int>& taps) { return fmt::format("{}", fmt::join(taps, ",")); };
    out.push_back(fmt::format("taps: {} against {}", list(a.taps), list(b.taps)));
  }
  compare("target_hidden", a.target_hidden, b.target_hidden);
  compare("hidden", a.hidden, b.hidden);
  compare("heads", a.heads, b.heads);
  compare("kv_heads", a.kv_heads, b.kv_heads);
  compare("head_dim", a.head_dim, b.head_dim);
  compare("intermediate", a.intermediate, b.intermediate);
  compare("feature_norm", std::string_view(name(a.feature_norm)), std::string_view(name(b.feature_norm)));
  compare("norm_before_residual", a.norm_before_residual, b.norm_before_residual);
  compare("feedback", std::string_view(name(a.feedback)), std::string_view(name(b.feedback)));
  compare("rope_theta", a.rope_theta, b.rope_theta);
  compare("rms_eps", a.rms_eps, b.rms_eps);
  compare("max_positions", a.max_positions, b.max_positions);
  compare("own_embedding", a.own_embedding, b.own_embedding);
  compare("own_head", a.own_head, b.own_head);
  compare("vocab", a.vocab, b.vocab);
  compare("draft_vocab", a.draft_vocab, b.draft_vocab);
  if (a.draft_vocab == b.draft_vocab) {
    int different = 0;
    for (int d = 0; d < a.draft_vocab; ++d) different += a.to_target(d) != b.to_target(d) ? 1 : 0;
    if (different != 0) out.push_back(fmt::format("d2t: {} of {} entries", different, a.draft_vocab));
  }
  return out;
}

std::vector<int32_t> invert_d2t(const DraftSpec& spec) {
  std::vector<int32_t> out(static_cast<size_t>(spec.vocab), -1);
  for (int32_t d = 0; d < spec.draft_vocab; ++d) out[static_cast<size_t>(spec.to_target(d))] = d;
  return out;
}

}  // namespace aerie
