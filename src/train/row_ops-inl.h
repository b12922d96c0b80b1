// The operations of row_ops.h, for the instruction set that the including file is compiled for.
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "train/row_ops.h"

#define AERIE_INLINE inline __attribute__((always_inline))

namespace aerie::train {
namespace {

// Vectors of the instruction set's own width: the compiler does not find them by itself in loops with an exp, and cuts wider ones badly.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
template <class A>
struct Lanes {
  static constexpr int kCount = kVectorBytes / static_cast<int>(sizeof(A));
};
using F = float __attribute__((vector_size(kVectorBytes)));
using D = double __attribute__((vector_size(kVectorBytes)));
using Bits16 = uint16_t __attribute__((vector_size(kVectorBytes / 2)));
using Bits32 = uint32_t __attribute__((vector_size(kVectorBytes)));
using Int32 = int32_t __attribute__((vector_size(kVectorBytes)));
template <class A>
using VectorOf = std::conditional_t<sizeof(A) == sizeof(float), F, D>;

AERIE_INLINE float wide(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }
AERIE_INLINE float wide(float x) { return x; }
AERIE_INLINE double wide(double x) { return x; }

AERIE_INLINE F wide_vector(const uint16_t* p) {
  Bits16 bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return (F)(__builtin_convertvector(bits, Bits32) << 16);
}
AERIE_INLINE F wide_vector(const float* p) {
  F x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
AERIE_INLINE D wide_vector(const double* p) {
  D x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}

/// To the nearest, ties to even; the values here are finite or the run is stopped.
AERIE_INLINE void narrow_vector(F x, uint16_t* p) {
  const Bits32 bits = (Bits32)x;
  const Bits16 rounded = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Bits16);
  __builtin_memcpy(p, &rounded, sizeof(rounded));
}
AERIE_INLINE void narrow_vector(F x, float* p) { __builtin_memcpy(p, &x, sizeof(x)); }
AERIE_INLINE void narrow_vector(D x, double* p) { __builtin_memcpy(p, &x, sizeof(x)); }

/// The values from p on; behind the last of `left` stands `fill`, which must be a value of T that adds nothing to what is computed.
template <class T>
AERIE_INLINE auto load(const T* p, int64_t left, T fill) {
  using A = decltype(wide(T()));
  if (left >= Lanes<A>::kCount) return wide_vector(p);
  T padded[Lanes<A>::kCount];
  for (int i = 0; i < Lanes<A>::kCount; ++i) padded[i] = i < left ? p[i] : fill;
  return wide_vector(padded);
}
template <class T>
AERIE_INLINE auto load(const T* p, int64_t left) {
  return load(p, left, T(0));
}

template <class T, class V>
AERIE_INLINE void store(V x, T* p, int64_t left) {
  using A = decltype(wide(T()));
  if (left >= Lanes<A>::kCount) return narrow_vector(x, p);
  T narrowed[Lanes<A>::kCount];
  narrow_vector(x, narrowed);
  for (int i = 0; i < left; ++i) p[i] = narrowed[i];
}

template <class V>
AERIE_INLINE auto sum_of(V x) {
  auto sum = x[0];
  for (size_t i = 1; i < sizeof(x) / sizeof(x[0]); ++i) sum += x[i];
  return sum;
}

template <class V>
AERIE_INLINE auto max_of(V x) {
  auto most = x[0];
  for (size_t i = 1; i < sizeof(x) / sizeof(x[0]); ++i) most = most < x[i] ? x[i] : most;
  return most;
}

/// exp(x) to about one unit in the last place, as kernels/elementwise-inl.h computes it.
AERIE_INLINE F exp_of(F x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer
  x = x < -87.0f ? F{} - 87.0f : x;
  x = x > 88.0f ? F{} + 88.0f : x;
  const F n = (x * 1.44269504f + kRound) - kRound;
  F rest = x - n * 0.693359375f;
  rest += n * 2.12194440e-4f;
  F p = F{} + 1.0f / 5040;
  p = p * rest + 1.0f / 720;
  p = p * rest + 1.0f / 120;
  p = p * rest + 1.0f / 24;
  p = p * rest + 1.0f / 6;
  p = p * rest + 0.5f;
  p = p * rest + 1.0f;
  p = p * rest + 1.0f;
  return p * (F)((__builtin_convertvector(n, Int32) + 127) << 23);
}
AERIE_INLINE D exp_of(D x) {
  for (int i = 0; i < Lanes<double>::kCount; ++i) x[i] = std::exp(x[i]);
  return x;
}

// A logit that stands for none: its probability is nothing, and finite wherever it is multiplied.
constexpr float kNoLogit = -16384.0f;
AERIE_INLINE void set_no_logit(uint16_t& x) { x = 0xc680; }
template <class T>
AERIE_INLINE void set_no_logit(T& x) {
  x = kNoLogit;
}
template <class T>
AERIE_INLINE auto load_logits(const T* p, int64_t left) {
  T none;
  set_no_logit(none);
  return load(p, left, none);
}

template <class T, class A>
AERIE_INLINE A log_sum_exp(const T* x, int64_t n, A scale) {
  constexpr int kStep = Lanes<A>::kCount;
  VectorOf<A> most = load_logits(x, n) * scale, sum = {};
  for (int64_t j = kStep; j < n; j += kStep) {
    const auto value = load_logits(x + j, n - j) * scale;
    most = most < value ? value : most;
  }
  const A top = max_of(most);
  for (int64_t j = 0; j < n; j += kStep) sum += exp_of(load_logits(x + j, n - j) * scale - top);
  return top + std::log(sum_of(sum));
}

template <class T, class A>
TeacherRow<A> teacher_row(const T* t, int64_t n, A sharpness) {
  TeacherRow<A> row;
  row.log_sum = log_sum_exp(t, n, sharpness);
  VectorOf<A> mean = {};
  for (int64_t j = 0; j < n; j += Lanes<A>::kCount) {
    const auto log_p = load_logits(t + j, n - j) * sharpness - row.log_sum;
    mean += exp_of(log_p) * log_p;
  }
  row.entropy = -sum_of(mean);
  return row;
}

template <class T, class A>
RowLoss loss_row(const T* z, const T* t, int64_t n, const RowLossInput<A>& in, A* scratch, T* gradient) {
  using V = VectorOf<A>;
  constexpr int kStep = Lanes<A>::kCount;
  const A log_sum = log_sum_exp(z, n, A(1)), label = wide(z[in.label]);
  A* const p_row = scratch;
  A* const q_row = scratch + n;
  V cross = {}, overlap = {}, below = {}, above = {};  // sums of p log q, min(p, q), q where it is below p; logits above the label's
  for (int64_t j = 0; j < n; j += kStep) {
    const V logits = load_logits(z + j, n - j), log_q = logits - log_sum;
    const V p = exp_of(load_logits(t + j, n - j) * in.sharpness - in.teacher.log_sum), q = exp_of(log_q);
    cross += p * log_q;
    overlap += q < p ? q : p;
    below += q < p ? q : V{};
    above += logits > label ? V{} + A(1) : V{};
    store(p, p_row + j, n - j);
    store(q, q_row + j, n - j);
  }
  const A kl = -in.teacher.entropy - sum_of(cross), common = sum_of(overlap), lower = sum_of(below);
  const A share = in.loss == Loss::kKl ? A(1) : std::exp(-3 * common);
  const RowLoss result = {share * kl + (1 - share) * (1 - common), sum_of(above) == 0};
  if (gradient == nullptr) return result;
  const A kl_weight = in.weight * share, tv_weight = in.weight * (1 - share);
  for (int64_t j = 0; j < n; j += kStep) {
    const V p = load(p_row + j, n - j), q = load(q_row + j, n - j);
    V g = (q - p) * kl_weight;
    if (in.loss == Loss::kLkHybrid) g += q * (q < p ? V{} + (lower - 1) : V{} + lower) * tv_weight;
    store(g, gradient + j, n - j);
  }
  return result;
}

template <class A>
A rms_norm_row(const A* x, const A* w, int64_t n, A eps, A* y) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) sum += x[j] * x[j];
  const A inverse = 1 / std::sqrt(sum / static_cast<A>(n) + eps);
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) y[j] = x[j] * inverse * w[j];
  return inverse;
}

