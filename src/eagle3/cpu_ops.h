// The drafter's operations over our CPU kernels: what serving and replay instantiate the one forward (draft_step.h) with.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "base/thread_pool.h"
#include "eagle3/draft_weights.h"
#include "kernels/kernels.h"
#include "models/attention.h"
#include "models/linear.h"
#include "models/rope.h"

namespace aerie {

/// Memory for one step's intermediate results: handed out in order and taken back all at once. After the first steps of a size
/// nothing is allocated any more.
class Arena {
 public:
  /// `count` floats, 64-byte aligned, uninitialised; valid until reset().
  float* floats(size_t count);
  void reset();

 private:
  struct Free {
    void operator()(float* memory) const;
  };
  struct Piece {
    std::unique_ptr<float, Free> memory;
    size_t size = 0;
  };
  static Piece new_piece(size_t count);
  std::vector<Piece> pieces_;
  size_t used_ = 0;   // of the last piece
  size_t total_ = 0;  // handed out since reset
};

/// Rows of float32 that somebody else owns (the arena, or the caller of a step).
struct CpuTensor {
  float* data = nullptr;
  int rows = 0, cols = 0;
  size_t stride = 0;  // floats from row to row
  float* row(int r) const { return data + static_cast<size_t>(r) * stride; }
};

/// See draft_step.h for what each operation does. Holds the scratch memory of one caller: not thread-safe, one per thread that
/// drafts; the work inside an operation is spread over the pool. Results live until reset(), which every step begins with.
/// A row's bytes depend on nothing but the row (kernels.h).
class CpuOps {
 public:
  using Tensor = CpuTensor;
  using Matrix = kernels::PackedMatrix;  // kQ8, kBf16 or kF32
  using Vector = std::vector<float>;
  using Positions = std::span<const int>;

  CpuOps(const kernels::Kernels& kernels, ThreadPool& pool) : kernels_(&kernels), pool_(&pool) {}

  const kernels::Kernels& kernels() const { return *kernels_; }
  ThreadPool& pool() { return *pool_; }
  void reset() { arena_.reset(); }
  /// `count` zeroed values in the arena.
  template <class T>
  std::span<T> scratch(size_t count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 64);
    T* memory = reinterpret_cast<T*>(arena_.floats((count * sizeof(T) + sizeof(float) - 1) / sizeof(float)));
    std::uninitialized_value_construct_n(memory, count);
    return {memory, count};
  }
  Tensor tensor(int rows, int cols);
  /// The attention of these dimensions, with the scratch memory of earlier calls.
  AttentionPlan& attention(int heads, int kv_heads, int head_dim, kernels::KvType type);

  Tensor rms_norm(Tensor x, const Vector& weight, float eps);
  Tensor rms_norm_slices(Tensor x, std::span<const Vector> weights, float eps);
  /// In place: returns x.
  Tensor rms_norm_heads(Tensor x, const Vector& weight, float eps);
  Tensor concat(Tensor a, Tensor b);
  Tensor linear(Tensor x, const Matrix& w);
  /// best[r]: the output of the largest value of row r of W x, as of run_argmax().
  void argmax(Tensor x, const Matrix& w, int32_t* best);
  Tensor linear(Tensor x, const Linear<CpuOps>& w) { return add_bias(linear(x, w.weight), w.bias); }
  struct Qkv {
    Tensor q, k, v;
  };
  Qkv qkv(Tensor x, const Linear<CpuOps>& q, const Linear<CpuOps>& k, const Linear<CpuOps>& v);
  Tensor gated_mlp_in(Tensor x, const Linear<CpuOps>& gate, const Linear<CpuOps>& up);
  /// In place: returns x.
  Tensor rope(Tensor x, int heads, int offset, const Rope& rope, Positions positions);
  struct Halves {
    Tensor first, second;
  };
  Halves split_heads(Tensor x, int heads, int first_width);
  Tensor join_heads(Tensor a, Tensor b, int heads);
  Tensor add(Tensor a, Tensor b);

 private:
  /// A product's input, rounded if any of `matrices` is quantised.
  LinearInput input(Tensor x, std::initializer_list<const Matrix*> matrices);
  Tensor add_bias(Tensor x, const Vector& bias) const;  // in place; an empty bias is none

  const kernels::Kernels* kernels_;
  ThreadPool* pool_;
  Arena arena_;
  struct Attention {
    int heads, kv_heads, head_dim;
    kernels::KvType type;
    AttentionPlan plan;
  };
  std::optional<Attention> attention_;
  RopeTable rope_table_;
};

}  // namespace aerie
