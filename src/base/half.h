// Scalar conversions between float32 and IEEE half precision, for code that may not assume F16C. Rounds to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace aerie {

inline constexpr float kMaxHalf = 65504.0f;  // the largest finite one

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
  uint32_t magnitude;
  if (exponent == 31) {
    magnitude = 0x7f800000u | mantissa << 13;  // infinity or NaN
  } else if (exponent == 0) {
    magnitude = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);  // zero or subnormal, exact
  } else {
    magnitude = (exponent + 112) << 23 | mantissa << 13;
  }
  return std::bit_cast<float>(sign | magnitude);
}

inline uint16_t float_to_half(float value) {
  const int32_t bits = std::bit_cast<int32_t>(value);
  const int32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  // Every case is computed and one selected: without branches a loop of conversions becomes vector code. Signed, because
  // baseline x86-64 has no unsigned vector comparison.
  const int32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  // Subnormal half: beside 0.5f the spacing of floats is 2^-24, the unit of a subnormal half, so the addition does the rounding.
  const int32_t subnormal = std::bit_cast<int32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<int32_t>(0.5f);
  int32_t half = magnitude < 0x38800000 ? subnormal : normal;
  half = magnitude >= 0x477ff000 ? 0x7c00 : half;  // 65520 and above round to infinity
  half = magnitude > 0x7f800000 ? 0x7e00 : half;   // NaN
  return static_cast<uint16_t>(sign | half);
}

}  // namespace aerie
