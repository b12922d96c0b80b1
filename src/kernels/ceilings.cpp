#include "kernels/ceilings.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>

#include "kernels/isa.h"

namespace aerie::kernels {
namespace {

uint64_t read_words(const void* from, size_t bytes) {
  const auto* words = static_cast<const uint64_t*>(from);
  std::array<uint64_t, 8> sum{};
  for (size_t i = 0; i < bytes / 8; i += 8) {
    __builtin_prefetch(reinterpret_cast<const char*>(words + i) + kReadAhead);
    for (size_t j = 0; j < 8; ++j) sum[j] ^= words[i + j];
  }
  uint64_t out = 0;
  for (const uint64_t value : sum) out ^= value;
  return out;
}

#if defined(__x86_64__)

// Each loop keeps kChains independent results, so that a new instruction can start every half cycle while others are under way. The
// empty asm statements stop the compiler from seeing that nothing of the results is new.
constexpr int kChains = 12;

__attribute__((target("avx2,fma"))) double run_float_avx2(int64_t rounds) {
  __m256 sum[kChains] = {};
  __m256 x = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& s : sum) s = _mm256_fmadd_ps(x, x, s);
    asm volatile("" : "+x"(x));
  }
  for (auto& s : sum) asm volatile("" : "+x"(s));
  return static_cast<double>(rounds) * kChains * 8 * 2;
}

__attribute__((target("avx2,fma"))) double run_int8_avx2(int64_t rounds) {
  __m256i sum[kChains] = {};
  __m256i u = _mm256_set1_epi8(3), s = _mm256_set1_epi8(-5);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& c : sum) {
      __m256i pairs = _mm256_maddubs_epi16(u, s);
      asm volatile("" : "+x"(pairs));  // each chain its own product
      c = _mm256_add_epi32(c, _mm256_madd_epi16(pairs, ones));
    }
    asm volatile("" : "+x"(u), "+x"(s));
  }
  for (auto& c : sum) asm volatile("" : "+x"(c));
  return static_cast<double>(rounds) * kChains * 32 * 2;
}

__attribute__((target("avx2"))) uint64_t read_avx2(const void* from, size_t bytes) {
  const auto* lines = static_cast<const __m256i*>(from);
  __m256i a = _mm256_setzero_si256(), b = a;
  for (size_t i = 0; i < bytes / 32; i += 2) {
    _mm_prefetch(reinterpret_cast<const char*>(lines + i) + kReadAhead, _MM_HINT_T0);
    a = _mm256_xor_si256(a, _mm256_load_si256(lines + i));
    b = _mm256_xor_si256(b, _mm256_load_si256(lines + i + 1));
  }
  alignas(32) uint64_t out[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), _mm256_xor_si256(a, b));
  return out[0] ^ out[1] ^ out[2] ^ out[3];
}

__attribute__((target("avx512f"))) double run_float_avx512(int64_t rounds) {
  __m512 sum[kChains] = {};
  __m512 x = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& s : sum) s = _mm512_fmadd_ps(x, x, s);
    asm volatile("" : "+v"(x));
  }
  for (auto& s : sum) asm volatile("" : "+v"(s));
  return static_cast<double>(rounds) * kChains * 16 * 2;
}

__attribute__((target("avx512f,avx512vnni"))) double run_int8_avx512(int64_t rounds) {
  __m512i sum[kChains] = {};
  __m512i u = _mm512_set1_epi8(3), s = _mm512_set1_epi8(-5);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& c : sum) c = _mm512_dpbusd_epi32(c, u, s);
    asm volatile("" : "+v"(u), "+v"(s));
  }
  for (auto& c : sum) asm volatile("" : "+v"(c));
  return static_cast<double>(rounds) * kChains * 64 * 2;
}

__attribute__((target("amx-tile,amx-int8"))) double run_int8_tiles(int64_t rounds) {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  const Config config;
  Config before;  // what this thread's products are configured for, which they remember
  // Not the intrinsics: GCC 12's tell the compiler of the first eight bytes only.
  asm volatile("sttilecfg %0" : "=m"(before));
  asm volatile("ldtilecfg %0" : : "m"(config));
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbsud(0, 4, 5);
    _tile_dpbsud(1, 4, 5);
    _tile_dpbsud(2, 4, 5);
    _tile_dpbsud(3, 4, 5);
  }
  asm volatile("ldtilecfg %0" : : "m"(before));
  return static_cast<double>(rounds) * 4 * 16 * 16 * 64 * 2;
}

#endif

constexpr Unit kAvxUnits[] = {Unit::kInt8, Unit::kFloat32}, kAmxUnits[] = {Unit::kInt8, Unit::kFloat32, Unit::kInt8Tiles};

}  // namespace

const char* unit_name(Unit unit) {
  switch (unit) {
    case Unit::kInt8: return "int8";
    case Unit::kInt8Tiles: return "int8_tiles";
    case Unit::kFloat32: return "float32";
  }
  return "unknown";
}

std::span<const Unit> units_of(Isa isa) {
  if (isa == Isa::kScalar) return {};
  return isa == Isa::kAmx ? std::span<const Unit>(kAmxUnits) : std::span<const Unit>(kAvxUnits);
}

Unit int8_unit(Isa isa, int rows) { return isa == Isa::kAmx && rows > kAmxFewRows ? Unit::kInt8Tiles : Unit::kInt8; }

double run_unit([[maybe_unused]] Isa isa, [[maybe_unused]] Unit unit, [[maybe_unused]] int64_t rounds) {
#if defined(__x86_64__)
  const bool wide = isa == Isa::kAvx512 || isa == Isa::kAmx;
  switch (unit) {
    case Unit::kInt8: return wide ? run_int8_avx512(rounds) : run_int8_avx2(rounds);
    case Unit::kInt8Tiles: return run_int8_tiles(rounds);
    case Unit::kFloat32: return wide ? run_float_avx512(rounds) : run_float_avx2(rounds);
  }
#endif
  return 0;
}

uint64_t read_all([[maybe_unused]] Isa isa, const void* from, size_t bytes) {
#if defined(__x86_64__)
  if (isa != Isa::kScalar) return read_avx2(from, bytes);
#endif
  return read_words(from, bytes);
}

}  // namespace aerie::kernels
