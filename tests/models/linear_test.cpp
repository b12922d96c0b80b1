// The largest output of a product, found without keeping the product.
#include "models/linear.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "models_fixture.h"

namespace aerie {
namespace {

TEST(Argmax, IsThatOfTheProductWithTiesAndNan) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  constexpr int kCols = 64;
  for (const int rows : {1, 15, 16, 200, 1000}) {
    kernels::PackedMatrix w(kernels::TileFormat::kF32, rows, kCols);
    std::vector<float> row(kCols);
    for (int r = 0; r < rows; ++r) {
      // Every fifth row is that of five before: its outputs tie, wherever the work is cut.
      if (r % 5 != 0 || r == 0) {
        for (float& v : row) v = normal(random);
      } else {
        kernels::unpack_row(w, r - 5, row.data());
      }
      kernels::pack_row_f32(w, r, row.data());
    }
    for (const int n : {1, 3, 17, 70}) {
      Activations x(n, kCols);
      for (int r = 0; r < n; ++r) {
        for (int c = 0; c < kCols; ++c) x.row(r)[c] = n > 1 && r == 1 ? std::numeric_limits<float>::quiet_NaN() : normal(random);
      }
      for (const kernels::Isa isa : kernels::available_isas()) {
        const kernels::Kernels& k = **kernels::kernels_for(isa);
        std::vector<float> y(static_cast<size_t>(n) * static_cast<size_t>(rows));
        const LinearTask task[] = {{&w, y.data(), static_cast<size_t>(rows)}};
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          run_linear(pool, k, task, x.input(), n);
          std::vector<int32_t> best(static_cast<size_t>(n), 77);
          run_argmax(pool, k, w, x.input(), n, best.data());
          for (int r = 0; r < n; ++r) {
            EXPECT_EQ(best[static_cast<size_t>(r)], k.argmax(y.data() + static_cast<size_t>(r) * static_cast<size_t>(rows), rows))
                << k.name << " rows " << rows << " n " << n << " threads " << threads << " row " << r;
          }
          if (n > 1) {
            EXPECT_EQ(best[1], -1);
          }
        }
      }
    }
  }
}

/// Random blocks of a type whose scales are those of a real model.
std::vector<uint8_t> random_blocks(std::mt19937& random, DType type, int blocks) {
  std::vector<uint8_t> bytes(static_cast<size_t>(blocks * block_bytes(type)));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  const auto scale_at = [&](size_t at, float low, float high) {
    const uint16_t half = f32_to_f16(std::uniform_real_distribution<float>(low, high)(random));
    std::memcpy(bytes.data() + at, &half, sizeof half);
  };
  for (int i = 0; i < blocks; ++i) {
    const size_t at = static_cast<size_t>(i * block_bytes(type));
    if (type == DType::kQ6_K) {
      scale_at(at + 208, 1e-5f, 1e-3f);
    } else {
      scale_at(at, 1e-5f, type == DType::kQ4_K || type == DType::kQ5_K ? 1e-3f : 3e-2f);
      if (type != DType::kQ4_0 && type != DType::kQ5_0 && type != DType::kQ8_0)
        scale_at(at + 2, type == DType::kQ4_1 || type == DType::kQ5_1 ? -1e-1f : 1e-5f, 1e-3f);
    }
  }
  return bytes;
}

TEST(PackTensor, KeepsWhatTilesCanHoldAndRoundsTheRestWithinItsBound) {
  std::mt19937 random(5);
  ThreadPool pool(2);
  constexpr int kRows = 37, kCols = 512;
  for (const DType type :
       {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const std::vector<uint8_t> bytes = random_blocks(random, type, kRows * kCols / block_values(type));
    const TensorView tensor{"w", type, {kRows, kCols}, bytes};
    const std::vector<float> exact = *to_float(tensor);
    for (const bool keep : {false, true}) {
      const auto packed = pack_tensor(pool, tensor, keep);
      ASSERT_TRUE(packed.ok()) << packed.status().message();
      EXPECT_EQ(is_quantized(*packed), keep);
      std::vector<float> row(kCols);
      double largest = 0;  // change, in parts of the bound
      for (int r = 0; r < kRows; ++r) {
        kernels::unpack_row(*packed, r, row.data());
        for (int c = 0; c < kCols; ++c) {
          const float* block = exact.data() + r * kCols + c / 32 * 32;
          float span = 0;
          for (int j = 0; j < 32; ++j) span = std::max(span, std::fabs(block[j]));
          // Q4_K: two roundings to f16 of numbers at most 2 span; 8 bits: half a step of span / 127, and the scale's own rounding.
          const double bound = !keep || !is_rounded(type) ? 0
                               : type == DType::kQ4_K     ? 4 * span * 0x1p-11 + 16 * 0x1p-25
                                                          : 0.51 * span / 127 + 127 * 0x1p-25;
          const double change = std::fabs(static_cast<double>(row[static_cast<size_t>(c)]) - exact[static_cast<size_t>(r * kCols + c)]);
          ASSERT_LE(change, bound) << dtype_name(type) << " keep " << keep << " row " << r << " column " << c;
          largest = std::max(largest, change / span);
        }
      }
      if (keep) RecordProperty(dtype_name(type), std::to_string(largest));
    }
  }
}

TEST(PackTensor, RefusesWeightsThatNoTileHolds) {
  std::mt19937 random(6);
  ThreadPool pool(2);
  for (const DType type : {DType::kQ4_K, DType::kQ5_1, DType::kQ6_K}) {
    std::vector<uint8_t> bytes = random_blocks(random, type, 4);
    const uint16_t nan = 0x7e00;
    std::memcpy(bytes.data() + 3 * static_cast<size_t>(block_bytes(type)) + (type == DType::kQ6_K ? 208 : 0), &nan, sizeof nan);
    const uint64_t cols = static_cast<uint64_t>(block_values(type));
    const auto packed = pack_tensor(pool, {"w", type, {4, cols}, bytes}, true);
    ASSERT_FALSE(packed.ok()) << dtype_name(type);
    EXPECT_NE(packed.status().message().find("row 3"), std::string::npos) << packed.status().message();
    // Computed in float32 it is read as it is: a broken weight is seen in the output.
    EXPECT_TRUE(pack_tensor(pool, {"w", type, {4, cols}, bytes}, false).ok());
  }
  const std::vector<uint8_t> integers(64);
  EXPECT_FALSE(pack_tensor(pool, {"w", DType::kI32, {4, 4}, integers}, true).ok());
}

}  // namespace
}  // namespace aerie
