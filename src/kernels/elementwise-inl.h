// Everything that runs over one vector, for any vector width. Included inside the anonymous namespace of an instruction-set
// unit that defines Simd. The order of additions depends on the width alone.

constexpr float kFloatInfinity = __builtin_inff();

/// exp(x) to about one unit in the last place: 2^n times the Taylor polynomial of the rest, |rest| <= ln(2)/2, whose first
/// dropped term is below 6e-9. Arguments are clamped to where the result is a normal number; NaN stays NaN.
inline Simd::F exp_vector(Simd::F x) {
  x = Simd::min(Simd::set1(88.0f), Simd::max(Simd::set1(-87.0f), x));
  const Simd::F n = Simd::round(Simd::mul(x, Simd::set1(1.44269504f)));
  // ln 2 in two parts: n times the first, which has 9 significant bits, is exact.
  Simd::F rest = Simd::fnma(n, Simd::set1(0.693359375f), x);
  rest = Simd::fnma(n, Simd::set1(-2.12194440e-4f), rest);
  Simd::F p = Simd::set1(1.0f / 5040);
  p = Simd::fma(p, rest, Simd::set1(1.0f / 720));
  p = Simd::fma(p, rest, Simd::set1(1.0f / 120));
  p = Simd::fma(p, rest, Simd::set1(1.0f / 24));
  p = Simd::fma(p, rest, Simd::set1(1.0f / 6));
  p = Simd::fma(p, rest, Simd::set1(0.5f));
  p = Simd::fma(p, rest, Simd::set1(1.0f));
  p = Simd::fma(p, rest, Simd::set1(1.0f));
  return Simd::mul(p, Simd::exponent(n));
}

/// Calls body(i, n) for i = 0, kLanes, ...: n is kLanes, or less at the end.
template <class Body>
inline void for_each_vector(int width, Body&& body) {
  int i = 0;
  for (; i + Simd::kLanes <= width; i += Simd::kLanes) body(i, Simd::kLanes);
  if (i < width) body(i, width - i);
}
inline Simd::F load_some(const float* p, int n) { return n == Simd::kLanes ? Simd::load(p) : Simd::load_n(p, n); }
inline void store_some(float* p, Simd::F v, int n) {
  if (n == Simd::kLanes) {
    Simd::store(p, v);
  } else {
    Simd::store_n(p, v, n);
  }
}

void quantize_rows(const float* x, size_t x_stride, int first, int n, int k, QuantizedBlock* out) {
  constexpr int kVectors = kBlock / Simd::kLanes;
  const int blocks = k / kBlock;
  for (int r = 0; r < n; ++r) {
    for (int b = 0; b < blocks; ++b) {
      const float* source = x + r * x_stride + b * kBlock;
      QuantizedBlock& block = out[static_cast<size_t>((first + r) / kTileRows) * blocks + b];
      const int at = (first + r) % kTileRows;
      Simd::F v[kVectors];
      Simd::I largest = Simd::abs_bits(v[0] = Simd::load(source));
      for (int i = 1; i < kVectors; ++i) largest = Simd::max_int(largest, Simd::abs_bits(v[i] = Simd::load(source + i * Simd::kLanes)));
      const float scale = __builtin_bit_cast(float, Simd::reduce_max_int(largest)) / static_cast<float>(kActivationMax);
      int8_t* q = block.q[at];
      if (scale >= __FLT_MIN__ && scale < kFloatInfinity) {
        Simd::I sum;
        for (int i = 0; i < kVectors; ++i) {
          const Simd::I rounded = Simd::round_to_int(Simd::div(v[i], Simd::set1(scale)));
          const Simd::I high = Simd::shift_right_4(Simd::add_int(rounded, Simd::set1_int(8)));
          Simd::store_int8(q + i * Simd::kLanes, high);
          Simd::store_int8(q + kBlock + i * Simd::kLanes, Simd::sub_int(rounded, Simd::shift_left_4(high)));
          sum = i == 0 ? rounded : Simd::add_int(sum, rounded);
        }
        const int total = Simd::reduce_add_int(sum);
        block.scale[at] = scale;
        block.offset[at] = scale * static_cast<float>(total);
        block.sum128[at] = -128 * total;
      } else {
        // Zeros (or too small to have a scale): a zero block. NaN or infinity: the row becomes NaN, and nothing else does.
        __builtin_memset(q, 0, 2 * kBlock);
        block.scale[at] = scale < 1.0f ? scale : __builtin_nanf("");
        block.offset[at] = block.scale[at] * 0.0f;
        block.sum128[at] = 0;
      }
    }
  }
}

