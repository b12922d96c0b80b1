// Every vector unit against the scalar reference, and the reference against plain double arithmetic.
#include <cmath>
#include <limits>

#include "kernel_fixture.h"

namespace aerie::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const TileFormat kFormats[] = {TileFormat::kQ4, TileFormat::kQ8, TileFormat::kBf16, TileFormat::kF32};

TEST(Oracle, QuantizedProductsOfAllUnitsAreTheReferencesBytes) {
  // Integers are exact, and all units round in the same places (one product, then fused additions in the order of blocks).
  Random random(1);
  for (TileFormat format : {TileFormat::kQ4, TileFormat::kQ8}) {
    for (int rows : {16, 40, 67}) {
      for (int cols : {32, 96, 576}) {
        const PackedMatrix w = random_matrix(random, format, rows, cols);
        for (int n : {1, 2, 3, 5, 8, 9, 20}) {
          const std::vector<float> x = random.normals(static_cast<size_t>(n) * cols);
          const std::vector<float> expected = product(table(Isa::kScalar), w, x, n);
          for (Isa isa : vector_isas()) {
            const std::vector<float> actual = product(table(isa), w, x, n);
            ASSERT_TRUE(same_bytes(expected.data(), actual.data(), expected.size()))
                << table(isa).name << " format " << static_cast<int>(format) << " " << rows << "x" << cols << " n " << n;
          }
        }
      }
    }
  }
}

TEST(Oracle, ProductsAreWhatDoubleArithmeticGives) {
  Random random(2);
  for (TileFormat format : kFormats) {
    const int rows = 37, cols = 288, n = 5;
    const PackedMatrix w = random_matrix(random, format, rows, cols);
    std::vector<float> x = random.normals(static_cast<size_t>(n) * cols);
    std::vector<float> used = x;  // what the kernel multiplies: rounded to 12 bits where the format is quantised
    if (format == TileFormat::kQ4 || format == TileFormat::kQ8) {
      QuantizedBuffer q(n, cols);
      table(Isa::kScalar).quantize_rows(x.data(), cols, 0, n, cols, q.rows());
      for (int r = 0; r < n; ++r) {
        for (int c = 0; c < cols; ++c) used[static_cast<size_t>(r) * cols + c] = q.value(r, c) * q.scale(r, c / kBlock);
      }
    }
    std::vector<float> weights(cols);
    for (Isa isa : available_isas()) {
      const std::vector<float> y = product(table(isa), w, x, n);
      for (int out = 0; out < rows; ++out) {
        unpack_row(w, out, weights.data());
        for (int r = 0; r < n; ++r) {
          double sum = 0, magnitude = 0;
          for (int c = 0; c < cols; ++c) {
            const double term = static_cast<double>(weights[c]) * used[static_cast<size_t>(r) * cols + c];
            sum += term;
            magnitude += std::fabs(term);
          }
          // Each of the cols additions errs by half a unit in the last place of at most the sum of magnitudes; the quantised
          // kernels add few, but larger terms (d * q and m apart), hence the factor.
          EXPECT_NEAR(y[static_cast<size_t>(r) * rows + out], sum, 1e-5 * magnitude + 1e-6)
              << table(isa).name << " format " << static_cast<int>(format);
        }
      }
    }
  }
}

TEST(Oracle, QuantizeRowsIsExactlyTheReference) {
  Random random(3);
  const int n = 7, k = 320;
  for (float scale : {1.0f, 1e-3f, 1e4f, 1e-30f, 1e-38f, 0.0f}) {
    std::vector<float> x = random.normals(static_cast<size_t>(n) * (k + 5), scale);
    x[3] = static_cast<float>(kActivationMax);  // scale exactly 1 in the first block: the next values are ties
    for (int i = 4; i < 12; ++i) x[i] = static_cast<float>(i - 8) + 0.5f;
    QuantizedBuffer expected(n, k);
    table(Isa::kScalar).quantize_rows(x.data(), k + 5, 0, n, k, expected.rows());
    for (Isa isa : vector_isas()) {
      QuantizedBuffer actual(n, k);
      table(isa).quantize_rows(x.data(), k + 5, 0, n, k, actual.rows());
      for (int r = 0; r < n; ++r) EXPECT_EQ(expected.bytes(r), actual.bytes(r)) << table(isa).name << " " << scale << " row " << r;
    }
  }
}

TEST(Oracle, QuantizeRowsRoundsTiesToEven) {
  std::vector<float> x(32, 0.0f);
  x[0] = static_cast<float>(kActivationMax);
  const float ties[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 125.5f, 126.5f};
  const int rounded[] = {0, 2, 2, 0, -2, -2, 126, 126};
  std::copy(std::begin(ties), std::end(ties), x.begin() + 1);
  for (Isa isa : available_isas()) {
    QuantizedBuffer q(1, 32);
    table(isa).quantize_rows(x.data(), 32, 0, 1, 32, q.rows());
    for (int i = 0; i < 8; ++i) EXPECT_EQ(q.value(0, i + 1), rounded[i]) << table(isa).name;
    EXPECT_EQ(q.scale(0, 0), 1.0f);
    EXPECT_EQ(q.offset(0, 0), kActivationMax + 0 + 2 + 2 + 0 - 2 - 2 + 126 + 126);
    EXPECT_EQ(q.block(0, 0).sum128[0], -128 * (kActivationMax + 252));
  }
}

