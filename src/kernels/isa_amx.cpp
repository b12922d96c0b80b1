// AMX int8 tiles (Intel, from Sapphire Rapids on): matrix products of several rows at ten times the rate of vector dot products.
// Everything else, and products of few rows, are the AVX-512 unit's. Integer sums are exact and every float is rounded where that
// unit rounds it, so that both give the same bytes, and which of them computes a row may depend on the number of rows.
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // as in isa_avx512.cpp
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>

#include "kernels/isa.h"

namespace aerie::kernels {
namespace {

constexpr int kGroupRows = 128;  // rows whose sums wait while a chunk of the weights is in the L1 cache
constexpr size_t kChunk = 24;    // blocks of weights that are kept unpacked, 24 kB

// Tile registers, all configured at once for M activation rows. C [M][16] int32 = A [M][columns] int8 * B, whose row j holds four
// columns of each of the 16 output rows: the order in which PackedMatrix stores them. Two of each, for two products in flight.
// Macros, because the intrinsics paste the number into an instruction's text.
#define AERIE_C0 0  // C: M x 64 bytes
#define AERIE_C1 1
#define AERIE_A0 2  // A: M x 64 bytes, the high and the low bytes of a block (kQ4); M x 32 bytes, one of the two (kQ8)
#define AERIE_A1 3
#define AERIE_B0 4  // B: 16 x 64 bytes, 16 * w for the high bytes and w for the low ones (kQ4); 8 x 64 bytes (kQ8)
#define AERIE_B1 5
#define AERIE_PRODUCT(c, a, a_bytes, b, b_bytes) \
  do {                                           \
    _tile_zero(c);                               \
    _tile_loadd(a, a_bytes, 64);                 \
    _tile_loadd(b, b_bytes, 64);                 \
    _tile_dpbsud(c, a, b);                       \
  } while (false)

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// The thread's tile configuration while a product uses it. Other code of the process may use tiles too (PyTorch's matrix products do), so
/// what the last call left is never believed, and what was found is put back.
class Tiles {
 public:
  Tiles() { asm volatile("sttilecfg %0" : "=m"(found_)); }
  ~Tiles() {
    if (found_.palette != 0) {
      load(found_);
    } else {
      asm volatile("tilerelease");
    }
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  void configure(int rows, int block_bytes) {
    if (rows_ == rows) return;
    TileConfig config;
    const auto set = [&](int tile, int tile_rows, int bytes) {
      config.rows[tile] = static_cast<uint8_t>(tile_rows);
      config.row_bytes[tile] = static_cast<uint16_t>(bytes);
    };
    for (const int tile : {AERIE_C0, AERIE_C1}) set(tile, rows, 64);
    for (const int tile : {AERIE_A0, AERIE_A1}) set(tile, rows, block_bytes);
    for (const int tile : {AERIE_B0, AERIE_B1}) set(tile, block_bytes / 4, 64);
    load(config);
    rows_ = rows;
  }

 private:
  // Not the intrinsic: GCC 12's tells the compiler of the first eight bytes only.
  static void load(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  TileConfig found_;
  int rows_ = 0;
};

constexpr int kInFlight = 2;

/// Products of a round, [M][16] each: of four blocks (kQ4), or of the high and the low bytes of two (kQ8).
struct Products {
  alignas(64) int32_t c[kInFlight][kTileRows * kTileRows];

  void store() {
    _tile_stored(AERIE_C0, c[0], 64);
    _tile_stored(AERIE_C1, c[1], 64);
  }
};

__m512 load_half(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }

struct Q4Format {
  static constexpr bool kHasMinimum = true;
  static constexpr size_t kBytes = kQ4BlockBytes, kScales = kQ4Scales;
  static constexpr size_t kUnpackedBytes = 1024;
  static constexpr size_t kBlocks = 2;  // that one round multiplies
  static constexpr int kTileColumns = 64;

  static void unpack(const uint8_t* p, uint8_t* out) {
    const __m512i nibble = _mm512_set1_epi8(0xf), high_nibble = _mm512_set1_epi8(static_cast<char>(0xf0));
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i both = _mm512_loadu_si512(p + 64 * j);
      uint8_t* wide = out + 128 * j;
      _mm512_store_si512(wide, _mm512_and_si512(_mm512_slli_epi16(both, 4), high_nibble));
      _mm512_store_si512(wide + 64, _mm512_and_si512(both, high_nibble));
      _mm512_store_si512(wide + 512, _mm512_and_si512(both, nibble));
      _mm512_store_si512(wide + 576, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
    }
  }
  /// A round that has one block left multiplies it twice.
  static void multiply(const uint8_t* /*p*/, const uint8_t* unpacked, const QuantizedBlock* x, size_t left, Products& out) {
    const size_t second = left > 1 ? 1 : 0;
    AERIE_PRODUCT(AERIE_C0, AERIE_A0, x->q[0], AERIE_B0, unpacked);
    AERIE_PRODUCT(AERIE_C1, AERIE_A1, x[second].q[0], AERIE_B1, unpacked + second * kUnpackedBytes);
    out.store();
  }
  static __m512i sum(const Products& products, size_t block, int row, int32_t /*start*/) {
    return _mm512_load_si512(products.c[block] + row * kTileRows);
  }
};

struct Q8Format {
  static constexpr bool kHasMinimum = false;
  static constexpr size_t kBytes = kQ8BlockBytes, kScales = kQ8Scales;
  static constexpr size_t kUnpackedBytes = 0;
  static constexpr size_t kBlocks = 1;
  static constexpr int kTileColumns = 32;

  static void unpack(const uint8_t*, uint8_t*) {}
  static void multiply(const uint8_t* p, const uint8_t* /*unpacked*/, const QuantizedBlock* x, size_t /*left*/, Products& out) {
    AERIE_PRODUCT(AERIE_C0, AERIE_A0, x->q[0], AERIE_B0, p);
    AERIE_PRODUCT(AERIE_C1, AERIE_A1, x->q[0] + kBlock, AERIE_B1, p);
    out.store();
  }
  static __m512i sum(const Products& products, size_t /*block*/, int row, int32_t start) {
    const __m512i high = _mm512_load_si512(products.c[0] + row * kTileRows), low = _mm512_load_si512(products.c[1] + row * kTileRows);
    return _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, 4), low), _mm512_set1_epi32(start));
  }
};

/// What add_piece() does its work on: blocks [begin, end) of a tile.
struct Chunk {
  const uint8_t* tile;
  uint8_t* unpacked;  // block `begin` first
  size_t begin, end;
  bool unpack;  // the first piece of rows unpacks for all
};

/// Adds a chunk times the first N rows of a panel to `acc` [N][16]. The tiles multiply one round of blocks while the vector
/// units scale and add the products of the round before.
template <class Format, int N>
[[gnu::noinline]] void add_piece(Tiles& tiles, const Chunk& chunk, const QuantizedBlock* panel, float* acc) {
  constexpr size_t kRound = Format::kBlocks;
  const auto unpack_round = [&](size_t round_begin) __attribute__((always_inline)) {
    for (size_t b = round_begin; b < std::min(round_begin + kRound, chunk.end); ++b) {
      const uint8_t* p = chunk.tile + b * Format::kBytes;
#pragma GCC unroll 9
      for (size_t line = 0; line < Format::kBytes; line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(p + kReadAhead + line), _MM_HINT_T0);
      Format::unpack(p, chunk.unpacked + (b - chunk.begin) * Format::kUnpackedBytes);
    }
  };
  __m512 sums[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) sums[i] = _mm512_load_ps(acc + i * kTileRows);
  const auto add_block = [&](const Products& products, size_t b, size_t in_round) __attribute__((always_inline)) {
    const uint8_t* p = chunk.tile + b * Format::kBytes;
    const QuantizedBlock& x = panel[b];
    const __m512 scale = load_half(p + Format::kScales);
    __m512 minimum = _mm512_setzero_ps();
    if constexpr (Format::kHasMinimum) minimum = load_half(p + kQ4Minima);
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
      const __m512 product = _mm512_cvtepi32_ps(Format::sum(products, in_round, i, x.sum128[i]));
      sums[i] = _mm512_fmadd_ps(_mm512_mul_ps(product, _mm512_set1_ps(x.scale[i])), scale, sums[i]);
      if constexpr (Format::kHasMinimum) sums[i] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x.offset[i]), sums[i]);
    }
  };
  tiles.configure(N, Format::kTileColumns);
  Products products[2];
  if (chunk.unpack) unpack_round(chunk.begin);
  int turn = 0;
  for (size_t b = chunk.begin; b < chunk.end + kRound; b += kRound, turn ^= 1) {
    if (chunk.unpack) unpack_round(b + kRound);
    if (b < chunk.end) {
      Format::multiply(chunk.tile + b * Format::kBytes, chunk.unpacked + (b - chunk.begin) * Format::kUnpackedBytes, panel + b,
                       chunk.end - b, products[turn]);
    }
    if (b == chunk.begin) continue;
    for (size_t done = b - kRound; done < std::min(b, chunk.end); ++done) add_block(products[turn ^ 1], done, done - (b - kRound));
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) _mm512_store_ps(acc + i * kTileRows, sums[i]);
}

