// Random data and reference shapes shared by the kernel tests.
#pragma once

#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/half.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"

namespace aerie::kernels {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float normal(float scale = 1.0f) { return scale * std::normal_distribution<float>()(engine_); }
  float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(engine_); }
  int integer(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  std::vector<float> normals(size_t count, float scale = 1.0f) {
    std::vector<float> result(count);
    for (float& v : result) v = normal(scale);
    return result;
  }

 private:
  std::mt19937 engine_;
};

/// n quantised rows of k values. What no row has written is filled with 0x5a, so that a kernel which reads too far is seen.
class QuantizedBuffer {
 public:
  QuantizedBuffer(int n, int k) : k_(k), blocks_(quantized_blocks(n, k)) {
    std::memset(static_cast<void*>(blocks_.data()), 0x5a, blocks_.size() * sizeof(QuantizedBlock));
  }
  QuantizedBlock* rows() { return blocks_.data(); }
  const QuantizedBlock& block(int r, int b) const { return blocks_[static_cast<size_t>(r / kTileRows * (k_ / kBlock) + b)]; }
  /// Column `c` of row r as the integer that its two bytes stand for.
  int value(int r, int c) const {
    const int8_t* q = block(r, c / kBlock).q[r % kTileRows];
    return 16 * q[c % kBlock] + q[kBlock + c % kBlock];
  }
  float scale(int r, int b) const { return block(r, b).scale[r % kTileRows]; }
  float offset(int r, int b) const { return block(r, b).offset[r % kTileRows]; }
  /// Everything that row r consists of, as bytes.
  std::vector<uint8_t> bytes(int r) const {
    std::vector<uint8_t> out;
    const auto add = [&out](const void* from, size_t count) {
      const auto* p = static_cast<const uint8_t*>(from);
      out.insert(out.end(), p, p + count);
    };
    for (int b = 0; b < k_ / kBlock; ++b) {
      const QuantizedBlock& from = block(r, b);
      const int at = r % kTileRows;
      add(from.q[at], 2 * kBlock);
      add(&from.scale[at], sizeof(float));
      add(&from.offset[at], sizeof(float));
      add(&from.sum128[at], sizeof(int32_t));
    }
    return out;
  }

 private:
  int k_;
  std::vector<QuantizedBlock> blocks_;
};

/// One GGML block row of the given kind with random scales, quants and (Q4_1) minima.
inline std::vector<uint8_t> random_blocks(Random& random, int k, int block_bytes, int scales) {
  std::vector<uint8_t> row(static_cast<size_t>(k / kBlock) * block_bytes);
  for (uint8_t& byte : row) byte = static_cast<uint8_t>(random.integer(0, 255));
  for (size_t b = 0; b < row.size(); b += block_bytes) {
    for (int s = 0; s < scales; ++s) {
      const uint16_t half = float_to_half(random.normal(0.02f));
      std::memcpy(row.data() + b + 2 * s, &half, sizeof half);
    }
  }
  return row;
}

inline PackedMatrix random_matrix(Random& random, TileFormat format, int rows, int cols) {
  PackedMatrix matrix(format, rows, cols);
  for (int r = 0; r < rows; ++r) {
    switch (format) {
      case TileFormat::kQ4:
        if (r % 2 == 0) {
          pack_row_q4_1(matrix, r, random_blocks(random, cols, 20, 2).data());
        } else {
          pack_row_q4_0(matrix, r, random_blocks(random, cols, 18, 1).data());
        }
        break;
      case TileFormat::kQ8: pack_row_q8_0(matrix, r, random_blocks(random, cols, 34, 1).data()); break;
      case TileFormat::kBf16: {
        std::vector<uint16_t> values(cols);
        for (uint16_t& v : values) v = static_cast<uint16_t>(std::bit_cast<uint32_t>(random.normal(0.05f)) >> 16);
        pack_row_bf16(matrix, r, values.data());
        break;
      }
      case TileFormat::kF32: pack_row_f32(matrix, r, random.normals(cols, 0.05f).data()); break;
    }
  }
  return matrix;
}

inline const Kernels& table(Isa isa) { return **kernels_for(isa); }

inline std::vector<Isa> vector_isas() {
  std::vector<Isa> result = available_isas();
  result.erase(result.begin());
  return result;
}

/// Runs the product of either kind: quantises the rows first where the format wants it.
inline std::vector<float> product(const Kernels& kernels, const PackedMatrix& w, const std::vector<float>& x, int n) {
  std::vector<float> y(static_cast<size_t>(n) * w.rows(), -1.0f);
  if (w.format() == TileFormat::kQ4 || w.format() == TileFormat::kQ8) {
    QuantizedBuffer q(n, w.cols());
    kernels.quantize_rows(x.data(), w.cols(), 0, n, w.cols(), q.rows());
    kernels.matmul_quantized(w, q.rows(), n, 0, w.tiles(), y.data(), w.rows());
  } else {
    kernels.matmul_float(w, x.data(), w.cols(), n, 0, w.tiles(), y.data(), w.rows());
  }
  return y;
}

inline bool same_bytes(const float* a, const float* b, size_t count) { return std::memcmp(a, b, count * sizeof(float)) == 0; }

}  // namespace aerie::kernels
