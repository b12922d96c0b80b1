#include "formats/tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/file_io.h"
#include "base/half.h"

namespace aerie {
namespace {

struct TypeInfo {
  const char* name;
  int values;
  int bytes;
};

// Indexed by DType. Block layouts: ggml-common.h's struct sizes (a K-quant block holds 256 values).
constexpr TypeInfo kTypes[] = {
    {"F32", 1, 4},    {"F16", 1, 2},    {"BF16", 1, 2},   {"F64", 1, 8},     {"I8", 1, 1},       {"U8", 1, 1},       {"I16", 1, 2},
    {"I32", 1, 4},    {"I64", 1, 8},    {"BOOL", 1, 1},   {"F8_E4M3", 1, 1}, {"F8_E5M2", 1, 1},  {"F8_E8M0", 1, 1},  {"Q4_0", 32, 18},
    {"Q4_1", 32, 20}, {"Q5_0", 32, 22}, {"Q5_1", 32, 24}, {"Q8_0", 32, 34},  {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210},
};
static_assert(std::size(kTypes) == static_cast<size_t>(DType::kQ6_K) + 1);

const TypeInfo& info(DType type) { return kTypes[static_cast<size_t>(type)]; }

uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

uint32_t load_u32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float load_f16(const uint8_t* p) { return f16_to_f32(load_u16(p)); }

// In the 32-value types the low nibbles of 16 bytes are values 0-15 and the high nibbles values 16-31.
void block_q4_0(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>((b[2 + j] & 15) - 8) * d;
    out[j + 16] = static_cast<float>((b[2 + j] >> 4) - 8) * d;
  }
}

void block_q4_1(const uint8_t* b, float* out) {
  const float d = load_f16(b), m = load_f16(b + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(b[4 + j] & 15) * d + m;
    out[j + 16] = static_cast<float>(b[4 + j] >> 4) * d + m;
  }
}

// The fifth bits of all 32 values are one little-endian word, bit i for value i.
int fifth_bit(uint32_t word, int i) { return static_cast<int>((word >> i) & 1) << 4; }

void block_q5_0(const uint8_t* b, float* out) {
  Q50Block block;
  unpack_q5_0(b, block);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(block.quant[j]) * block.scale;
}

void block_q5_1(const uint8_t* b, float* out) {
  const float d = load_f16(b), m = load_f16(b + 2);
  const uint32_t high = load_u32(b + 4);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>((b[8 + j] & 15) | fifth_bit(high, j)) * d + m;
    out[j + 16] = static_cast<float>((b[8 + j] >> 4) | fifth_bit(high, j + 16)) * d + m;
  }
}

void block_q8_0(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<int8_t>(b[2 + j])) * d;
}

struct ScaleMin {
  int scale;
  int min;
};

// Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minima into 12 bytes: of sub-blocks 0-3 as the low six bits of
// bytes 0-3 and 4-7; of sub-blocks 4-7 as the nibbles of bytes 8-11 below the spare top two bits of bytes 0-7.
ScaleMin scale_min_k4(const uint8_t* packed, int sub) {
  if (sub < 4) return {packed[sub] & 63, packed[sub + 4] & 63};
  return {(packed[sub + 4] & 15) | ((packed[sub - 4] >> 6) << 4), (packed[sub + 4] >> 4) | ((packed[sub] >> 6) << 4)};
}

void block_q4_k(const uint8_t* b, float* out) {
  Q4KBlock block;
  unpack_q4_k(b, block);
  for (int j = 0; j < 256; ++j) out[j] = block.scale[j / 32] * static_cast<float>(block.quant[j]) - block.minimum[j / 32];
}

void block_q5_k(const uint8_t* b, float* out) {
  const float d = load_f16(b), dmin = load_f16(b + 2);
  const uint8_t* high = b + 16;  // bit `sub` of byte j is the fifth bit of value j of that sub-block
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin packed = scale_min_k4(b + 4, sub);
    const float scale = d * static_cast<float>(packed.scale), min = dmin * static_cast<float>(packed.min);
    const uint8_t* quants = b + 48 + 32 * (sub / 2);
    for (int j = 0; j < 32; ++j) {
      const int low = (sub % 2 == 0) ? quants[j] & 15 : quants[j] >> 4;
      const int q = low | (((high[j] >> sub) & 1) << 4);
      out[32 * sub + j] = scale * static_cast<float>(q) - min;
    }
  }
}

// 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, then d. Each half of 128 values is four runs of 32:
// runs 0 and 1 are the low nibbles of 64 bytes, runs 2 and 3 their high nibbles; run r takes bit pair r of 32 bytes.
void block_q6_k(const uint8_t* b, float* out) {
  const float d = load_f16(b + 208);
  for (int half = 0; half < 2; ++half) {
    for (int run = 0; run < 4; ++run) {
      for (int j = 0; j < 32; ++j) {
        const uint8_t low_byte = b[64 * half + 32 * (run % 2) + j];
        const int low = run < 2 ? low_byte & 15 : low_byte >> 4;
        const int high = (b[128 + 32 * half + j] >> (2 * run)) & 3;
        const int at = 128 * half + 32 * run + j;
        const float scale = d * static_cast<float>(static_cast<int8_t>(b[192 + at / 16]));
        out[at] = scale * static_cast<float>((low | (high << 4)) - 32);
      }
    }
  }
}

void dequantize_blocks(void (*block)(const uint8_t*, float*), DType type, const uint8_t* source, uint64_t count, float* out) {
  const uint64_t values = static_cast<uint64_t>(block_values(type)), bytes = static_cast<uint64_t>(block_bytes(type));
  for (uint64_t i = 0; i < count / values; ++i) block(source + i * bytes, out + i * values);
}

}  // namespace

