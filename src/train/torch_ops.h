// The operations of the one forward (eagle3/draft_step.h) over LibTorch tensors, so that autograd runs through it.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <utility>
#include <vector>

#include "eagle3/draft_step.h"
#include "kernels/kernels.h"

namespace aerie::train {

/// Matrices are multiplied in the type they are given in (bfloat16 for speed, double for the gradient check); everything
/// else is computed in `state_type`. Not thread-safe: it caches the angles of RoPE.
class TorchOps {
 public:
  using Tensor = at::Tensor;
  using Matrix = at::Tensor;
  using Vector = at::Tensor;
  using Positions = at::Tensor;  // [n] int64

  struct Qkv {
    Tensor q, k, v;
  };

  explicit TorchOps(at::ScalarType state_type = at::kFloat) : state_type_(state_type) {}
  at::ScalarType state_type() const { return state_type_; }

  Tensor rms_norm(const Tensor& x, const Vector& weight, float eps) {
    const Tensor wide = x.to(state_type_);
    return wide * at::rsqrt(wide.square().mean(-1, true) + static_cast<double>(eps)) * weight;
  }

  Tensor rms_norm_slices(const Tensor& x, const std::vector<Vector>& weights, float eps) {
    std::vector<Tensor> slices = x.chunk(static_cast<int64_t>(weights.size()), -1);
    for (size_t i = 0; i < slices.size(); ++i) slices[i] = rms_norm(slices[i], weights[i], eps);
    return at::cat(slices, -1);
  }

  Tensor concat(const Tensor& a, const Tensor& b) { return at::cat({a, b}, -1); }

  Tensor linear(const Tensor& x, const Matrix& w) { return at::linear(x.to(w.scalar_type()), w).to(state_type_); }

  Qkv qkv(const Tensor& x, const Matrix& q, const Matrix& k, const Matrix& v) {
    const Tensor narrow = x.to(q.scalar_type());
    return {linear(narrow, q), linear(narrow, k), linear(narrow, v)};
  }

  Tensor gated_mlp_in(const Tensor& x, const Matrix& gate, const Matrix& up) {
    const Tensor narrow = x.to(gate.scalar_type());
    return at::silu(at::linear(narrow, gate)) * at::linear(narrow, up);
  }

  /// Pairs (j, j + head_dim/2), as kernels::Kernels::rope.
  Tensor rope(const Tensor& x, int heads, int head_dim, float theta, const Positions& positions) {
    const auto [cos, sin] = angles(positions, head_dim, theta);
    const Tensor pairs = x.view({x.size(0), heads, 2, head_dim / 2});
    const Tensor a = pairs.select(2, 0), b = pairs.select(2, 1);  // [n, heads, head_dim/2]
    return at::stack({a * cos - b * sin, b * cos + a * sin}, 2).view({x.size(0), heads * head_dim});
  }

  Tensor add(const Tensor& a, const Tensor& b) { return a + b; }

 private:
  struct Angles {
    Tensor cos, sin;  // [positions, 1, head_dim/2]
  };

  // The angles come from the kernels' own function: the table only saves computing them again.
  std::pair<Tensor, Tensor> angles(const Positions& positions, int head_dim, float theta) {
    const int64_t needed = positions.numel() == 0 ? 1 : positions.max().item<int64_t>() + 1;
    Angles& table = tables_[{head_dim, theta}];
    if (!table.cos.defined() || table.cos.size(0) < needed) {
      const int64_t count = std::max<int64_t>(2 * needed, 256);
      Tensor cos = at::empty({count, 1, head_dim / 2}, at::kFloat), sin = at::empty_like(cos);
      for (int64_t p = 0; p < count; ++p) {
        kernels::rope_angles(static_cast<int>(p), head_dim, theta, cos.data_ptr<float>() + p * (head_dim / 2),
                             sin.data_ptr<float>() + p * (head_dim / 2));
      }
      table = {cos.to(state_type_), sin.to(state_type_)};
    }
    return {table.cos.index_select(0, positions), table.sin.index_select(0, positions)};
  }

  at::ScalarType state_type_;
  std::map<std::pair<int, float>, Angles> tables_;
};

}  // namespace aerie::train
