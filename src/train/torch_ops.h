// The operations of the one forward (eagle3/draft_step.h) over LibTorch tensors, so that autograd runs through it.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "eagle3/draft_step.h"
#include "models/rope.h"
#include "train/fused.h"

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

  Tensor rms_norm(const Tensor& x, const Vector& weight, float eps) { return train::rms_norm(x.to(state_type_), weight, eps); }

  Tensor rms_norm_slices(const Tensor& x, const std::vector<Vector>& weights, float eps) {
    std::vector<Tensor> slices = x.chunk(static_cast<int64_t>(weights.size()), -1);
    for (size_t i = 0; i < slices.size(); ++i) slices[i] = rms_norm(slices[i], weights[i], eps);
    return at::cat(slices, -1);
  }

  Tensor rms_norm_heads(const Tensor& x, const Vector& weight, float eps) {
    return rms_norm(x.view({x.size(0), -1, weight.size(0)}), weight, eps).view(x.sizes());
  }

  Tensor concat(const Tensor& a, const Tensor& b) { return at::cat({a, b}, -1); }

  Tensor linear(const Tensor& x, const Matrix& w) { return at::linear(x.to(w.scalar_type()), w).to(state_type_); }

  Tensor linear(const Tensor& x, const Linear<TorchOps>& w) { return add_bias(linear(x, w.weight), w.bias); }

  Qkv qkv(const Tensor& x, const Linear<TorchOps>& q, const Linear<TorchOps>& k, const Linear<TorchOps>& v) {
    const Tensor narrow = x.to(q.weight.scalar_type());
    return {linear(narrow, q), linear(narrow, k), linear(narrow, v)};
  }

  Tensor gated_mlp_in(const Tensor& x, const Linear<TorchOps>& gate, const Linear<TorchOps>& up) {
    const Tensor narrow = x.to(gate.weight.scalar_type());
    return gated(add_bias(at::linear(narrow, gate.weight), gate.bias), add_bias(at::linear(narrow, up.weight), up.bias));
  }

  Tensor rope(const Tensor& x, int heads, int offset, const Rope& rope, const Positions& positions) {
    const auto [cos, sin] = angles(rope, positions);
    return rotated(x, cos, sin, {heads, offset, rope.dim, rope.interleaved});
  }

  struct Halves {
    Tensor first, second;
  };
  Halves split_heads(const Tensor& x, int heads, int first_width) {
    const Tensor by_head = x.view({x.size(0), heads, -1});
    const int64_t rest = by_head.size(2) - first_width;
    return {by_head.narrow(2, 0, first_width).flatten(1), by_head.narrow(2, first_width, rest).flatten(1)};
  }

  Tensor join_heads(const Tensor& a, const Tensor& b, int heads) {
    const Tensor shared = b.unsqueeze(1).expand({-1, heads, -1});
    return at::cat({a.view({a.size(0), heads, -1}), shared}, 2).flatten(1);
  }

  Tensor add(const Tensor& a, const Tensor& b) { return a + b; }

 private:
  static Tensor add_bias(const Tensor& x, const Vector& bias) { return bias.defined() ? x + bias.to(x.scalar_type()) : x; }

  /// cos and sin [n, dim/2]. They come from the table that serving uses.
  std::pair<Tensor, Tensor> angles(const Rope& rope, const Positions& positions) {
    const int64_t needed = positions.numel() == 0 ? 1 : positions.max().item<int64_t>() + 1;
    if (rope != rope_ || !cos_.defined() || cos_.size(0) < needed) {
      const int64_t count = std::max<int64_t>(2 * needed, 256), pairs = rope.dim / 2;
      Tensor both = at::empty({count, 2, pairs}, at::kFloat);
      for (int64_t p = 0; p < count; ++p) {
        std::copy_n(table_.angles(rope, static_cast<int>(p)), 2 * pairs, both.data_ptr<float>() + p * 2 * pairs);
      }
      rope_ = rope;
      cos_ = both.select(1, 0).to(positions.device(), state_type_).contiguous();
      sin_ = both.select(1, 1).to(positions.device(), state_type_).contiguous();
    }
    return {cos_.index_select(0, positions), sin_.index_select(0, positions)};
  }

  at::ScalarType state_type_;
  Rope rope_;
  RopeTable table_;
  Tensor cos_, sin_;  // of all positions so far [count, dim/2]
};

}  // namespace aerie::train
