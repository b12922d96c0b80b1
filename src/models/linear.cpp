#include "models/linear.h"

#include <algorithm>

namespace aerie {

using kernels::PackedMatrix;
using kernels::TileFormat;

Activations::Activations(int max_rows, int width)
    : width_(width),
      stride_(static_cast<size_t>(width)),
      values_(static_cast<size_t>(max_rows) * stride_),
      quantized_(kernels::quantized_blocks(max_rows, width)) {}

bool is_quantized(const PackedMatrix& matrix) { return matrix.format() == TileFormat::kQ4 || matrix.format() == TileFormat::kQ8; }

void run_linear(ThreadPool& pool, const kernels::Kernels& k, std::span<const LinearTask> tasks, const Activations& x, int n) {
  size_t total = 0;
  for (const LinearTask& task : tasks) total += static_cast<size_t>(task.weight->tiles());
  pool.parallel_for(total, 1, [&](size_t begin, size_t end) {
    size_t first = 0;  // index of the task's tile 0 in the common list
    for (const LinearTask& task : tasks) {
      const size_t tiles = static_cast<size_t>(task.weight->tiles());
      const int from = static_cast<int>(std::clamp(begin, first, first + tiles) - first);
      const int to = static_cast<int>(std::clamp(end, first, first + tiles) - first);
      if (from < to) {
        if (is_quantized(*task.weight)) {
          k.matmul_quantized(*task.weight, x.quantized(), n, from, to, task.y, task.y_stride);
        } else {
          k.matmul_float(*task.weight, x.data(), x.stride(), n, from, to, task.y, task.y_stride);
        }
      }
      first += tiles;
    }
  });
}

Expected<PackedMatrix> pack_tensor(ThreadPool& pool, const TensorView& tensor, bool keep_format, RowOrder order, int head_dim) {
  if (tensor.shape.size() != 2) return corrupt("tensor {}: expected a matrix, found shape {}", tensor.name, tensor.shape_string());
  const int rows = static_cast<int>(tensor.rows()), cols = static_cast<int>(tensor.cols());
  TileFormat format = TileFormat::kF32;
  if (keep_format) {
    if (tensor.type == DType::kQ4_0 || tensor.type == DType::kQ4_1) format = TileFormat::kQ4;
    if (tensor.type == DType::kQ8_0) format = TileFormat::kQ8;
    if (tensor.type == DType::kBF16) format = TileFormat::kBf16;
  }
  const int block = block_values(tensor.type);
  if (cols % block != 0) return corrupt("tensor {}: {} columns are not a multiple of its block of {}", tensor.name, cols, block);
  const size_t row_bytes = static_cast<size_t>(cols / block) * static_cast<size_t>(block_bytes(tensor.type));

  PackedMatrix packed(format, rows, cols);
  Status failure;
  // A whole reordering unit (one head) per piece: no two threads then write the same tile unless a head shares one.
  const size_t unit = std::max(kernels::kTileRows, head_dim);
  const auto pack_rows = [&](size_t begin, size_t end) {
    std::vector<float> values(format == TileFormat::kF32 ? static_cast<size_t>(cols) : 0);
    for (size_t r = begin * unit; r < std::min<size_t>(end * unit, static_cast<size_t>(rows)); ++r) {
      const uint8_t* source = tensor.data.data() + r * row_bytes;
      const int to = order == nullptr ? static_cast<int>(r) : order(static_cast<int>(r), head_dim);
      if (format == TileFormat::kF32) {
        if (Status s = dequantize(tensor.type, source, static_cast<uint64_t>(cols), values.data()); !s.ok()) {
          failure = s;
          return;
        }
        kernels::pack_row_f32(packed, to, values.data());
      } else if (tensor.type == DType::kQ4_0) {
        kernels::pack_row_q4_0(packed, to, source);
      } else if (tensor.type == DType::kQ4_1) {
        kernels::pack_row_q4_1(packed, to, source);
      } else if (tensor.type == DType::kQ8_0) {
        kernels::pack_row_q8_0(packed, to, source);
      } else {
        kernels::pack_row_bf16(packed, to, reinterpret_cast<const uint16_t*>(source));
      }
    }
  };
  const size_t units = (static_cast<size_t>(rows) + unit - 1) / unit;
  if (format == TileFormat::kF32) {
    pack_rows(0, units);  // the only path that can fail
  } else {
    pool.parallel_for(units, 1, pack_rows);
  }
  if (!failure.ok()) return failure.with_context("tensor " + tensor.name);
  return packed;
}

}  // namespace aerie
