// What goes into a tile comes out exactly; dispatch and its errors.
#include <cmath>

#include "kernel_fixture.h"
#include "rapidcheck/gtest.h"

namespace aerie::kernels {
namespace {

uint16_t half_at(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

TEST(Packing, Q4RowsKeepTheirDequantisedValuesExactly) {
  Random random(31);
  const int rows = 35, cols = 96;
  PackedMatrix w(TileFormat::kQ4, rows, cols);
  std::vector<std::vector<float>> expected(rows, std::vector<float>(cols));
  for (int r = 0; r < rows; ++r) {
    const bool with_minimum = r % 3 != 0;
    const int bytes = with_minimum ? 20 : 18;
    const std::vector<uint8_t> row = random_blocks(random, cols, bytes, with_minimum ? 2 : 1);
    for (int c = 0; c < cols; ++c) {
      const uint8_t* block = row.data() + static_cast<size_t>(c / kBlock) * bytes;
      const uint8_t* quants = block + bytes - 16;
      const int quant = c % kBlock < 16 ? quants[c % kBlock] & 0xf : quants[c % kBlock - 16] >> 4;
      const float d = half_to_float(half_at(block));
      expected[r][c] = with_minimum ? d * static_cast<float>(quant) + half_to_float(half_at(block + 2)) : d * static_cast<float>(quant - 8);
    }
    if (with_minimum) {
      pack_row_q4_1(w, r, row.data());
    } else {
      pack_row_q4_0(w, r, row.data());
    }
  }
  std::vector<float> actual(cols);
  for (int r = 0; r < rows; ++r) {
    unpack_row(w, r, actual.data());
    EXPECT_EQ(actual, expected[r]) << "row " << r;
  }
}

TEST(Packing, RowsMayBePackedInAnyOrderAndAgain) {
  Random random(32);
  const int rows = 20, cols = 64;
  PackedMatrix forward(TileFormat::kQ4, rows, cols), backward(TileFormat::kQ4, rows, cols);
  std::vector<std::vector<uint8_t>> source;
  for (int r = 0; r < rows; ++r) source.push_back(random_blocks(random, cols, 20, 2));
  for (int r = 0; r < rows; ++r) pack_row_q4_1(forward, r, source[r].data());
  for (int r = rows - 1; r >= 0; --r) {
    pack_row_q4_1(backward, r, source[(r + 7) % rows].data());  // overwritten by the next line
    pack_row_q4_1(backward, r, source[r].data());
  }
  EXPECT_EQ(std::memcmp(forward.tile(0), backward.tile(0), forward.bytes()), 0);
}

TEST(Packing, Q8Bf16AndF32RowsAreKeptExactly) {
  Random random(33);
  const int rows = 18, cols = 64;
  PackedMatrix q8(TileFormat::kQ8, rows, cols), bf16(TileFormat::kBf16, rows, cols - 1), f32(TileFormat::kF32, rows, cols - 1);
  std::vector<float> out(cols);
  for (int r = 0; r < rows; ++r) {
    std::vector<uint8_t> row = random_blocks(random, cols, 34, 1);
    row[2] = 0x80;  // -128, which the format allows
    pack_row_q8_0(q8, r, row.data());
    unpack_row(q8, r, out.data());
    for (int c = 0; c < cols; ++c) {
      const uint8_t* block = row.data() + static_cast<size_t>(c / kBlock) * 34;
      ASSERT_EQ(out[c], half_to_float(half_at(block)) * static_cast<float>(static_cast<int8_t>(block[2 + c % kBlock])));
    }
    const std::vector<float> values = random.normals(cols - 1);
    std::vector<uint16_t> rounded(cols - 1);
    for (int c = 0; c < cols - 1; ++c) rounded[c] = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[c]) >> 16);
    pack_row_f32(f32, r, values.data());
    pack_row_bf16(bf16, r, rounded.data());
    unpack_row(f32, r, out.data());
    ASSERT_TRUE(same_bytes(out.data(), values.data(), cols - 1));
    unpack_row(bf16, r, out.data());
    for (int c = 0; c < cols - 1; ++c) ASSERT_EQ(std::bit_cast<uint32_t>(out[c]), static_cast<uint32_t>(rounded[c]) << 16);
  }
}

TEST(Packing, AHugeQ4_0ScaleKeepsAFiniteMinimum) {
  std::vector<uint8_t> row(18, 0);
  const uint16_t d = float_to_half(60000.0f);
  std::memcpy(row.data(), &d, sizeof d);
  PackedMatrix w(TileFormat::kQ4, 1, 32);
  pack_row_q4_0(w, 0, row.data());
  std::vector<float> out(32);
  unpack_row(w, 0, out.data());
  EXPECT_EQ(out[0], -65504.0f);
}

TEST(Packing, MatricesMoveAndHaveWholeCacheLinesPerTile) {
  for (TileFormat format : {TileFormat::kQ4, TileFormat::kQ8, TileFormat::kBf16, TileFormat::kF32}) {
    for (int cols : {32, 64, 96, 1536}) EXPECT_EQ(tile_bytes(format, cols) % 64, 0u);
  }
  EXPECT_EQ(tile_bytes(TileFormat::kQ4, 64), 640u);
  EXPECT_EQ(tile_bytes(TileFormat::kQ8, 32), 576u);  // 512 + 32, padded
  PackedMatrix a(TileFormat::kF32, 17, 3);
  EXPECT_EQ(a.tiles(), 2);
  EXPECT_EQ(a.bytes(), 2u * 192);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.tile(1)) % 64, 0u);
  const uint8_t* memory = a.tile(0);
  PackedMatrix b = std::move(a);
  EXPECT_EQ(b.tile(0), memory);
  PackedMatrix c;
  EXPECT_TRUE(c.empty());
  c = std::move(b);
  EXPECT_EQ(c.tile(0), memory);
  EXPECT_EQ(c.rows(), 17);
}

