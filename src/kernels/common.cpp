// Portable parts that are not worth an instruction set of their own.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "kernels/kernels.h"

namespace aerie::kernels {
namespace {

// Comparisons are false for NaN, which therefore stays: a broken row must be seen as broken.
uint16_t clamped_half(float value) {
  value = value > kMaxHalf ? kMaxHalf : value;
  value = value < -kMaxHalf ? -kMaxHalf : value;
  return float_to_half(value);
}
float unchanged(float value) { return value; }

template <class Element, Element (*convert)(float)>
void store_kv_as(Element* block, int slot, int kv_heads, int head_dim, const float* k, const float* v) {
  const size_t head_elements = static_cast<size_t>(head_dim) * kKvBlock;
  for (int head = 0; head < kv_heads; ++head, k += head_dim, v += head_dim) {
    Element* keys = block + 2 * static_cast<size_t>(head) * head_elements + slot;
    Element* values = block + (2 * static_cast<size_t>(head) + 1) * head_elements + static_cast<size_t>(slot) * head_dim;
    // Keys are scattered; a run of them is converted first, because that loop is vector code and the scatter is not.
    constexpr int kRun = 64;
    for (int first = 0; first < head_dim; first += kRun) {
      const int count = std::min(kRun, head_dim - first);
      Element run[kRun];
      for (int j = 0; j < count; ++j) run[j] = convert(k[first + j]);
      for (int j = 0; j < count; ++j) keys[static_cast<size_t>(first + j) * kKvBlock] = run[j];
    }
    for (int d = 0; d < head_dim; ++d) values[d] = convert(v[d]);
  }
}

}  // namespace

void store_kv(KvType type, void* block, int position, int kv_heads, int head_dim, const float* k, const float* v) {
  const int slot = position % kKvBlock;
  if (type == KvType::kF16) {
    store_kv_as<uint16_t, clamped_half>(static_cast<uint16_t*>(block), slot, kv_heads, head_dim, k, v);
  } else {
    store_kv_as<float, unchanged>(static_cast<float*>(block), slot, kv_heads, head_dim, k, v);
  }
}

void merge_chunks(int chunks, int visible, int head_dim, const float* acc, size_t acc_stride, const float* max, const float* sum,
                  size_t scalar_stride, float* out) {
  const int used = std::min(chunks, (visible + kAttentionChunk - 1) / kAttentionChunk);
  std::fill(out, out + head_dim, 0.0f);
  if (used <= 0) return;
  float top = -std::numeric_limits<float>::infinity();
  for (int c = 0; c < used; ++c) top = std::max(top, max[static_cast<size_t>(c) * scalar_stride]);
  float total = 0.0f;
  for (int c = 0; c < used; ++c) {
    const float weight = std::exp(max[static_cast<size_t>(c) * scalar_stride] - top);
    total += weight * sum[static_cast<size_t>(c) * scalar_stride];
    const float* part = acc + static_cast<size_t>(c) * acc_stride;
    for (int d = 0; d < head_dim; ++d) out[d] += weight * part[d];
  }
  for (int d = 0; d < head_dim; ++d) out[d] /= total;
}

void rope_frequencies(int head_dim, float theta, float* out) {
  for (int j = 0; j < head_dim / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(head_dim);
    out[j] = 1.0f / static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
  }
}

void rope_angles(int position, const float* frequencies, int pairs, float* cos, float* sin) {
  for (int j = 0; j < pairs; ++j) {
    const double angle = static_cast<float>(position) * frequencies[j];
    cos[j] = static_cast<float>(std::cos(angle));
    sin[j] = static_cast<float>(std::sin(angle));
  }
}

void rope_angles(int position, int head_dim, float theta, float* cos, float* sin) {
  rope_frequencies(head_dim, theta, sin);  // read before it is overwritten, pair by pair
  rope_angles(position, sin, head_dim / 2, cos, sin);
}

}  // namespace aerie::kernels
