#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/kernels.h"

namespace aerie {
namespace {

void stretch_yarn(const Rope& rope, std::vector<float>& frequencies) {
  const RopeScaling& scaling = rope.scaling;
  // The (fractional) pair that turns `turns` times within the original context.
  const auto pair_of = [&](double turns) {
    return rope.dim * std::log(scaling.original_max_positions / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(rope.theta));
  };
  double low = pair_of(scaling.beta_fast), high = pair_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.dim - 1));
  if (low == high) high += 0.001;  // as the field does: no division by zero
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const double stretched = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    frequencies[j] = static_cast<float>(frequencies[j] * (1.0 - stretched) + frequencies[j] / scaling.factor * stretched);
  }
}

}  // namespace

double llama3_stretch(const RopeScaling& scaling, double frequency) {
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const double turns = scaling.original_max_positions * frequency / (2.0 * std::numbers::pi);  // within the context
  const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
  return (1.0 - kept) / scaling.factor + kept;
}

std::vector<float> rope_frequencies(const Rope& rope) {
  std::vector<float> out(static_cast<size_t>(rope.dim / 2));
  kernels::rope_frequencies(rope.dim, rope.theta, out.data());
  switch (rope.scaling.kind) {
    case RopeScalingKind::kNone: break;
    case RopeScalingKind::kLinear:
      for (float& f : out) f /= rope.scaling.factor;
      break;
    case RopeScalingKind::kLlama3:
      for (float& f : out) f = static_cast<float>(f * llama3_stretch(rope.scaling, f));
      break;
    case RopeScalingKind::kYarn: stretch_yarn(rope, out); break;
  }
  return out;
}

const float* RopeTable::angles(const Rope& rope, int position) {
  if (frequencies_.empty() || rope != rope_) {
    rope_ = rope;
    frequencies_ = rope_frequencies(rope);
    table_.clear();
  }
  const size_t width = static_cast<size_t>(rope.dim), at = static_cast<size_t>(position) * width;
  const float magnitude = rope.scaling.kind == RopeScalingKind::kYarn ? rope.scaling.magnitude : 1.0f;
  while (table_.size() <= at) {
    const size_t known = table_.size();
    table_.resize(known + width);
    float* angles = table_.data() + known;
    kernels::rope_angles(static_cast<int>(known / width), frequencies_.data(), rope.dim / 2, angles, angles + width / 2);
    for (size_t i = 0; i < width; ++i) angles[i] *= magnitude;
  }
  return table_.data() + at;
}

}  // namespace aerie
