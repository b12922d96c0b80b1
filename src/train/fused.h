// Parts of the forward that autograd takes as one operation each, over the loops of row_ops.h. Those loops read the CPU's memory: on
// another device the same is written in LibTorch's own operations.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace aerie::train {

/// Whether the loops of row_ops.h are used for a tensor.
bool row_ops_reach(const at::Tensor& x);
/// While it lives they are used for none, so that what runs on other devices can be tested on the CPU.
class WithoutRowOps {
 public:
  WithoutRowOps();
  ~WithoutRowOps();
  WithoutRowOps(const WithoutRowOps&) = delete;
  WithoutRowOps& operator=(const WithoutRowOps&) = delete;
};

/// x / rms(x) * weight over the last dimension; both float or both double.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// silu(gate) * up, in their type.
at::Tensor gated(const at::Tensor& gate, const at::Tensor& up);

/// Where the rotated values stand in each head of [n, heads * width].
struct RopePlace {
  int64_t heads = 0, offset = 0, dim = 0;
  bool interleaved = false;
};
/// x [n, heads * width] with its pairs turned by the angles of cos and sin [n, dim/2].
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const RopePlace& place);

/// Calls f(begin, end, thread) for parts of `rows` rows that are worth a thread's while; which part goes to which thread depends on the
/// numbers alone.
void for_rows(int64_t rows, int64_t values_per_row, const std::function<void(int64_t, int64_t, int)>& f);

/// The row operations' value types for tensors of a type: calls f(T(), A()).
template <class F>
auto with_row_types(at::ScalarType type, F&& f) {
  if (type == at::kBFloat16) return f(uint16_t(), float());
  if (type == at::kFloat) return f(float(), float());
  TORCH_INTERNAL_ASSERT(type == at::kDouble);
  return f(double(), double());
}

/// A view of numbers that outlive it, or on another device a copy. from_blob does not write; it only has no overload for constant memory.
inline at::Tensor index_tensor(const std::vector<int64_t>& values, const at::Device& device = at::kCPU) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kLong).to(device);
}

/// The values of a contiguous tensor.
template <class T>
T* values_of(const at::Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

}  // namespace aerie::train
