// Eight lanes of AVX2, with the dot products of AVX-VNNI where the unit is compiled for it (the sums are integers: same bytes). Included
// inside the anonymous namespace of such a unit.

/// Eight lanes, and the few operations the shared algorithms are written in.
struct Simd {
  static constexpr int kLanes = 8;
  // Register budgets of the shared algorithms: 16 registers.
  static constexpr int kMaxFloatRows = 6;  // rows per piece in matmul_float, two accumulators each
  static constexpr int kQueryGroup = 6;    // queries that share a load in attention
  static constexpr int kValueVectors = 2;  // vectors of head_dim that attention accumulates per query at once
  using F = __m256;
  using I = __m256i;

  static I first(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float v) { return _mm256_set1_ps(v); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load_n(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static void store_n(float* p, F v, int n) { _mm256_maskstore_ps(p, first(n), v); }
  static F load_kv(const float* p) { return load(p); }
  static F load_kv_n(const float* p, int n) { return load_n(p, n); }
  static F load_kv(const uint16_t* p) { return load_half(p); }
  static F load_kv_n(const uint16_t* p, int n) {
    uint16_t some[kLanes] = {};
    __builtin_memcpy(some, p, static_cast<size_t>(n) * sizeof *p);
    return load_half(some);
  }
  static F load_half(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  static F load_bf16(const void* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
  }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  // Both give `b` where either is NaN.
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  /// Lanes below `n` from a, the others from b.
  static F select_first(int n, F a, F b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(first(n))); }
  static unsigned equal_mask(F a, F b) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ))); }
  static float reduce_add(F v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static float reduce_max(F v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }

  static F to_float(I v) { return _mm256_cvtepi32_ps(v); }
  static I round_to_int(F v) { return _mm256_cvtps_epi32(v); }
  static F round(F v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// 2^n for integral n in [-126, 127].
  static F exponent(F n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(round_to_int(n), _mm256_set1_epi32(127)), 23)); }
  static I set1_int(int v) { return _mm256_set1_epi32(v); }
  static I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I shift_left_4(I v) { return _mm256_slli_epi32(v, 4); }
  static I shift_right_4(I v) { return _mm256_srai_epi32(v, 4); }
  /// The bit patterns of |v|, and their maximum: as integers they order like the values, with infinity and NaN on top.
  static I abs_bits(F v) { return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff)); }
  static I max_int(I a, I b) { return _mm256_max_epi32(a, b); }
  static int reduce_max_int(I v) {
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
  }
  static int reduce_add_int(I v) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
  }
  static void store_int8(int8_t* p, I v) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  }

  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

  // Quantised blocks: 32 columns of 8 output rows, four columns to a 32-bit lane, against N activation rows, the quants
  // of whose blocks lie behind each other: sum[i] becomes the sum over columns of weight * (16 high + low), plus start[i] for kQ8.
  struct QuantBlock {
    I w[8];
  };
  static I load_int(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void load_q4(const uint8_t* p, QuantBlock& block) {
    const I low = _mm256_set1_epi8(0xf);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const I both = load_int(p + 64 * j);
      block.w[2 * j] = _mm256_and_si256(both, low);
      block.w[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    }
  }
  static void load_q8(const uint8_t* p, QuantBlock& block) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) block.w[j] = load_int(p + 64 * j);
  }
  static I four_columns(const int8_t* a) {
    int four;
    __builtin_memcpy(&four, a, sizeof four);
    return _mm256_set1_epi32(four);
  }
#if defined(__AVXVNNI__)
  static I dot_plane_q8(const QuantBlock& block, const int8_t* a, int start) {
    I sum = _mm256_set1_epi32(start);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sum = _mm256_dpbusd_avx_epi32(sum, block.w[j], four_columns(a + 4 * j));
    return sum;
  }
  static I dot_plane_q4(const QuantBlock& block, const int8_t* a) { return dot_plane_q8(block, a, 0); }
#else
  /// Sixteen products of at most 15 * 127 meet in one 16-bit lane: 30,480, which still fits.
  static I dot_plane_q4(const QuantBlock& block, const int8_t* a) {
    I sum = _mm256_maddubs_epi16(block.w[0], four_columns(a));
#pragma GCC unroll 7
    for (int j = 1; j < 8; ++j) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(block.w[j], four_columns(a + 4 * j)));
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
  }
  /// maddubs would saturate (2 * 255 * 127 is beyond 16 bits), so even and odd columns are widened and multiplied apart.
  static I dot_plane_q8(const QuantBlock& block, const int8_t* a, int start) {
    const I low = _mm256_set1_epi16(0xff);
    I sum = _mm256_set1_epi32(start);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const I four = four_columns(a + 4 * j);
      const I even = _mm256_madd_epi16(_mm256_and_si256(block.w[j], low), _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8));
      const I odd = _mm256_madd_epi16(_mm256_srli_epi16(block.w[j], 8), _mm256_srai_epi16(four, 8));
      sum = _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
    }
    return sum;
  }
#endif
  template <int N>
  [[gnu::always_inline]] static void dot_q4(const uint8_t* p, const int8_t* a, I (&sum)[N]) {
    QuantBlock block;
    load_q4(p, block);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      sum[i] = add_int(shift_left_4(dot_plane_q4(block, a + i * 2 * kBlock)), dot_plane_q4(block, a + i * 2 * kBlock + kBlock));
    }
  }
  template <int N>
  [[gnu::always_inline]] static void dot_q8(const uint8_t* p, const int8_t* a, const int32_t* start, I (&sum)[N]) {
    QuantBlock block;
    load_q8(p, block);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      sum[i] =
          add_int(shift_left_4(dot_plane_q8(block, a + i * 2 * kBlock, 0)), dot_plane_q8(block, a + i * 2 * kBlock + kBlock, start[i]));
    }
  }
};
