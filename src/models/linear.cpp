#include "models/linear.h"

#include <algorithm>
#include <array>
#include <mutex>

namespace aerie {

using kernels::PackedMatrix;
using kernels::TileFormat;

Activations::Activations(int max_rows, int width)
    : width_(width),
      stride_(static_cast<size_t>(width)),
      values_(static_cast<size_t>(max_rows) * stride_),
      quantized_(kernels::quantized_blocks(max_rows, width)) {}

bool is_quantized(const PackedMatrix& matrix) { return matrix.format() == TileFormat::kQ4 || matrix.format() == TileFormat::kQ8; }

void multiply(const kernels::Kernels& k, const LinearTask& task, const LinearInput& x, int n, int tile_begin, int tile_end) {
  if (is_quantized(*task.weight)) {
    k.matmul_quantized(*task.weight, x.quantized, n, tile_begin, tile_end, task.y, task.y_stride);
  } else {
    k.matmul_float(*task.weight, x.x, x.stride, n, tile_begin, tile_end, task.y, task.y_stride);
  }
}

void run_linear(ThreadPool& pool, const kernels::Kernels& k, std::span<const LinearTask> tasks, const LinearInput& x, int n, size_t grain) {
  size_t total = 0;
  for (const LinearTask& task : tasks) total += static_cast<size_t>(task.weight->tiles());
  pool.parallel_for(total, grain, [&](size_t begin, size_t end) {
    size_t first = 0;  // index of the task's tile 0 in the common list
    for (const LinearTask& task : tasks) {
      const size_t tiles = static_cast<size_t>(task.weight->tiles());
      const int from = static_cast<int>(std::clamp(begin, first, first + tiles) - first);
      const int to = static_cast<int>(std::clamp(end, first, first + tiles) - first);
      if (from < to) multiply(k, task, x, n, from, to);
      first += tiles;
    }
  });
}

void run_argmax(ThreadPool& pool, const kernels::Kernels& k, const PackedMatrix& w, const LinearInput& x, int n, int32_t* best) {
  // So much of the product stands at a time: it stays in the L1 cache, and the weights in L2 while all rows meet them.
  constexpr int kRows = kernels::kTileRows, kTiles = 8, kWidth = kTiles * kernels::kTileRows;
  std::array<float, 64> few;
  std::vector<float> many(n > static_cast<int>(few.size()) ? static_cast<size_t>(n) : 0);  // no allocation for what an engine decodes
  float* const top = many.empty() ? few.data() : many.data();
  std::fill_n(best, n, -1);
  std::mutex mutex;  // of top and best
  pool.parallel_for(static_cast<size_t>((w.tiles() + kTiles - 1) / kTiles), 1, [&](size_t begin, size_t end) {
    std::array<float, kRows * kWidth> values;
    for (int tile = static_cast<int>(begin) * kTiles; tile < std::min(static_cast<int>(end) * kTiles, w.tiles()); tile += kTiles) {
      const int first = tile * kernels::kTileRows, width = std::min(kWidth, w.rows() - first);
      for (int row = 0; row < n; row += kRows) {
        const int rows = std::min(kRows, n - row);
        // The kernel writes output 16 t of tile t, and these are to lie at the front.
        multiply(k, {&w, values.data() - first, kWidth}, x.from(row, w.cols()), rows, tile, std::min(tile + kTiles, w.tiles()));
        std::array<int, kRows> found;
        for (int r = 0; r < rows; ++r) found[static_cast<size_t>(r)] = k.argmax(values.data() + r * kWidth, width);
        const std::lock_guard lock(mutex);
        for (int r = 0; r < rows; ++r) {
          const int at = found[static_cast<size_t>(r)];
          if (at < 0) continue;
          const float value = values[static_cast<size_t>(r * kWidth + at)];
          const bool better = best[row + r] < 0 || value > top[row + r] || (value == top[row + r] && first + at < best[row + r]);
          if (!better) continue;
          best[row + r] = first + at;
          top[row + r] = value;
        }
      }
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
