// The readable reference of every kernel: plain loops, one element at a time. It is the oracle of the vector units' tests and
// runs everywhere. Where a formula says fma, the vector units round in the same places.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "kernels/isa.h"

namespace aerie::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void quantize_rows(const float* x, size_t x_stride, int first, int n, int k, QuantizedBlock* out) {
  const int blocks = k / kBlock;
  for (int r = 0; r < n; ++r) {
    for (int b = 0; b < blocks; ++b) {
      const float* source = x + r * x_stride + b * kBlock;
      QuantizedBlock& block = out[static_cast<size_t>((first + r) / kTileRows) * blocks + b];
      const int at = (first + r) % kTileRows;
      int8_t* q = block.q[at];
      float largest = 0.0f;
      bool finite = true;
      for (int c = 0; c < kBlock; ++c) {
        finite = finite && std::isfinite(source[c]);
        largest = std::max(largest, std::fabs(source[c]));
      }
      // A block that holds a NaN or an infinity makes its row NaN, and nothing else.
      const float scale = finite ? largest / static_cast<float>(kActivationMax) : std::numeric_limits<float>::quiet_NaN();
      int sum = 0;
      for (int c = 0; c < kBlock; ++c) {
        // Below the smallest normal scale the quotient is meaningless: such a block counts as zero.
        const bool usable = scale >= std::numeric_limits<float>::min();
        const int value = usable ? static_cast<int>(std::nearbyint(source[c] / scale)) : 0;
        const int high = (value + 8) >> 4;
        q[c] = static_cast<int8_t>(high);
        q[kBlock + c] = static_cast<int8_t>(value - 16 * high);
        sum += value;
      }
      block.scale[at] = scale;
      block.offset[at] = scale * static_cast<float>(sum);
      block.sum128[at] = -128 * sum;
    }
  }
}

void matmul_quantized(const PackedMatrix& w, const QuantizedBlock* x, int n, int tile_begin, int tile_end, float* y, size_t y_stride) {
  const int k = w.cols(), blocks = k / kBlock;
  const bool q4 = w.format() == TileFormat::kQ4;
  for (int out = tile_begin * kTileRows; out < std::min(tile_end * kTileRows, w.rows()); ++out) {
    const uint8_t* tile = w.tile(out / kTileRows);
    const int lane = out % kTileRows;
    for (int r = 0; r < n; ++r) {
      float acc = 0.0f;
      for (int b = 0; b < blocks; ++b) {
        const QuantizedBlock& block = x[static_cast<size_t>(r / kTileRows) * blocks + b];
        const int at = r % kTileRows;
        const int8_t* a = block.q[at];
        const uint8_t* quants = tile + static_cast<size_t>(b) * (q4 ? kQ4BlockBytes : kQ8BlockBytes);
        const uint8_t* scales = quants + (q4 ? kQ4Scales : kQ8Scales);
        const auto half_at = [&](const uint8_t* p) {
          uint16_t half;
          std::memcpy(&half, p + 2 * lane, sizeof half);
          return half_to_float(half);
        };
        int sum = q4 ? 0 : block.sum128[at];
        for (int c = 0; c < kBlock; ++c) {
          const int weight =
              q4 ? quants[64 * (c / 8) + 4 * lane + c % 4] >> (c / 4 % 2 * 4) & 0xf : quants[64 * (c / 4) + 4 * lane + c % 4];
          sum += weight * (16 * a[c] + a[kBlock + c]);
        }
        acc = std::fma(static_cast<float>(sum) * block.scale[at], half_at(scales), acc);
        if (q4) acc = std::fma(half_at(quants + kQ4Minima), block.offset[at], acc);
      }
      y[r * y_stride + out] = acc;
    }
  }
}