template <class A>
void rms_norm_row_backward(const A* x, const A* w, const A* dy, int64_t n, A inverse, A* dx, A* dw) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) dw[j] += dy[j] * x[j] * inverse;
  if (dx == nullptr) return;
  A along = 0;
#pragma omp simd reduction(+ : along)
  for (int64_t j = 0; j < n; ++j) along += dy[j] * w[j] * x[j];
  const A pull = along * inverse * inverse / static_cast<A>(n);
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) dx[j] = inverse * (dy[j] * w[j] - x[j] * pull);
}

template <class T>
void gated_row(const T* gate, const T* up, int64_t n, T* y) {
  for (int64_t j = 0; j < n; j += Lanes<decltype(wide(T()))>::kCount) {
    const auto g = load(gate + j, n - j);
    store(g / (1 + exp_of(-g)) * load(up + j, n - j), y + j, n - j);
  }
}

template <class T>
void gated_row_backward(const T* gate, const T* up, const T* dy, int64_t n, T* d_gate, T* d_up) {
  for (int64_t j = 0; j < n; j += Lanes<decltype(wide(T()))>::kCount) {
    const auto g = load(gate + j, n - j), d = load(dy + j, n - j);
    const auto sigmoid = 1 / (1 + exp_of(-g));
    store(d * load(up + j, n - j) * sigmoid * (1 + g * (1 - sigmoid)), d_gate + j, n - j);
    store(d * g * sigmoid, d_up + j, n - j);
  }
}