const char* dtype_name(DType type) { return info(type).name; }
int block_values(DType type) { return info(type).values; }
int block_bytes(DType type) { return info(type).bytes; }

uint64_t TensorView::element_count() const { return rows() * cols(); }

uint64_t TensorView::rows() const {
  uint64_t product = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
  return product;
}

uint64_t TensorView::cols() const { return shape.empty() ? 1 : shape.back(); }

uint64_t TensorView::row_bytes() const {
  return cols() / static_cast<uint64_t>(block_values(type)) * static_cast<uint64_t>(block_bytes(type));
}

std::string TensorView::shape_string() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string tensors_id(std::vector<TensorView> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  std::string all;
  for (const TensorView& tensor : tensors) all += tensor.name + " " + sha256_hex(tensor.data) + "\n";
  return sha256_hex({reinterpret_cast<const uint8_t*>(all.data()), all.size()});
}

Status dequantize(DType type, const uint8_t* source, uint64_t count, float* out) {
  if (count % static_cast<uint64_t>(block_values(type)) != 0) {
    return invalid_argument("{} values are not whole blocks of {} ({} values each)", count, dtype_name(type), block_values(type));
  }
  switch (type) {
    case DType::kF32: std::memcpy(out, source, count * 4); break;
    case DType::kF16:
      for (uint64_t i = 0; i < count; ++i) out[i] = load_f16(source + 2 * i);
      break;
    case DType::kBF16:
      for (uint64_t i = 0; i < count; ++i) out[i] = bf16_to_f32(load_u16(source + 2 * i));
      break;
    case DType::kQ4_0: dequantize_blocks(block_q4_0, type, source, count, out); break;
    case DType::kQ4_1: dequantize_blocks(block_q4_1, type, source, count, out); break;
    case DType::kQ5_0: dequantize_blocks(block_q5_0, type, source, count, out); break;
    case DType::kQ5_1: dequantize_blocks(block_q5_1, type, source, count, out); break;
    case DType::kQ8_0: dequantize_blocks(block_q8_0, type, source, count, out); break;
    case DType::kQ4_K: dequantize_blocks(block_q4_k, type, source, count, out); break;
    case DType::kQ5_K: dequantize_blocks(block_q5_k, type, source, count, out); break;
    case DType::kQ6_K: dequantize_blocks(block_q6_k, type, source, count, out); break;
    default: return unsupported("{} values cannot be read as weights; expected a floating-point or block-quantised type", dtype_name(type));
  }
  return Status();
}

void unpack_q4_k(const uint8_t* b, Q4KBlock& out) {
  const float d = load_f16(b), dmin = load_f16(b + 2);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin packed = scale_min_k4(b + 4, sub);
    out.scale[sub] = d * static_cast<float>(packed.scale);
    out.minimum[sub] = dmin * static_cast<float>(packed.min);
    const uint8_t* quants = b + 16 + 32 * (sub / 2);
    for (int j = 0; j < 32; ++j) out.quant[32 * sub + j] = static_cast<uint8_t>((sub % 2 == 0) ? quants[j] & 15 : quants[j] >> 4);
  }
}

void unpack_q5_0(const uint8_t* b, Q50Block& out) {
  out.scale = load_f16(b);
  const uint32_t high = load_u32(b + 2);
  for (int j = 0; j < 16; ++j) {
    out.quant[j] = static_cast<int8_t>(((b[6 + j] & 15) | fifth_bit(high, j)) - 16);
    out.quant[j + 16] = static_cast<int8_t>(((b[6 + j] >> 4) | fifth_bit(high, j + 16)) - 16);
  }
}

Status read_row(const TensorView& tensor, uint64_t row, std::vector<float>& out) {
  out.resize(tensor.cols());
  return dequantize(tensor.type, tensor.data.data() + row * tensor.row_bytes(), tensor.cols(), out.data());
}

Expected<std::vector<float>> to_float(const TensorView& tensor) {
  const uint64_t count = tensor.element_count();
  const auto values = static_cast<uint64_t>(block_values(tensor.type));
  const auto bytes = checked_mul(count / values, static_cast<uint64_t>(block_bytes(tensor.type)));
  if (count % values != 0 || !bytes || *bytes != tensor.data.size()) {
    return corrupt("tensor {}: {} of shape {} does not fill {} bytes", tensor.name, dtype_name(tensor.type), tensor.shape_string(),
                   tensor.data.size());
  }
  std::vector<float> out(count);
  AERIE_TRY(dequantize(tensor.type, tensor.data.data(), count, out.data()).with_context("tensor " + tensor.name));
  return out;
}

Expected<std::vector<int64_t>> to_integers(const TensorView& tensor) {
  const auto read = [&]<class Integer>(Integer) -> Expected<std::vector<int64_t>> {
    const auto bytes = checked_mul(tensor.element_count(), uint64_t{sizeof(Integer)});
    if (!bytes || *bytes != tensor.data.size()) {
      return corrupt("tensor {}: {} of shape {} does not fill {} bytes", tensor.name, dtype_name(tensor.type), tensor.shape_string(),
                     tensor.data.size());
    }
    std::vector<Integer> values(tensor.element_count());
    if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    return std::vector<int64_t>(values.begin(), values.end());
  };
  if (tensor.type == DType::kI64) return read(int64_t{});
  if (tensor.type == DType::kI32) return read(int32_t{});
  return corrupt("tensor {}: expected integers of the type I64 or I32, found {}", tensor.name, dtype_name(tensor.type));
}

float f16_to_f32(uint16_t half) { return half_to_float(half); }

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // A NaN keeps the upper bits of its payload, as numpy does.
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff));
  return float_to_half(value);
}

float bf16_to_f32(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // A NaN whose payload lies in the low half would be cut to infinity: make it quiet first.
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace aerie