void matmul_float(const PackedMatrix& w, const float* x, size_t x_stride, int n, int tile_begin, int tile_end, float* y, size_t y_stride) {
  for (int t = tile_begin; t < tile_end; ++t) {
    const int lanes = std::min(kTileRows, w.rows() - t * kTileRows);
    for (int r = 0; r < n; ++r) {
      float acc[kTileRows] = {};
      for (int c = 0; c < w.cols(); ++c) {
        float column[kTileRows];
        if (w.format() == TileFormat::kF32) {
          std::memcpy(column, w.tile(t) + static_cast<size_t>(c) * sizeof column, sizeof column);
        } else {
          uint16_t stored[kTileRows];
          std::memcpy(stored, w.tile(t) + static_cast<size_t>(c) * sizeof stored, sizeof stored);
          for (int lane = 0; lane < kTileRows; ++lane) column[lane] = std::bit_cast<float>(static_cast<uint32_t>(stored[lane]) << 16);
        }
        for (int lane = 0; lane < kTileRows; ++lane) acc[lane] += column[lane] * x[r * x_stride + c];
      }
      std::memcpy(y + r * y_stride + t * kTileRows, acc, lanes * sizeof(float));
    }
  }
}

void rms_norm(const float* x, const float* weight, float eps, int width, float* y) {
  double squares = 0.0;
  for (int i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
  const float factor = 1.0f / std::sqrt(static_cast<float>(squares / width) + eps);
  for (int i = 0; i < width; ++i) y[i] = x[i] * factor * weight[i];
}

void silu_mul(const float* gate, const float* up, int width, float* y) {
  for (int i = 0; i < width; ++i) y[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void add(const float* x, int width, float* y) {
  for (int i = 0; i < width; ++i) y[i] += x[i];
}

void rope(float* x, int heads, int head_dim, const float* cos, const float* sin) {
  const int half = head_dim / 2;
  for (int head = 0; head < heads; ++head, x += head_dim) {
    for (int j = 0; j < half; ++j) {
      const float a = x[j], b = x[j + half];
      x[j] = a * cos[j] - b * sin[j];
      x[j + half] = b * cos[j] + a * sin[j];
    }
  }
}

float kv_element(KvType type, const void* block, size_t index) {
  return type == KvType::kF16 ? half_to_float(static_cast<const uint16_t*>(block)[index]) : static_cast<const float*>(block)[index];
}

/// The number of the set bit of `word` that has n set bits below it.
int nth_bit(uint64_t word, int n) {
  for (; n > 0; --n) word &= word - 1;
  return std::countr_zero(word);
}

void attend_chunk(const AttendChunk& c) {
  const size_t keys = 2 * static_cast<size_t>(c.kv_head) * c.head_dim * kKvBlock,
               values = keys + static_cast<size_t>(c.head_dim) * kKvBlock;
  for (int i = 0; i < c.n; ++i) {
    const int begin = c.first == nullptr ? c.begin : std::max(c.begin, c.first[i]), end = std::min(c.end, c.visible[i]);
    const auto place_of = [&](int p) { return c.ancestors == nullptr || p < c.tail ? p : c.tail + nth_bit(c.ancestors[i], p - c.tail); };
    float scores[kAttentionChunk];
    float largest = -kInfinity;
    for (int p = begin; p < end; ++p) {
      const int place = place_of(p);
      float score = 0.0f;
      for (int d = 0; d < c.head_dim; ++d) {
        score += c.q[i][d] * kv_element(c.type, c.blocks[place / kKvBlock], keys + static_cast<size_t>(d) * kKvBlock + place % kKvBlock);
      }
      scores[p - c.begin] = score;
      largest = std::max(largest, score);
    }
    float* acc = c.acc + static_cast<size_t>(i) * c.head_dim;
    std::fill(acc, acc + c.head_dim, 0.0f);
    float sum = 0.0f;
    for (int p = begin; p < end; ++p) {
      const float weight = std::exp(scores[p - c.begin] - largest);
      const int place = place_of(p);
      sum += weight;
      for (int d = 0; d < c.head_dim; ++d) {
        acc[d] += weight * kv_element(c.type, c.blocks[place / kKvBlock], values + static_cast<size_t>(place % kKvBlock) * c.head_dim + d);
      }
    }
    c.max[i] = largest;
    c.sum[i] = sum;
  }
}

int argmax(const float* x, int n) {
  int best = -1;
  for (int i = 0; i < n; ++i) {
    if (x[i] == x[i] && (best < 0 || x[i] > x[best])) best = i;
  }
  return best;
}

}  // namespace

const Kernels& scalar_table() {
  static constexpr Kernels kTable = {Isa::kScalar, "scalar", quantize_rows, matmul_quantized, matmul_float, rms_norm,
                                     silu_mul,     add,      rope,          attend_chunk,     argmax};
  return kTable;
}

}  // namespace aerie::kernels
