#include "formats/tensor.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/safetensors.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

// The golden's values come from numpy in float32 by the same formulas, so they must agree to the bit (the sign of zero included).
class DequantGolden : public testing::TestWithParam<DType> {};

TEST_P(DequantGolden, AgreesToTheBit) {
  const auto golden = SafetensorsFile::open(data_path("dequant.safetensors"));
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  const std::string name = dtype_name(GetParam());
  const auto blocks = golden->find(name + ".blocks"), values = golden->find(name + ".values");
  ASSERT_TRUE(blocks.ok() && values.ok());
  ASSERT_EQ((*blocks)->cols(), static_cast<uint64_t>(block_bytes(GetParam())));
  ASSERT_EQ((*values)->cols(), static_cast<uint64_t>(block_values(GetParam())));
  const auto expected = to_float(**values);
  ASSERT_TRUE(expected.ok());

  TensorView tensor = **blocks;
  tensor.type = GetParam();
  tensor.shape = (*values)->shape;
  const auto got = to_float(tensor);
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_EQ(got->size(), expected->size());
  ASSERT_GE(got->size(), 512u);
  for (size_t i = 0; i < got->size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>((*got)[i]), std::bit_cast<uint32_t>((*expected)[i]))
        << name << " value " << i << ": " << (*got)[i] << " against " << (*expected)[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DequantGolden,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                         DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

TEST(Tensor, RoundsToHalfAsNumpyDoes) {
  const auto golden = SafetensorsFile::open(data_path("dequant.safetensors"));
  ASSERT_TRUE(golden.ok());
  const auto inputs = golden->find("F16.inputs"), rounded = golden->find("F16.rounded");
  ASSERT_TRUE(inputs.ok() && rounded.ok());
  const auto values = to_float(**inputs);
  ASSERT_TRUE(values.ok());
  ASSERT_EQ((*rounded)->data.size(), 2 * values->size());
  for (size_t i = 0; i < values->size(); ++i) {
    uint16_t expected;
    std::memcpy(&expected, (*rounded)->data.data() + 2 * i, sizeof expected);
    ASSERT_EQ(f32_to_f16((*values)[i]), expected) << (*values)[i];
  }
}

TEST(Tensor, EverySixteenBitPatternSurvivesFloat32) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const float half = f16_to_f32(pattern), brain = bf16_to_f32(pattern);
    if ((pattern & 0x7fff) > 0x7c00) {
      ASSERT_TRUE(std::isnan(half) && (f32_to_f16(half) & 0x7fff) > 0x7c00) << bits;
    } else {
      ASSERT_EQ(f32_to_f16(half), pattern);
    }
    if ((pattern & 0x7fff) > 0x7f80) {
      ASSERT_TRUE(std::isnan(brain) && (f32_to_bf16(brain) & 0x7fff) > 0x7f80) << bits;
    } else {
      ASSERT_EQ(f32_to_bf16(brain), pattern);
    }
  }
}

TEST(Tensor, BrainFloatRoundsTiesToEvenAndKeepsNan) {
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // halfway, down to even
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // halfway, up to even
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f807fffu)), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0xff7fffffu)), 0xff80);           // the largest float rounds to infinity
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f800001u)) & 0x7fc0, 0x7fc0);  // a NaN with low payload alone
  EXPECT_EQ(f32_to_bf16(-0.0f), 0x8000);
}

RC_GTEST_PROP(TensorProperty, BrainFloatIsTheNearest, (uint32_t bits)) {
  const float value = std::bit_cast<float>(bits);
  RC_PRE(std::isfinite(value) && std::abs(value) < 3e38f);
  const uint16_t rounded = f32_to_bf16(value);
  const double error = std::abs(static_cast<double>(bf16_to_f32(rounded)) - value);
  for (const int step : {-1, 1}) {
    const double other = std::abs(static_cast<double>(bf16_to_f32(static_cast<uint16_t>(rounded + step))) - value);
    if (std::isfinite(other)) RC_ASSERT(error < other || (error == other && rounded % 2 == 0));
  }
}

TEST(Tensor, ShapeHelpers) {
  TensorView tensor;
  EXPECT_EQ(tensor.element_count(), 1u);
  EXPECT_EQ(tensor.shape_string(), "[]");
  tensor.shape = {5};
  EXPECT_EQ(tensor.rows(), 1u);
  EXPECT_EQ(tensor.cols(), 5u);
  tensor.shape = {4, 3, 2};
  EXPECT_EQ(tensor.rows(), 12u);
  EXPECT_EQ(tensor.cols(), 2u);
  EXPECT_EQ(tensor.element_count(), 24u);
  EXPECT_EQ(tensor.shape_string(), "[4, 3, 2]");
}

TEST(Tensor, RefusesWhatIsNotWeights) {
  float out[32];
  const uint8_t source[64] = {};
  const Status integers = dequantize(DType::kI32, source, 4, out);
  EXPECT_EQ(integers.code(), StatusCode::kUnsupported);
  EXPECT_NE(integers.message().find("I32"), std::string::npos);
  EXPECT_EQ(dequantize(DType::kQ8_0, source, 31, out).code(), StatusCode::kInvalidArgument);

  TensorView tensor{"w", DType::kF32, {2, 3}, {source, 20}};
  const auto short_data = to_float(tensor);
  ASSERT_FALSE(short_data.ok());
  EXPECT_EQ(short_data.status().message(), "tensor w: F32 of shape [2, 3] does not fill 20 bytes");
}

}  // namespace
}  // namespace aerie