template <class Format>
using Piece = void (*)(Tiles&, const Chunk&, const QuantizedBlock*, float*);
// clang-format off
template <class Format>
constexpr Piece<Format> kPieces[kTileRows + 1] = {nullptr,
                                                   add_piece<Format, 1>,  add_piece<Format, 2>,  add_piece<Format, 3>,  add_piece<Format, 4>,
                                                   add_piece<Format, 5>,  add_piece<Format, 6>,  add_piece<Format, 7>,  add_piece<Format, 8>,
                                                   add_piece<Format, 9>,  add_piece<Format, 10>, add_piece<Format, 11>, add_piece<Format, 12>,
                                                   add_piece<Format, 13>, add_piece<Format, 14>, add_piece<Format, 15>, add_piece<Format, 16>};
// clang-format on

template <class Format>
void matmul_as(const PackedMatrix& w, const QuantizedBlock* x, int n, int tile_begin, int tile_end, float* y, size_t y_stride) {
  const size_t blocks = static_cast<size_t>(w.cols() / kBlock), chunks = (blocks + kChunk - 1) / kChunk;
  alignas(64) uint8_t unpacked[kChunk * Format::kUnpackedBytes + 64];
  alignas(64) float acc[kGroupRows * kTileRows];
  Tiles tiles;
  for (int group = 0; group < n; group += kGroupRows) {
    const int rows = std::min(kGroupRows, n - group);
    for (int t = tile_begin; t < tile_end; ++t) {
      const uint8_t* tile = w.tile(t);
      std::fill_n(acc, rows * kTileRows, 0.0f);
      for (size_t c = 0; c < chunks; ++c) {
        Chunk chunk{tile, unpacked, c * blocks / chunks, (c + 1) * blocks / chunks, true};
        for (int row = 0; row < rows; row += kTileRows, chunk.unpack = false) {
          const QuantizedBlock* panel = x + static_cast<size_t>((group + row) / kTileRows) * blocks;
          kPieces<Format>[std::min(kTileRows, rows - row)](tiles, chunk, panel, acc + row * kTileRows);
        }
      }
      const int first = t * kTileRows, left = std::min(kTileRows, w.rows() - first);
      const __mmask16 mask = static_cast<__mmask16>((1u << left) - 1);
      for (int r = 0; r < rows; ++r) _mm512_mask_storeu_ps(y + (group + r) * y_stride + first, mask, _mm512_load_ps(acc + r * kTileRows));
    }
  }
}

void matmul_quantized(const PackedMatrix& w, const QuantizedBlock* x, int n, int tile_begin, int tile_end, float* y, size_t y_stride) {
  if (n <= kAmxFewRows) {
    avx512_table().matmul_quantized(w, x, n, tile_begin, tile_end, y, y_stride);
  } else if (w.format() == TileFormat::kQ4) {
    matmul_as<Q4Format>(w, x, n, tile_begin, tile_end, y, y_stride);
  } else {
    matmul_as<Q8Format>(w, x, n, tile_begin, tile_end, y, y_stride);
  }
}

}  // namespace

const Kernels& amx_table() {
  static const Kernels table = [] {
    Kernels kernels = avx512_table();
    kernels.isa = Isa::kAmx;
    kernels.name = "amx";
    kernels.matmul_quantized = matmul_quantized;
    return kernels;
  }();
  return table;
}

}  // namespace aerie::kernels
#endif
