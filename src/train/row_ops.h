// Loops over one row, where a chain of LibTorch's own operations would read and write it a dozen times. Compiled for several
// instruction sets, of which the best that the CPU has is taken.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace aerie::train {

/// Row counts are rounded up to a multiple of this: bf16 matrix products are compiled for each shape they meet, which takes longer
/// than a small product itself.
inline constexpr int64_t kRowMultiple = 64;
constexpr int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// What is minimised at each row, of the teacher's distribution p and the drafter's q over the draft vocabulary.
enum class Loss {
  kKl,        // KL(p || q); soft cross entropy has the same gradient
  kLkHybrid,  // l * KL(p || q) + (1 - l) * TV(p, q) with l = exp(-3 a), a = sum of min(p, q) = 1 - TV; l is no part of the gradient
};

/// A teacher's row of logits t stands for p_j = exp(sharpness * t_j - log_sum).
template <class A>
struct TeacherRow {
  A log_sum = 0;
  A entropy = 0;  // of p, in nats
};

/// What turns a row's logits into its loss.
template <class A>
struct RowLossInput {
  TeacherRow<A> teacher;
  A sharpness = 1;
  int64_t label = 0;
  A weight = 1;  // of the gradient
  Loss loss = Loss::kKl;
};

struct RowLoss {
  double loss = 0;       // of the kind asked for
  bool correct = false;  // no logit is above the label's
};

/// One step of AdamW (arXiv 1711.05101).
template <class A>
struct AdamStep {
  A beta1, beta2, eps;
  A gradient_scale;       // of the clipped norm
  A keep;                 // 1 - learning rate * weight decay
  A rate;                 // learning rate / (1 - beta1^t)
  A inverse_correction2;  // 1 / (1 - beta2^t)
};

/// The operations for values T of matrix products (bf16 as its bits) and A of everything else. n values in each row; rows do not overlap
/// but where it is said.
template <class T, class A>
struct RowOps {
  TeacherRow<A> (*teacher)(const T* t, int64_t n, A sharpness);
  /// Of logits z against a teacher's t; `gradient`, where it is not null, becomes weight * d loss / d z; it may be z itself.
  /// scratch [2 n].
  RowLoss (*loss)(const T* z, const T* t, int64_t n, const RowLossInput<A>& in, A* scratch, T* gradient);
  /// y = x / rms(x) * w, with eps within the root; returns 1 / rms(x).
  A (*rms_norm)(const A* x, const A* w, int64_t n, A eps, A* y);
  /// dx is written (unless null), dw added to.
  void (*rms_norm_backward)(const A* x, const A* w, const A* dy, int64_t n, A inverse_rms, A* dx, A* dw);
  /// y = silu(gate) * up.
  void (*gated)(const T* gate, const T* up, int64_t n, T* y);
  void (*gated_backward)(const T* gate, const T* up, const T* dy, int64_t n, T* d_gate, T* d_up);
  /// Turns the pairs (a_i, b_i) by angles, given their cosines and sines; `stride` is the distance of neighbours within a and within b.
  void (*rotate)(const A* a, const A* b, const A* cos, const A* sin, int64_t n, int64_t stride, A* turned_a, A* turned_b);
  /// Replaces scores by their softmax together with those of `own` [own_n]; before `begin` and from `end` on they become zero.
  /// scratch [n].
  void (*softmax)(T* scores, int64_t begin, int64_t end, int64_t n, A* own, int64_t own_n, A* scratch);
  /// Replaces the weights' gradients by the scores'.
  void (*softmax_backward)(const T* weights, T* gradients, int64_t n, const A* own_weights, A* own_gradients, int64_t own_n);
  A (*dot)(const A* a, const A* b, int64_t n);
  /// y += scale * x.
  void (*add_scaled)(A scale, const A* x, int64_t n, A* y);
  /// The same of a matrix product's values.
  void (*add_product)(A scale, const T* x, int64_t n, A* y);
  /// Muon's momentum: first = momentum * first + scale * gradient, and with Nesterov's look ahead = momentum * first + scale * gradient.
  /// Returns the sum of the squares of `ahead` before it is rounded.
  A (*momentum)(A momentum, A scale, const A* gradient, int64_t n, A* first, T* ahead);
  void (*adam)(const AdamStep<A>& step, const A* gradient, int64_t n, A* value, A* first, A* second);
};

/// For bf16 (uint16_t, float) and (float, float) to train with, and for (double, double) to check gradients with.
template <class T, class A>
const RowOps<T, A>& row_ops();

/// The tables of one instruction set.
struct RowOpTables {
  kernels::Isa isa;
  RowOps<uint16_t, float> bf16;
  RowOps<float, float> f32;
};
/// Those that this machine can run, the best first.
std::vector<const RowOpTables*> available_row_ops();

}  // namespace aerie::train
