// The law of src/kernels: a row's bytes are those of the row computed alone, for any number of rows beside it, any place among
// them, any range of tiles and any stride. Every unit, every format.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_fixture.h"
#include "rapidcheck/gtest.h"

namespace aerie::kernels {
namespace {

const TileFormat kFormats[] = {TileFormat::kQ4, TileFormat::kQ8, TileFormat::kBf16, TileFormat::kF32};

bool is_quantized(TileFormat format) { return format == TileFormat::kQ4 || format == TileFormat::kQ8; }

/// A matrix, many activation rows, and each row's product computed alone.
struct Case {
  PackedMatrix w;
  int n;
  std::vector<float> x;
  std::vector<float> alone;  // [n][rows]

  Case(const Kernels& kernels, Random& random, TileFormat format, int rows, int cols, int row_count)
      : w(random_matrix(random, format, rows, cols)), n(row_count), x(random.normals(static_cast<size_t>(row_count) * cols)) {
    recompute(kernels);
  }
  void recompute(const Kernels& kernels) {
    alone.clear();
    for (int r = 0; r < n; ++r) {
      const std::vector<float> row(x.begin() + static_cast<ptrdiff_t>(r) * w.cols(), x.begin() + static_cast<ptrdiff_t>(r + 1) * w.cols());
      const std::vector<float> y = product(kernels, w, row, 1);
      alone.insert(alone.end(), y.begin(), y.end());
    }
  }
};

/// Computes rows first..first+n-1 together over the tile ranges between `cuts`, with padded strides, and compares bytes. Nothing
/// outside the rows, the matrix and the range may be written.
void expect_rows_as_alone(const Kernels& kernels, const Case& c, int first, int n, int x_pad, int y_pad, const std::vector<int>& cuts) {
  const int rows = c.w.rows(), cols = c.w.cols();
  const size_t x_stride = static_cast<size_t>(cols) + x_pad, y_stride = static_cast<size_t>(rows) + y_pad;
  constexpr float kUntouched = 12345.0f;
  std::vector<float> y(static_cast<size_t>(n) * y_stride, kUntouched);
  std::vector<float> x(static_cast<size_t>(n) * x_stride, std::numeric_limits<float>::quiet_NaN());
  for (int r = 0; r < n; ++r) std::copy_n(c.x.data() + static_cast<size_t>(first + r) * cols, cols, x.data() + r * x_stride);
  QuantizedBuffer q(n, is_quantized(c.w.format()) ? cols : kBlock);
  if (is_quantized(c.w.format())) kernels.quantize_rows(x.data(), x_stride, 0, n, cols, q.rows());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (is_quantized(c.w.format())) {
      kernels.matmul_quantized(c.w, q.rows(), n, cuts[i], cuts[i + 1], y.data(), y_stride);
    } else {
      kernels.matmul_float(c.w, x.data(), x_stride, n, cuts[i], cuts[i + 1], y.data(), y_stride);
    }
  }
  const int begin = cuts.front() * kTileRows, end = std::min(rows, cuts.back() * kTileRows);
  for (int r = 0; r < n; ++r) {
    const float* row = y.data() + r * y_stride;
    ASSERT_TRUE(same_bytes(row + begin, c.alone.data() + static_cast<size_t>(first + r) * rows + begin, end - begin))
        << kernels.name << " format " << static_cast<int>(c.w.format()) << " n " << n << " row " << r << " tiles " << cuts.front() << ".."
        << cuts.back();
    for (size_t i = 0; i < y_stride; ++i) {
      if (i < static_cast<size_t>(begin) || i >= static_cast<size_t>(end)) {
        ASSERT_EQ(row[i], kUntouched) << kernels.name << " wrote outside its range, column " << i;
      }
    }
  }
}

TEST(Invariance, EveryRowCountGivesTheBytesOfTheRowAlone) {
  for (Isa isa : available_isas()) {
    const Kernels& kernels = table(isa);
    Random random(21);
    for (TileFormat format : kFormats) {
      // 7 tiles, the last one partial; an odd number of columns where the format allows one.
      const Case c(kernels, random, format, 103, is_quantized(format) ? 160 : 77, 133);
      std::vector<int> counts;
      for (int n = 1; n <= 20; ++n) counts.push_back(n);
      counts.insert(counts.end(), {31, 32, 64, 130});
      for (int n : counts) {
        for (int first : {0, 1, 3}) expect_rows_as_alone(kernels, c, first, n, first, 2 * first, {0, 7});
      }
    }
  }
}

TEST(Invariance, TileRangesGiveTheSameBytes) {
  for (Isa isa : available_isas()) {
    const Kernels& kernels = table(isa);
    Random random(22);
    for (TileFormat format : kFormats) {
      const Case c(kernels, random, format, 103, 96, 20);
      for (int n : {1, 2, 3, 4, 8, 9, 17}) {
        for (int begin = 0; begin < 7; ++begin) {
          for (int end = begin + 1; end <= 7; ++end) expect_rows_as_alone(kernels, c, 2, n, 3, 5, {begin, end});
        }
        expect_rows_as_alone(kernels, c, 0, n, 0, 0, {0, 1, 2, 3, 4, 5, 6, 7});
        expect_rows_as_alone(kernels, c, 0, n, 0, 0, {0, 3, 4, 7});
      }
    }
  }
}

TEST(Invariance, ABrokenRowDisturbsNoNeighbour) {
  constexpr float kBroken[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity()};
  for (Isa isa : available_isas()) {
    const Kernels& kernels = table(isa);
    Random random(23);
    for (TileFormat format : kFormats) {
      Case c(kernels, random, format, 40, 96, 20);
      for (int n : {2, 3, 8, 20}) {
        for (float broken : kBroken) {
          const int bad = n / 2;
          std::vector<float> x(c.x.begin(), c.x.begin() + static_cast<ptrdiff_t>(n) * 96);
          x[static_cast<size_t>(bad) * 96 + 40] = broken;
          const std::vector<float> y = product(kernels, c.w, x, n);
          for (int r = 0; r < n; ++r) {
            const float* row = y.data() + static_cast<size_t>(r) * 40;
            if (r != bad) {
              ASSERT_TRUE(same_bytes(row, c.alone.data() + static_cast<size_t>(r) * 40, 40)) << kernels.name;
            } else {
              for (int i = 0; i < 40; ++i) ASSERT_FALSE(std::isfinite(row[i])) << kernels.name << " format " << static_cast<int>(format);
            }
          }
        }
      }
    }
  }
}

TEST(Invariance, QuantizedRowsAreThoseOfTheRowAlone) {
  for (Isa isa : available_isas()) {
    Random random(24);
    const int n = 21, k = 192;
    std::vector<float> x = random.normals(static_cast<size_t>(n) * k);
    x[2 * k + 5] = std::numeric_limits<float>::quiet_NaN();
    x[5 * k + 64] = std::numeric_limits<float>::infinity();
    QuantizedBuffer together(n, k), one_by_one(n, k);
    table(isa).quantize_rows(x.data(), k, 0, n, k, together.rows());
    for (int r = n - 1; r >= 0; --r) table(isa).quantize_rows(x.data() + static_cast<size_t>(r) * k, k, r, 1, k, one_by_one.rows());
    for (int r = 0; r < n; ++r) {
      QuantizedBuffer alone(1, k);
      table(isa).quantize_rows(x.data() + static_cast<size_t>(r) * k, k, 0, 1, k, alone.rows());
      EXPECT_EQ(together.bytes(r), alone.bytes(0)) << table(isa).name << " row " << r;
      EXPECT_EQ(one_by_one.bytes(r), alone.bytes(0)) << table(isa).name << " row " << r;
    }
    EXPECT_TRUE(std::isnan(together.scale(2, 0)) && std::isnan(together.offset(5, 2)));
    EXPECT_FALSE(std::isnan(together.scale(2, 1)));
  }
}

RC_GTEST_PROP(Invariance, HoldsForRandomShapes, (uint32_t seed)) {
  Random random(seed);
  const TileFormat format = kFormats[random.integer(0, 3)];
  const std::vector<Isa> isas = available_isas();
  const Kernels& kernels = table(isas[random.integer(0, static_cast<int>(isas.size()) - 1)]);
  const int rows = random.integer(1, 90), cols = is_quantized(format) ? kBlock * random.integer(1, 9) : random.integer(1, 150);
  const int n = random.integer(1, 40), first = random.integer(0, 5);
  const Case c(kernels, random, format, rows, cols, first + n);
  std::vector<int> cuts = {random.integer(0, c.w.tiles() - 1)};
  while (cuts.back() < c.w.tiles()) cuts.push_back(random.integer(cuts.back() + 1, c.w.tiles()));
  expect_rows_as_alone(kernels, c, first, n, random.integer(0, 9), random.integer(0, 9), cuts);
  RC_ASSERT(!::testing::Test::HasFatalFailure());
}

}  // namespace
}  // namespace aerie::kernels
