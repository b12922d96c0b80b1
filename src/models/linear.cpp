#include "models/linear.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>

#include "base/half.h"

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

namespace {

TileFormat tile_format_of(DType type) {
  switch (type) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K: return TileFormat::kQ4;
    case DType::kQ8_0:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
    case DType::kQ6_K: return TileFormat::kQ8;
    case DType::kBF16: return TileFormat::kBf16;
    default: return TileFormat::kF32;
  }
}

/// Row `to` of the matrix from a row of the file; `values` is room for a row. False if it does not fit.
bool pack_row(PackedMatrix& packed, int to, DType type, const uint8_t* source, std::vector<float>& values) {
  const int blocks = packed.cols() / block_values(type);
  if (packed.format() == TileFormat::kQ4 && type == DType::kQ4_K) {
    Q4KBlock block;
    for (int b = 0; b < blocks; ++b, source += block_bytes(type)) {
      unpack_q4_k(source, block);
      for (int s = 0; s < 8; ++s) {
        if (!(std::fabs(block.scale[s]) <= kMaxHalf && std::fabs(block.minimum[s]) <= kMaxHalf)) return false;
        kernels::pack_block_q4(packed, to, 8 * b + s, block.scale[s], -block.minimum[s], block.quant + 32 * s);
      }
    }
  } else if (packed.format() == TileFormat::kQ4) {
    type == DType::kQ4_0 ? kernels::pack_row_q4_0(packed, to, source) : kernels::pack_row_q4_1(packed, to, source);
  } else if (packed.format() == TileFormat::kQ8 && type == DType::kQ8_0) {
    kernels::pack_row_q8_0(packed, to, source);
  } else if (packed.format() == TileFormat::kQ8 && type == DType::kQ5_0) {
    Q50Block block;
    for (int b = 0; b < blocks; ++b, source += block_bytes(type)) {
      unpack_q5_0(source, block);
      kernels::pack_block_q8(packed, to, b, block.scale, block.quant);
    }
  } else if (packed.format() == TileFormat::kBf16) {
    kernels::pack_row_bf16(packed, to, reinterpret_cast<const uint16_t*>(source));
  } else {
    if (!dequantize(type, source, static_cast<uint64_t>(packed.cols()), values.data()).ok()) return false;
    if (packed.format() == TileFormat::kQ8) return kernels::pack_row_rounded(packed, to, values.data());
    kernels::pack_row_f32(packed, to, values.data());
  }
  return true;
}

}  // namespace

bool is_rounded(DType type) { return type == DType::kQ4_K || type == DType::kQ5_1 || type == DType::kQ5_K || type == DType::kQ6_K; }

Expected<PackedMatrix> pack_tensor(ThreadPool& pool, const TensorView& tensor, bool keep_format, RowOrder order, int head_dim) {
  if (tensor.shape.size() != 2) return corrupt("tensor {}: expected a matrix, found shape {}", tensor.name, tensor.shape_string());
  const int rows = static_cast<int>(tensor.rows()), cols = static_cast<int>(tensor.cols());
  float none;
  if (Status readable = dequantize(tensor.type, tensor.data.data(), 0, &none); !readable.ok())
    return readable.with_context("tensor " + tensor.name);
  const TileFormat format = keep_format ? tile_format_of(tensor.type) : TileFormat::kF32;
  const int block = block_values(tensor.type);
  if (cols % block != 0) return corrupt("tensor {}: {} columns are not a multiple of its block of {}", tensor.name, cols, block);
  const size_t row_bytes = tensor.row_bytes();

  PackedMatrix packed(format, rows, cols);
  if (packed.empty()) return resource_error("no memory for tensor {} {}", tensor.name, tensor.shape_string());
  std::atomic<int> unfit{-1};  // a row that the format cannot hold
  // A whole reordering unit (one head) per piece: no two threads then write the same tile unless a head shares one.
  const size_t unit = std::max(kernels::kTileRows, head_dim);
  pool.parallel_for((static_cast<size_t>(rows) + unit - 1) / unit, 1, [&](size_t begin, size_t end) {
    std::vector<float> values(static_cast<size_t>(cols));
    for (size_t r = begin * unit; r < std::min<size_t>(end * unit, static_cast<size_t>(rows)); ++r) {
      const int to = order == nullptr ? static_cast<int>(r) : order(static_cast<int>(r), head_dim);
      if (!pack_row(packed, to, tensor.type, tensor.data.data() + r * row_bytes, values)) unfit = static_cast<int>(r);
    }
  });
  if (unfit >= 0)
    return corrupt("tensor {}: row {} holds a weight or a scale beyond what {} tiles can hold", tensor.name, unfit.load(),
                   dtype_name(tensor.type));
  return packed;
}

}  // namespace aerie
