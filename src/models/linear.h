// Matrix products over a thread pool, and packing of a file's tensors into them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "formats/tensor.h"
#include "kernels/kernels.h"

namespace aerie {

/// What a product reads: rows `stride` apart, and the same rows rounded where a matrix is quantised.
struct LinearInput {
  const float* x;
  size_t stride;
  const kernels::QuantizedBlock* quantized;
  /// The rows from `row` on, a multiple of 16; k values each.
  LinearInput from(int row, int k) const {
    return {x + static_cast<size_t>(row) * stride, stride, quantized == nullptr ? nullptr : quantized + kernels::quantized_blocks(row, k)};
  }
};

/// Memory for n activation rows of width k, both as float32 and, where a quantised matrix wants them, in 12 bits.
class Activations {
 public:
  Activations(int max_rows, int width);
  float* row(int r) { return values_.data() + static_cast<size_t>(r) * stride_; }
  const float* data() const { return values_.data(); }
  float* data() { return values_.data(); }
  size_t stride() const { return stride_; }
  int width() const { return width_; }
  LinearInput input() const { return {values_.data(), stride_, quantized_.data()}; }
  /// Rounds row r (see kernels::QuantizedBlock).
  void quantize_row(const kernels::Kernels& k, int r) { k.quantize_rows(row(r), stride_, r, 1, width_, quantized_.data()); }

 private:
  int width_;
  size_t stride_;
  std::vector<float> values_;
  std::vector<kernels::QuantizedBlock> quantized_;
};

/// y = W x; `y` rows are y_stride apart.
struct LinearTask {
  const kernels::PackedMatrix* weight;
  float* y;
  size_t y_stride;
};

bool is_quantized(const kernels::PackedMatrix& matrix);

/// Output tiles [tile_begin, tile_end) of one task, by the calling thread.
void multiply(const kernels::Kernels& k, const LinearTask& task, const LinearInput& x, int n, int tile_begin, int tile_end);

/// All tasks read the same n rows; their output tiles form one list that the pool shares out, `grain` of them at least at a time.
/// Quantised weights read x's quantised rows, which must be up to date.
void run_linear(ThreadPool& pool, const kernels::Kernels& k, std::span<const LinearTask> tasks, const LinearInput& x, int n,
                size_t grain = 1);

/// best[r]: which value of row r of W x is the largest (the first among equals), -1 where none is comparable. The product is not kept.
void run_argmax(ThreadPool& pool, const kernels::Kernels& k, const kernels::PackedMatrix& w, const LinearInput& x, int n, int32_t* best);

/// Output row that row r of the file's tensor becomes.
using RowOrder = int (*)(int row, int head_dim);

/// Whether a tensor of that type changes when it keeps its format as tiles: Q4_K's products of scales become f16 (a relative change of at
/// most 2^-11), Q5_1, Q5_K and Q6_K are rounded to 8 bits with a scale per 32 columns (kernels::pack_row_rounded).
bool is_rounded(DType type);

/// A tensor [rows, cols] of the file as tiles. With `keep_format`, Q4_0, Q4_1, Q5_0, Q8_0 and BF16 keep their exact values in 4-bit, 8-bit
/// or bf16 tiles, Q4_K, Q5_1, Q5_K and Q6_K nearly (see is_rounded()); everything else becomes float32, exactly. kCorrupt where a weight or
/// a scale is not finite or beyond what tiles hold.
Expected<kernels::PackedMatrix> pack_tensor(ThreadPool& pool, const TensorView& tensor, bool keep_format, RowOrder order = nullptr,
                                            int head_dim = 0);

}  // namespace aerie