TEST(Oracle, RmsNorm) {
  Random random(4);
  for (Isa isa : vector_isas()) {
    for (int width : {1, 7, 8, 16, 33, 576, 1000}) {
      const std::vector<float> x = random.normals(width, 3.0f), weight = random.normals(width);
      std::vector<float> expected(width), actual(width);
      table(Isa::kScalar).rms_norm(x.data(), weight.data(), 1e-5f, width, expected.data());
      table(isa).rms_norm(x.data(), weight.data(), 1e-5f, width, actual.data());
      // The mean of non-negative terms keeps a relative error of a few units in the last place (6e-8 each).
      for (int i = 0; i < width; ++i) EXPECT_NEAR(actual[i], expected[i], 2e-6f * std::fabs(expected[i]) + 1e-12f) << width;
      std::vector<float> in_place = x;
      table(isa).rms_norm(in_place.data(), weight.data(), 1e-5f, width, in_place.data());
      EXPECT_TRUE(same_bytes(in_place.data(), actual.data(), width));
    }
  }
}

TEST(Oracle, SiluMul) {
  Random random(5);
  for (Isa isa : vector_isas()) {
    for (int width : {1, 9, 16, 50, 1536}) {
      std::vector<float> gate = random.normals(width, 20.0f), up = random.normals(width);
      gate[0] = 200.0f;
      if (width > 8) gate[8] = -200.0f, gate[3] = 0.0f, gate[4] = -87.2f, gate[5] = 1e-20f;
      std::vector<float> expected(width), actual(width);
      table(Isa::kScalar).silu_mul(gate.data(), up.data(), width, expected.data());
      table(isa).silu_mul(gate.data(), up.data(), width, actual.data());
      // Two units in the last place of exp, one of the sum, quotient and product each; below 1e-30 the clamp of exp shows.
      for (int i = 0; i < width; ++i) EXPECT_NEAR(actual[i], expected[i], 5e-7f * std::fabs(expected[i]) + 1e-30f) << gate[i];
      table(isa).silu_mul(gate.data(), up.data(), width, gate.data());
      EXPECT_TRUE(same_bytes(gate.data(), actual.data(), width));
    }
  }
}

TEST(Oracle, AddAndRope) {
  Random random(6);
  for (Isa isa : vector_isas()) {
    for (int head_dim : {8, 16, 40, 64, 128}) {
      const int heads = 5, half = head_dim / 2;
      std::vector<float> expected = random.normals(static_cast<size_t>(heads) * head_dim), cos(half), sin(half);
      std::vector<float> actual = expected;
      rope_angles(77, head_dim, 1e5f, cos.data(), sin.data());
      table(Isa::kScalar).rope(expected.data(), heads, head_dim, cos.data(), sin.data());
      table(isa).rope(actual.data(), heads, head_dim, cos.data(), sin.data());
      // A difference of two products: the error is relative to the pair's length, not to the result.
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6f);
      std::vector<float> sum = actual, reference = actual;
      table(isa).add(expected.data(), static_cast<int>(sum.size()) - 3, sum.data());
      table(Isa::kScalar).add(expected.data(), static_cast<int>(sum.size()) - 3, reference.data());
      EXPECT_EQ(sum, reference);
    }
  }
}

TEST(Oracle, ArgmaxTakesTheFirstLargestAndIgnoresNan) {
  Random random(7);
  for (Isa isa : available_isas()) {
    const Kernels& k = table(isa);
    for (int n : {1, 5, 8, 15, 16, 17, 1000}) {
      for (int trial = 0; trial < 50; ++trial) {
        std::vector<float> x(n);
        for (float& v : x) v = static_cast<float>(random.integer(-3, 3));  // many equals
        for (float& v : x) v = random.integer(0, 5) == 0 ? kNan : v;
        EXPECT_EQ(k.argmax(x.data(), n), table(Isa::kScalar).argmax(x.data(), n)) << k.name << " " << n;
      }
      const std::vector<float> nans(n, kNan), lowest(n, -kInfinity);
      EXPECT_EQ(k.argmax(nans.data(), n), -1);
      EXPECT_EQ(k.argmax(lowest.data(), n), 0);
    }
    const float signs[] = {-0.0f, 0.0f, -1.0f};
    EXPECT_EQ(k.argmax(signs, 3), 0);
    const float infinite[] = {1.0f, kInfinity, kNan, kInfinity};
    EXPECT_EQ(k.argmax(infinite, 4), 1);
  }
}

}  // namespace
}  // namespace aerie::kernels
