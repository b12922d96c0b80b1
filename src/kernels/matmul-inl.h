// Matrix products, for any vector width. Included inside the anonymous namespace of an instruction-set unit that defines Simd.
//
// A strip is Simd::kLanes output rows of a tile. The inner functions compute N activation rows against T strips; N and T only
// decide which registers are shared. Every (row, strip) has its own accumulators, and what is added to them, in which order,
// is the same for all N and T: a row's bytes depend on nothing beside it.

constexpr int kStripsPerTile = kTileRows / Simd::kLanes;
constexpr int kMaxRows = 8;  // activation rows that share a weight block in registers

struct Strip {
  const uint8_t* tile;
  int half;  // which part of the tile's 16 rows
};

inline Strip strip_of(const PackedMatrix& w, int strip) { return {w.tile(strip / kStripsPerTile), strip % kStripsPerTile}; }

inline void store_strip(const PackedMatrix& w, int strip, float* y, Simd::F value) {
  const int first = strip * Simd::kLanes, left = w.rows() - first;
  if (left >= Simd::kLanes) {
    Simd::store(y + first, value);
  } else if (left > 0) {
    Simd::store_n(y + first, value, left);
  }
}

struct Q4Format {
  static constexpr bool kHasMinimum = true;
  static void load(const Strip& s, int block, Simd::QuantBlock& w, Simd::F& scale, Simd::F& minimum) {
    const uint8_t* p = s.tile + static_cast<size_t>(block) * kQ4BlockBytes;
    Simd::load_q4(p + s.half * Simd::kLanes * 4, w);
    scale = Simd::load_half(p + kQ4Scales + s.half * Simd::kLanes * 2);
    minimum = Simd::load_half(p + kQ4Minima + s.half * Simd::kLanes * 2);
  }
  static Simd::I dot(const Simd::QuantBlock& w, const int8_t* a, int /*start*/) { return Simd::dot_q4(w, a); }
};

struct Q8Format {
  static constexpr bool kHasMinimum = false;
  static void load(const Strip& s, int block, Simd::QuantBlock& w, Simd::F& scale, Simd::F&) {
    const uint8_t* p = s.tile + static_cast<size_t>(block) * kQ8BlockBytes;
    Simd::load_q8(p + s.half * Simd::kLanes * 4, w);
    scale = Simd::load_half(p + kQ8Scales + s.half * Simd::kLanes * 2);
  }
  static Simd::I dot(const Simd::QuantBlock& w, const int8_t* a, int start) { return Simd::dot_q8(w, a, start); }
};

template <class Format, int N, int T>
[[gnu::noinline]] void quantized_piece(const PackedMatrix& w, int strip, const QuantizedRows& x, int row, float* y, size_t y_stride) {
  const int blocks = w.cols() / kBlock;
  Strip strips[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) strips[t] = strip_of(w, strip + t);
  const size_t first = static_cast<size_t>(row) * blocks;
  const int8_t* q = x.q + first * 2 * kBlock;
  const float* scales = x.scale + first;
  const float* offsets = x.offset + first;
  const int32_t* sums = x.sum128 + first;
  Simd::F acc[T][N];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) acc[t][i] = Simd::zero();
  }
  for (int b = 0; b < blocks; ++b) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      Simd::QuantBlock block;
      Simd::F scale, minimum;
      Format::load(strips[t], b, block, scale, minimum);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        const size_t at = static_cast<size_t>(i) * blocks + b;
        const int8_t* a = q + at * 2 * kBlock;
        const Simd::I high = Format::dot(block, a, 0), low = Format::dot(block, a + kBlock, sums[at]);
        const Simd::I sum = Simd::add_int(Simd::shift_left_7(high), low);
        acc[t][i] = Simd::fma(Simd::mul(Simd::to_float(sum), Simd::set1(scales[at])), scale, acc[t][i]);
        if constexpr (Format::kHasMinimum) acc[t][i] = Simd::fma(minimum, Simd::set1(offsets[at]), acc[t][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) store_strip(w, strip + t, y + (row + i) * y_stride, acc[t][i]);
  }
}

struct Bf16Format {
  static constexpr int kColumnBytes = kTileRows * 2;
  static Simd::F load(const uint8_t* p) { return Simd::load_bf16(p); }
};

struct F32Format {
  static constexpr int kColumnBytes = kTileRows * 4;
  static Simd::F load(const uint8_t* p) { return Simd::load(reinterpret_cast<const float*>(p)); }
};

// Even and odd columns have an accumulator each, added at the end.
template <class Format, int N, int T>
[[gnu::noinline]] void float_piece(const PackedMatrix& w, int strip, const float* x, size_t x_stride, int row, float* y, size_t y_stride) {
  const uint8_t* strips[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    const Strip s = strip_of(w, strip + t);
    strips[t] = s.tile + s.half * (Format::kColumnBytes / kStripsPerTile);
  }
  const float* rows = x + row * x_stride;
  Simd::F acc[2][T][N];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) acc[0][t][i] = acc[1][t][i] = Simd::zero();
  }
  const auto column = [&](int c, Simd::F(&sums)[T][N]) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const Simd::F weights = Format::load(strips[t] + static_cast<size_t>(c) * Format::kColumnBytes);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) sums[t][i] = Simd::fma(Simd::set1(rows[i * x_stride + c]), weights, sums[t][i]);
    }
  };
  const int cols = w.cols();
  int c = 0;
  for (; c + 2 <= cols; c += 2) {
    column(c, acc[0]);
    column(c + 1, acc[1]);
  }
  if (c < cols) column(c, acc[0]);
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) store_strip(w, strip + t, y + (row + i) * y_stride, Simd::add(acc[0][t][i], acc[1][t][i]));
  }
}

