// Element types and tensor views that the readers hand out. A view points into the mapped file that its reader owns.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace aerie {

/// Storage types; the block-quantised ones are GGML's (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The 8-bit floats are
/// known by their size alone, so that a target's shards can be opened that hold them beside what is read.
enum class DType {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI8,
  kU8,
  kI16,
  kI32,
  kI64,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K
};

const char* dtype_name(DType type);
/// Values in one block (1 for plain types) and bytes of one block.
int block_values(DType type);
int block_bytes(DType type);

/// A tensor inside a mapped file. `shape` is outermost first, as in PyTorch: a matrix is {rows, cols} and each row is
/// contiguous. (GGUF stores innermost first; the reader turns it round.)
struct TensorView {
  std::string name;
  DType type = DType::kF32;
  std::vector<uint64_t> shape;
  std::span<const uint8_t> data;

  uint64_t element_count() const;
  uint64_t rows() const;             // product of all but the last dimension
  uint64_t cols() const;             // the last dimension
  uint64_t row_bytes() const;        // of cols() values, which are whole blocks
  std::string shape_string() const;  // "[576, 1536]"
};

/// SHA-256 over names and bytes of tensors, whatever their order.
std::string tensors_id(std::vector<TensorView> tensors);

/// `count` values from `source` (whole blocks of `type`) as float32. Exact for F32/F16/BF16; block types follow GGML's
/// formulas in float32. `source` must hold block_bytes(type) * count / block_values(type) bytes. Integer types are refused.
Status dequantize(DType type, const uint8_t* source, uint64_t count, float* out);

/// A block of Q4_K taken apart: value 32 s + j is scale[s] * quant[32 s + j] - minimum[s].
struct Q4KBlock {
  float scale[8], minimum[8];
  uint8_t quant[256];  // 0..15
};
void unpack_q4_k(const uint8_t* block, Q4KBlock& out);

/// A block of Q5_0 taken apart: value j is scale * quant[j].
struct Q50Block {
  float scale;
  int8_t quant[32];  // -16..15
};
void unpack_q5_0(const uint8_t* block, Q50Block& out);

/// Row `row` of the tensor as float32; its data must hold it.
Status read_row(const TensorView& tensor, uint64_t row, std::vector<float>& out);
/// The whole tensor as float32.
Expected<std::vector<float>> to_float(const TensorView& tensor);
/// The whole tensor of type I64 or I32.
Expected<std::vector<int64_t>> to_integers(const TensorView& tensor);

// Scalar conversions. bf16 rounds to nearest even; NaN stays NaN.
float f16_to_f32(uint16_t half);
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t value);
uint16_t f32_to_bf16(float value);

}  // namespace aerie
