// RoPE beyond its plain form (arXiv 2104.09864): which frequencies a model rotates with, and how they are stretched.
#pragma once

#include <vector>

namespace aerie {

enum class RopeScalingKind { kNone, kLinear, kLlama3, kYarn };

/// How RoPE's frequencies are stretched beyond the context that they were trained with. Only the values of the kind have a meaning.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  float factor = 1.0f;                                    // all kinds
  int original_max_positions = 0;                         // llama3, yarn
  float low_freq_factor = 1.0f, high_freq_factor = 4.0f;  // llama3
  float beta_fast = 32.0f, beta_slow = 1.0f;              // yarn
  bool truncate = true;                                   // yarn: the ramp's ends are rounded to whole dimensions
  float magnitude = 1.0f;                                 // yarn: multiplies cos and sin (its attention_factor)
  bool operator==(const RopeScaling&) const = default;
};

/// All that a rotation depends on but the position.
struct Rope {
  int dim = 0;  // values of a head that are rotated; even
  float theta = 10000.0f;
  bool interleaved = false;  // pairs (2j, 2j+1) rather than (j, j + dim/2)
  RopeScaling scaling;
  bool operator==(const Rope&) const = default;
};

/// What Llama 3's scaling multiplies a frequency by: 1/factor for long wavelengths, 1 for short ones, a ramp between them.
double llama3_stretch(const RopeScaling& scaling, double frequency);

/// The angle of pair j grows by this much with every position. [dim/2]
/// Linear (position interpolation, arXiv 2306.15595): f / factor. Llama 3: long wavelengths f / factor, short ones f, between them
/// a ramp over original_max_positions / wavelength. YaRN (arXiv 2309.00071): the ramp runs over the dimensions, from the one that
/// turns beta_fast times within original_max_positions to the one that turns beta_slow times.
std::vector<float> rope_frequencies(const Rope& rope);

/// Grows as positions are asked for: the cosines and sines of one Rope. Not thread-safe.
class RopeTable {
 public:
  /// cos then sin of `position`, dim/2 each, multiplied by YaRN's magnitude; valid until the next call.
  const float* angles(const Rope& rope, int position);

 private:
  Rope rope_;
  std::vector<float> frequencies_, table_;
};

}  // namespace aerie