TEST(Packing, MatricesAreZeroedDisjointAndOutliveTheirNeighbours) {
  // Matrices share regions of memory: writing one must not touch another, and a survivor keeps its bytes.
  std::vector<PackedMatrix> matrices;
  for (int i = 0; i < 60; ++i) {
    matrices.emplace_back(TileFormat::kF32, 16 + i, 5 + 700 * (i % 7));
    const PackedMatrix& w = matrices.back();
    ASSERT_FALSE(w.empty());
    for (size_t b = 0; b < w.bytes(); ++b) ASSERT_EQ(w.tile(0)[b], 0) << "matrix " << i;
    std::memset(matrices.back().tile(0), i + 1, w.bytes());
  }
  for (int i = 0; i < 60; ++i) {
    if (i % 5 != 2) matrices[i] = PackedMatrix();
  }
  for (int i = 2; i < 60; i += 5) {
    const PackedMatrix& w = matrices[i];
    for (size_t b = 0; b < w.bytes(); ++b) ASSERT_EQ(w.tile(0)[b], i + 1);
  }
}

TEST(Packing, AMatrixWithoutMemoryIsEmpty) {
  const PackedMatrix w(TileFormat::kF32, 1 << 30, 1 << 29);  // 2^61 bytes
  EXPECT_TRUE(w.empty());
  EXPECT_EQ(w.rows(), 0);
  EXPECT_EQ(w.bytes(), 0u);
}

TEST(Half, EveryHalfSurvivesTheRoundTripThroughFloat) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = half_to_float(static_cast<uint16_t>(half));
    if (std::isnan(value)) {
      EXPECT_TRUE((half & 0x7c00) == 0x7c00 && (half & 0x3ff) != 0);
    } else {
      EXPECT_EQ(float_to_half(value), half);
    }
  }
}

RC_GTEST_PROP(Half, RoundsToTheNearestHalfAndTiesToEven, (uint16_t pattern)) {
  // Between two neighbouring finite halves: just below, at and just above the middle.
  const uint16_t low = static_cast<uint16_t>(pattern % 0x7bff);
  const float a = half_to_float(low), b = half_to_float(static_cast<uint16_t>(low + 1)), middle = a + (b - a) / 2;
  RC_ASSERT(float_to_half(std::nextafter(middle, 0.0f)) == low);
  RC_ASSERT(float_to_half(std::nextafter(middle, 1e9f)) == low + 1);
  RC_ASSERT(float_to_half(middle) == (low % 2 == 0 ? low : low + 1));
  RC_ASSERT(float_to_half(-middle) == (0x8000 | (low % 2 == 0 ? low : low + 1)));
}

TEST(Dispatch, NamesAndErrors) {
  EXPECT_EQ(parse_isa("avx2").value(), Isa::kAvx2);
  EXPECT_EQ(parse_isa("scalar").value(), Isa::kScalar);
  const auto wrong = parse_isa("AVX-512");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("avx512"), std::string::npos);
  const std::vector<Isa> isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kScalar);
  for (Isa isa : isas) {
    ASSERT_TRUE(kernels_for(isa).ok());
    EXPECT_EQ((*kernels_for(isa))->isa, isa);
    EXPECT_EQ(parse_isa((*kernels_for(isa))->name).value(), isa);
  }
  EXPECT_EQ(best_kernels().isa, isas.back());
}

}  // namespace
}  // namespace aerie::kernels
