// Matrix products, for any vector width. Included inside the anonymous namespace of an instruction-set unit that defines Simd.
//
// A strip is Simd::kLanes output rows of a tile. The inner functions compute N activation rows against one strip; N only decides
// how many rows share the registers that hold a weight block. Every row has its own accumulators, and what is added to them, in
// which order, is the same for all N: a row's bytes depend on nothing beside it. One strip at a time, also where N is small:
// two at once would be two streams through memory, which the prefetchers follow at two thirds of the speed of one.

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
  static constexpr size_t kBytes = kQ4BlockBytes, kScales = kQ4Scales, kMinima = kQ4Minima;
  template <int N>
  static void dot(const uint8_t* p, const QuantizedBlock& x, int row, Simd::I (&sum)[N]) {
    Simd::dot_q4<N>(p, x.q[row], sum);
  }
};

struct Q8Format {
  static constexpr bool kHasMinimum = false;
  static constexpr size_t kBytes = kQ8BlockBytes, kScales = kQ8Scales, kMinima = 0;
  template <int N>
  static void dot(const uint8_t* p, const QuantizedBlock& x, int row, Simd::I (&sum)[N]) {
    Simd::dot_q8<N>(p, x.q[row], x.sum128 + row, sum);
  }
};

/// Rows row..row+N-1 of one panel; y points at the first of them.
template <class Format, int N>
[[gnu::noinline]] void quantized_piece(const PackedMatrix& w, int strip_index, const QuantizedBlock* panel, int row, float* y,
                                       size_t y_stride) {
  const size_t blocks = static_cast<size_t>(w.cols() / kBlock);
  const Strip strip = strip_of(w, strip_index);
  const uint8_t* p = strip.tile;
  Simd::F acc[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) acc[i] = Simd::zero();
  for (size_t b = 0; b < blocks; ++b, p += Format::kBytes) {
    const QuantizedBlock& x = panel[b];
#pragma GCC unroll 9
    for (size_t line = 0; line < Format::kBytes; line += 64) Simd::prefetch(p + kReadAhead + line);
    Simd::I sum[N];
    Format::template dot<N>(p + strip.half * Simd::kLanes * 4, x, row, sum);
    const Simd::F scale = Simd::load_half(p + Format::kScales + strip.half * Simd::kLanes * 2);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) acc[i] = Simd::fma(Simd::mul(Simd::to_float(sum[i]), Simd::set1(x.scale[row + i])), scale, acc[i]);
    if constexpr (Format::kHasMinimum) {
      const Simd::F minimum = Simd::load_half(p + Format::kMinima + strip.half * Simd::kLanes * 2);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) acc[i] = Simd::fma(minimum, Simd::set1(x.offset[row + i]), acc[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) store_strip(w, strip_index, y + static_cast<size_t>(i) * y_stride, acc[i]);
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
template <class Format, int N>
[[gnu::noinline]] void float_piece(const PackedMatrix& w, int strip_index, const float* x, size_t x_stride, int row, float* y,
                                   size_t y_stride) {
  const Strip strip = strip_of(w, strip_index);
  const uint8_t* weights = strip.tile + strip.half * (Format::kColumnBytes / kStripsPerTile);
  const float* rows = x + row * x_stride;
  Simd::F even[N], odd[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) even[i] = odd[i] = Simd::zero();
  const auto column = [&](int c, Simd::F(&sums)[N]) __attribute__((always_inline)) {
    const Simd::F weight = Format::load(weights + static_cast<size_t>(c) * Format::kColumnBytes);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) sums[i] = Simd::fma(Simd::set1(rows[i * x_stride + c]), weight, sums[i]);
  };
  const int cols = w.cols();
  int c = 0;
  for (; c + 2 <= cols; c += 2) {
    Simd::prefetch(weights + static_cast<size_t>(c) * Format::kColumnBytes + kReadAhead);
    column(c, even);
    column(c + 1, odd);
  }
  if (c < cols) column(c, even);
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) store_strip(w, strip_index, y + (row + i) * y_stride, Simd::add(even[i], odd[i]));
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
/// its weights stay in L1. run(strip, rows, first row) computes one piece.
template <class Run>
inline void for_each_strip(int n, int group, int most, int tile_begin, int tile_end, Run&& run) {
  for_each_piece(n, group, [&](int group_rows, int group_first) {
    for (int strip = tile_begin * kStripsPerTile; strip < tile_end * kStripsPerTile; ++strip) {
      for_each_piece(group_rows, most, [&](int rows, int first) { run(strip, rows, group_first + first); });
    }
  });
}

template <class Format>
void matmul_quantized_as(const PackedMatrix& w, const QuantizedBlock* x, int n, int tile_begin, int tile_end, float* y, size_t y_stride) {
  constexpr int kGroup = 8 * kTileRows;  // whole panels, which stay in the L2 cache
  const size_t blocks = static_cast<size_t>(w.cols() / kBlock);
  const auto panel_piece = [&](int strip, int first, int rows, int in_panel) {
    const QuantizedBlock* panel = x + static_cast<size_t>(first / kTileRows) * blocks;
    float* out = y + static_cast<size_t>(first + in_panel) * y_stride;
    switch (rows) {
      case 1: return quantized_piece<Format, 1>(w, strip, panel, in_panel, out, y_stride);
      case 2: return quantized_piece<Format, 2>(w, strip, panel, in_panel, out, y_stride);
      case 3: return quantized_piece<Format, 3>(w, strip, panel, in_panel, out, y_stride);
      case 4: return quantized_piece<Format, 4>(w, strip, panel, in_panel, out, y_stride);
      case 5: return quantized_piece<Format, 5>(w, strip, panel, in_panel, out, y_stride);
      case 6: return quantized_piece<Format, 6>(w, strip, panel, in_panel, out, y_stride);
      case 7: return quantized_piece<Format, 7>(w, strip, panel, in_panel, out, y_stride);
      case 8: return quantized_piece<Format, 8>(w, strip, panel, in_panel, out, y_stride);
    }
  };
  for (int group = 0; group < n; group += kGroup) {
    for (int strip = tile_begin * kStripsPerTile; strip < tile_end * kStripsPerTile; ++strip) {
      for (int first = group; first < n && first < group + kGroup; first += kTileRows) {
        const int rows = n - first < kTileRows ? n - first : kTileRows;
        for_each_piece(rows, kMaxRows, [&](int piece, int in_panel) { panel_piece(strip, first, piece, in_panel); });
      }
    }
  }
}

void matmul_quantized(const PackedMatrix& w, const QuantizedBlock* x, int n, int tile_begin, int tile_end, float* y, size_t y_stride) {
  if (w.format() == TileFormat::kQ4) {
    matmul_quantized_as<Q4Format>(w, x, n, tile_begin, tile_end, y, y_stride);
  } else {
    matmul_quantized_as<Q8Format>(w, x, n, tile_begin, tile_end, y, y_stride);
  }
}

template <class Format>
void matmul_float_as(const PackedMatrix& w, const float* x, size_t x_stride, int n, int tile_begin, int tile_end, float* y,
                     size_t y_stride) {
  constexpr int kGroup = 64;
  for_each_strip(n, kGroup, Simd::kMaxFloatRows, tile_begin, tile_end, [&](int strip, int rows, int row) {
    switch (rows) {
      case 1: return float_piece<Format, 1>(w, strip, x, x_stride, row, y, y_stride);
      case 2: return float_piece<Format, 2>(w, strip, x, x_stride, row, y, y_stride);
      case 3: return float_piece<Format, 3>(w, strip, x, x_stride, row, y, y_stride);
      case 4: return float_piece<Format, 4>(w, strip, x, x_stride, row, y, y_stride);
      case 5: return float_piece<Format, 5>(w, strip, x, x_stride, row, y, y_stride);
      case 6: return float_piece<Format, 6>(w, strip, x, x_stride, row, y, y_stride);
      case 7: return float_piece<Format, 7>(w, strip, x, x_stride, row, y, y_stride);
      case 8: return float_piece<Format, 8>(w, strip, x, x_stride, row, y, y_stride);
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