void rms_norm(const float* x, const float* weight, float eps, int width, float* y) {
  Simd::F squares[2] = {Simd::zero(), Simd::zero()};
  for_each_vector(width, [&](int i, int n) {
    const Simd::F v = load_some(x + i, n);
    Simd::F& sum = squares[i / Simd::kLanes % 2];
    sum = Simd::fma(v, v, sum);
  });
  const float mean = Simd::reduce_add(Simd::add(squares[0], squares[1])) / static_cast<float>(width);
  const Simd::F factor = Simd::set1(1.0f / __builtin_sqrtf(mean + eps));
  for_each_vector(width,
                  [&](int i, int n) { store_some(y + i, Simd::mul(Simd::mul(load_some(x + i, n), factor), load_some(weight + i, n)), n); });
}

void silu_mul(const float* gate, const float* up, int width, float* y) {
  for_each_vector(width, [&](int i, int n) {
    const Simd::F g = load_some(gate + i, n);
    const Simd::F denominator = Simd::add(Simd::set1(1.0f), exp_vector(Simd::sub(Simd::zero(), g)));
    store_some(y + i, Simd::mul(Simd::div(g, denominator), load_some(up + i, n)), n);
  });
}

void add(const float* x, int width, float* y) {
  for_each_vector(width, [&](int i, int n) { store_some(y + i, Simd::add(load_some(y + i, n), load_some(x + i, n)), n); });
}

void rope(float* x, int heads, int head_dim, const float* cos, const float* sin) {
  const int half = head_dim / 2;
  for (int head = 0; head < heads; ++head, x += head_dim) {
    for_each_vector(half, [&](int j, int n) {
      const Simd::F a = load_some(x + j, n), b = load_some(x + half + j, n), c = load_some(cos + j, n), s = load_some(sin + j, n);
      store_some(x + j, Simd::fnma(b, s, Simd::mul(a, c)), n);
      store_some(x + half + j, Simd::fma(a, s, Simd::mul(b, c)), n);
    });
  }
}

int argmax(const float* x, int n) {
  // Two passes: the largest value, then the first place that holds it. NaN equals nothing and is never the larger one.
  const Simd::F lowest = Simd::set1(-kFloatInfinity);
  constexpr int kChains = 4;
  Simd::F top[kChains] = {lowest, lowest, lowest, lowest};
  int done = 0;
  for (; done + kChains * Simd::kLanes <= n; done += kChains * Simd::kLanes) {
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) top[c] = Simd::max(Simd::load(x + done + c * Simd::kLanes), top[c]);
  }
  for_each_vector(n - done,
                  [&](int i, int count) { top[0] = Simd::max(Simd::select_first(count, load_some(x + done + i, count), lowest), top[0]); });
  const Simd::F wanted = Simd::set1(Simd::reduce_max(Simd::max(Simd::max(top[0], top[1]), Simd::max(top[2], top[3]))));
  for (int i = 0; i < n; i += Simd::kLanes) {
    const int count = n - i < Simd::kLanes ? n - i : Simd::kLanes;
    const unsigned found = Simd::equal_mask(load_some(x + i, count), wanted) & ((1u << count) - 1);
    if (found != 0) return i + __builtin_ctz(found);
  }
  return -1;
}