/// Calls piece(rows, first row) for balanced pieces of n rows, at most `most` each: 12 is 6 + 6, never 8 + 4, because the
/// remainder of an unbalanced cut would read the weights for few rows.
template <class Piece>
inline void for_each_piece(int n, int most, Piece&& piece) {
  const int pieces = (n + most - 1) / most;
  for (int i = 0, row = 0; i < pieces; ++i) {
    const int rows = n / pieces + (i < n % pieces);
    piece(rows, row);
    row += rows;
  }
}

/// Walks all strips of the tiles for groups of rows whose activations stay in the L2 cache, the strip's rows innermost, so that
/// its weights stay in L1. run(strip, strips, rows, first row) computes one piece.
template <class Run>
inline void for_each_strip(int n, int group, int most, int strips_at_once, int tile_begin, int tile_end, Run&& run) {
  const int end = tile_end * kStripsPerTile;
  for_each_piece(n, group, [&](int group_rows, int group_first) {
    for (int strip = tile_begin * kStripsPerTile; strip < end; strip += strips_at_once) {
      const int strips = end - strip < strips_at_once ? 1 : strips_at_once;
      for (int s = strip; s < end && s < strip + strips_at_once; s += strips) {
        for_each_piece(group_rows, most, [&](int rows, int first) { run(s, strips, rows, group_first + first); });
      }
    }
  });
}

template <class Format>
void matmul_quantized_as(const PackedMatrix& w, const QuantizedRows& x, int n, int tile_begin, int tile_end, float* y, size_t y_stride) {
  constexpr int kGroup = 128;
  // With few rows one strip's chain of dependent additions is longer than the wait for memory; two strips hide each other's.
  for_each_strip(n, kGroup, kMaxRows, 1, tile_begin, tile_end, [&](int strip, int strips, int rows, int row) {
    switch (rows * 10 + strips) {
      case 12: return quantized_piece<Format, 1, 2>(w, strip, x, row, y, y_stride);
      case 22: return quantized_piece<Format, 2, 2>(w, strip, x, row, y, y_stride);
      case 32: return quantized_piece<Format, 3, 2>(w, strip, x, row, y, y_stride);
      case 11: return quantized_piece<Format, 1, 1>(w, strip, x, row, y, y_stride);
      case 21: return quantized_piece<Format, 2, 1>(w, strip, x, row, y, y_stride);
      case 31: return quantized_piece<Format, 3, 1>(w, strip, x, row, y, y_stride);
      case 41: return quantized_piece<Format, 4, 1>(w, strip, x, row, y, y_stride);
      case 51: return quantized_piece<Format, 5, 1>(w, strip, x, row, y, y_stride);
      case 61: return quantized_piece<Format, 6, 1>(w, strip, x, row, y, y_stride);
      case 71: return quantized_piece<Format, 7, 1>(w, strip, x, row, y, y_stride);
      case 81: return quantized_piece<Format, 8, 1>(w, strip, x, row, y, y_stride);
    }
  });
}

void matmul_quantized(const PackedMatrix& w, const QuantizedRows& x, int n, int tile_begin, int tile_end, float* y, size_t y_stride) {
  if (w.format() == TileFormat::kQ4) {
    matmul_quantized_as<Q4Format>(w, x, n, tile_begin, tile_end, y, y_stride);
  } else {
    matmul_quantized_as<Q8Format>(w, x, n, tile_begin, tile_end, y, y_stride);
  }
}

template <class Format>
void matmul_float_as(const PackedMatrix& w, const float* x, size_t x_stride, int n, int tile_begin, int tile_end, float* y, size_t y_stride) {
  constexpr int kGroup = 64;
  const int strips_at_once = n <= 2 ? 4 : n <= 4 && Simd::kMaxFloatRows == kMaxRows ? 2 : 1;
  for_each_strip(n, kGroup, Simd::kMaxFloatRows, strips_at_once, tile_begin, tile_end, [&](int strip, int strips, int rows, int row) {
    switch (rows * 10 + strips) {
      case 14: return float_piece<Format, 1, 4>(w, strip, x, x_stride, row, y, y_stride);
      case 24: return float_piece<Format, 2, 4>(w, strip, x, x_stride, row, y, y_stride);
      case 32: return float_piece<Format, 3, 2>(w, strip, x, x_stride, row, y, y_stride);
      case 42: return float_piece<Format, 4, 2>(w, strip, x, x_stride, row, y, y_stride);
      case 11: return float_piece<Format, 1, 1>(w, strip, x, x_stride, row, y, y_stride);
      case 21: return float_piece<Format, 2, 1>(w, strip, x, x_stride, row, y, y_stride);
      case 31: return float_piece<Format, 3, 1>(w, strip, x, x_stride, row, y, y_stride);
      case 41: return float_piece<Format, 4, 1>(w, strip, x, x_stride, row, y, y_stride);
      case 51: return float_piece<Format, 5, 1>(w, strip, x, x_stride, row, y, y_stride);
      case 61: return float_piece<Format, 6, 1>(w, strip, x, x_stride, row, y, y_stride);
      case 71: return float_piece<Format, 7, 1>(w, strip, x, x_stride, row, y, y_stride);
      case 81: return float_piece<Format, 8, 1>(w, strip, x, x_stride, row, y, y_stride);
    }
  });
}

void matmul_float(const PackedMatrix& w, const float* x, size_t x_stride, int n, int tile_begin, int tile_end, float* y, size_t y_stride) {
  if (w.format() == TileFormat::kBf16) {
    matmul_float_as<Bf16Format>(w, x, x_stride, n, tile_begin, tile_end, y, y_stride);
  } else {
    matmul_float_as<F32Format>(w, x, x_stride, n, tile_begin, tile_end, y, y_stride);
  }
}
