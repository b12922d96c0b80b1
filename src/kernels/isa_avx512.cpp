// The AVX-512 unit: F, BW, VL, DQ and VNNI.
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own intrinsics leave the operand of an unmasked operation undefined and then warn of it (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstring>

#include "kernels/isa.h"

namespace aerie::kernels {
namespace {

/// Sixteen lanes, and the few operations the shared algorithms are written in.
struct Simd {
  static constexpr int kLanes = 16;
  // Register budgets of the shared algorithms: 32 registers.
  static constexpr int kMaxFloatRows = 8;  // rows per piece in matmul_float, two accumulators each
  static constexpr int kQueryGroup = 6;    // queries that share a load in attention
  static constexpr int kValueVectors = 4;  // vectors of head_dim that attention accumulates per query at once
  using F = __m512;
  using I = __m512i;

  static __mmask16 first(int n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1); }

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float v) { return _mm512_set1_ps(v); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void store_n(float* p, F v, int n) { _mm512_mask_storeu_ps(p, first(n), v); }
  static F load_kv(const float* p) { return load(p); }
  static F load_kv_n(const float* p, int n) { return load_n(p, n); }
  static F load_kv(const uint16_t* p) { return load_half(p); }
  static F load_kv_n(const uint16_t* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
  static F load_half(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  static F load_bf16(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16));
  }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  // Both give `b` where either is NaN.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  /// Lanes below `n` from a, the others from b.
  static F select_first(int n, F a, F b) { return _mm512_mask_blend_ps(first(n), b, a); }
  static unsigned equal_mask(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static float reduce_add(F v) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
  }
  static float reduce_max(F v) {
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
  }

  static F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static I round_to_int(F v) { return _mm512_cvtps_epi32(v); }
  static F round(F v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// 2^n for integral n in [-126, 127].
  static F exponent(F n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(round_to_int(n), _mm512_set1_epi32(127)), 23)); }
  static I set1_int(int v) { return _mm512_set1_epi32(v); }
  static I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I shift_left_4(I v) { return _mm512_slli_epi32(v, 4); }
  static I shift_right_4(I v) { return _mm512_srai_epi32(v, 4); }
  /// The bit patterns of |v|, and their maximum: as integers they order like the values, with infinity and NaN on top.
  static I abs_bits(F v) { return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)); }
  static I max_int(I a, I b) { return _mm512_max_epi32(a, b); }
  static int reduce_max_int(I v) { return _mm512_reduce_max_epi32(v); }
  static int reduce_add_int(I v) { return _mm512_reduce_add_epi32(v); }
  static void store_int8(int8_t* p, I v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v)); }

  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

  // Quantised blocks: 32 columns of 16 output rows against N activation rows, the quants of whose blocks lie behind each other: sum[i]
  // becomes the sum over columns of weight * (16 high + low), plus start[i] for kQ8. A quad of columns is read once and meets all rows;
  // every row has a chain of additions of its own for each plane, so that none waits for another.
  static I load_int(const void* p) { return _mm512_loadu_si512(p); }
  static I four_columns(const int8_t* a) {
    int four;
    __builtin_memcpy(&four, a, sizeof four);
    return _mm512_set1_epi32(four);
  }
  template <int N>
  [[gnu::always_inline]] static void add_quad(I weights, const int8_t* a, I (&high)[N], I (&low)[N]) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) high[i] = _mm512_dpbusd_epi32(high[i], weights, four_columns(a + i * 2 * kBlock));
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) low[i] = _mm512_dpbusd_epi32(low[i], weights, four_columns(a + i * 2 * kBlock + kBlock));
  }
  template <int N>
  [[gnu::always_inline]] static void dot_q4(const uint8_t* p, const int8_t* a, I (&sum)[N]) {
    const I nibble = _mm512_set1_epi8(0xf);
    I low[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) sum[i] = low[i] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const I both = load_int(p + 64 * j);
      add_quad<N>(_mm512_and_si512(both, nibble), a + 8 * j, sum, low);
      add_quad<N>(_mm512_and_si512(_mm512_srli_epi16(both, 4), nibble), a + 8 * j + 4, sum, low);
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) sum[i] = add_int(shift_left_4(sum[i]), low[i]);
  }
  template <int N>
  [[gnu::always_inline]] static void dot_q8(const uint8_t* p, const int8_t* a, const int32_t* start, I (&sum)[N]) {
    I low[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      sum[i] = _mm512_setzero_si512();
      low[i] = _mm512_set1_epi32(start[i]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) add_quad<N>(load_int(p + 64 * j), a + 4 * j, sum, low);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) sum[i] = add_int(shift_left_4(sum[i]), low[i]);
  }
};

#include "kernels/attention-inl.h"
#include "kernels/elementwise-inl.h"
#include "kernels/matmul-inl.h"

}  // namespace

const Kernels& avx512_table() {
  static constexpr Kernels kTable = {Isa::kAvx512, "avx512", quantize_rows, matmul_quantized, matmul_float, rms_norm,
                                     silu_mul,     add,      rope,          attend_chunk,     argmax};
  return kTable;
}

}  // namespace aerie::kernels
#endif