template <class A>
void rotate_row(const A* a, const A* b, const A* cos, const A* sin, int64_t n, int64_t stride, A* turned_a, A* turned_b) {
  if (stride == 1) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const A x = a[j], y = b[j];
      turned_a[j] = x * cos[j] - y * sin[j];
      turned_b[j] = y * cos[j] + x * sin[j];
    }
    return;
  }
  for (int64_t j = 0; j < n; ++j) {
    const A x = a[j * stride], y = b[j * stride];
    turned_a[j * stride] = x * cos[j] - y * sin[j];
    turned_b[j * stride] = y * cos[j] + x * sin[j];
  }
}

template <class T, class A>
void softmax_row(T* scores, int64_t begin, int64_t end, int64_t n, A* own, int64_t own_n, A* scratch) {
  using V = VectorOf<A>;
  constexpr int kStep = Lanes<A>::kCount;
  V tops = V{} + (begin < end ? wide(scores[begin]) : own[0]);  // a narrow window hides all but own keys
  for (int64_t j = begin; j < end; j += kStep) {
    const V score = load_logits(scores + j, end - j);
    tops = tops < score ? score : tops;
  }
  A top = max_of(tops);
  for (int64_t j = 0; j < own_n; ++j) top = top < own[j] ? own[j] : top;
  V sums = {};
  for (int64_t j = begin; j < end; j += kStep) {
    const V e = exp_of(load_logits(scores + j, end - j) - top);
    sums += e;
    store(e, scratch + j, end - j);
  }
  A sum = sum_of(sums);
  for (int64_t j = 0; j < own_n; ++j) sum += own[j] = std::exp(own[j] - top);
  const A share = 1 / sum;
  for (int64_t j = begin; j < end; j += kStep) store(load(scratch + j, end - j) * share, scores + j, end - j);
  for (int64_t j = 0; j < own_n; ++j) own[j] *= share;
  for (int64_t j = 0; j < begin; ++j) scores[j] = 0;
  for (int64_t j = end; j < n; ++j) scores[j] = 0;
}

template <class A>
A dot_row(const A* a, const A* b, int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) sum += a[j] * b[j];
  return sum;
}

template <class T, class A>
void softmax_row_backward(const T* weights, T* gradients, int64_t n, const A* own_weights, A* own_gradients, int64_t own_n) {
  constexpr int kStep = Lanes<A>::kCount;
  VectorOf<A> sums = {};
  for (int64_t j = 0; j < n; j += kStep) sums += load(weights + j, n - j) * load(gradients + j, n - j);
  const A mean = sum_of(sums) + dot_row(own_weights, own_gradients, own_n);
  for (int64_t j = 0; j < n; j += kStep) store(load(weights + j, n - j) * (load(gradients + j, n - j) - mean), gradients + j, n - j);
  for (int64_t j = 0; j < own_n; ++j) own_gradients[j] = own_weights[j] * (own_gradients[j] - mean);
}

template <class T, class A>
void add_product_row(A scale, const T* x, int64_t n, A* y) {
  for (int64_t j = 0; j < n; j += Lanes<A>::kCount) store(load(y + j, n - j) + scale * load(x + j, n - j), y + j, n - j);
}

template <class T, class A>
A momentum_row(A momentum, A scale, const A* gradient, int64_t n, A* first, T* ahead) {
  VectorOf<A> squares = {};
  for (int64_t j = 0; j < n; j += Lanes<A>::kCount) {
    const VectorOf<A> g = load(gradient + j, n - j) * scale, moved = load(first + j, n - j) * momentum + g, look = moved * momentum + g;
    store(moved, first + j, n - j);
    store(look, ahead + j, n - j);
    squares += look * look;
  }
  return sum_of(squares);
}

template <class A>
void adam_row(const AdamStep<A>& s, const A* gradient, int64_t n, A* value, A* first, A* second) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const A g = gradient[j] * s.gradient_scale;
    first[j] = s.beta1 * first[j] + (1 - s.beta1) * g;
    second[j] = s.beta2 * second[j] + (1 - s.beta2) * g * g;
    value[j] = s.keep * value[j] - s.rate * first[j] / (std::sqrt(second[j] * s.inverse_correction2) + s.eps);
  }
}

template <class T, class A>
constexpr RowOps<T, A> row_ops_here() {
  return {teacher_row<T, A>,
          loss_row<T, A>,
          rms_norm_row<A>,
          rms_norm_row_backward<A>,
          gated_row<T>,
          gated_row_backward<T>,
          rotate_row<A>,
          softmax_row<T, A>,
          softmax_row_backward<T, A>,
          dot_row<A>,
          add_product_row<A, A>,
          add_product_row<T, A>,
          momentum_row<T, A>,
          adam_row<A>};
}

}  // namespace
}  // namespace aerie::train

#undef AERIE_INLINE
