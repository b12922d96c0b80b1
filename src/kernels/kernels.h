// Numeric kernels: one table of functions per instruction set, chosen once at start-up. They know nothing of models.
//
// The law of this folder (docs/architecture.md, "same bytes"): the result of a row depends on that row, the weights and, for
// attention, the length of its own context. It does not depend on the number of rows computed together, on the row's place
// among them, on threads, or on how the work was cut. Each row owns its accumulators and the order of additions over k is fixed.
// Different instruction sets may differ from each other in the last bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace aerie::kernels {

enum class Isa { kScalar, kAvx2, kAvxVnni, kAvx512, kAmx };

/// Weights are stored in tiles of 16 output rows, so that one vector lane is one output row. Tile t holds the output rows
/// 16t..16t+15; rows beyond the matrix are zero. Bytes of a tile, for k input columns:
/// kQ4   k % 32 == 0. Per block of 32 columns 320 bytes: 4 x 64 bytes of nibbles, 16 fp16 scales d, 16 fp16 minima m; the weight
///       is d * q + m with q in 0..15. In the j-th 64 bytes (j = 0..3), byte 4*lane + b holds column 8j + b of output row `lane`
///       in its low nibble and column 8j + 4 + b in its high nibble (b = 0..3).
/// kQ8   k % 32 == 0. Per block 544 bytes: 512 bytes of quants, byte 64*j + 4*lane + b being column 4j + b (j = 0..7), stored as
///       q + 128 (unsigned); then 16 fp16 scales. The tile is padded to a multiple of 64. Weight = d * (q - 128).
///       (Scales apart from their quants would let a tile be read in aligned vectors, but at a third of the speed: a gap in what
///       is otherwise one sequential stream makes the hardware prefetcher start again.)
/// kBf16 k columns of 16 bf16 (32 bytes each): column c, lane.
/// kF32  k columns of 16 float (64 bytes each).
enum class TileFormat { kQ4, kQ8, kBf16, kF32 };

inline constexpr int kTileRows = 16;
inline constexpr int kBlock = 32;                // columns that share one scale
inline constexpr int kActivationMax = 127 * 16;  // of a quantised activation (see QuantizedBlock)
inline constexpr int kKvBlock = 16;              // positions in one block of a KV cache
inline constexpr int kAttentionChunk = 128;      // positions that one attention task reads; fixed, so that splits depend on length alone

size_t tile_bytes(TileFormat format, int cols);

/// A [rows, cols] weight matrix in tiles. Its memory is 64-byte aligned, in huge pages where the system grants them; matrices
/// share regions of it, which go back to the system when the last matrix in them dies. Where the system has no memory left
/// the matrix is empty().
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(TileFormat format, int rows, int cols);
  PackedMatrix(PackedMatrix&& other) noexcept : PackedMatrix() { *this = std::move(other); }
  PackedMatrix& operator=(PackedMatrix&& other) noexcept {
    std::swap(format_, other.format_);
    std::swap(rows_, other.rows_);
    std::swap(cols_, other.cols_);
    std::swap(tile_bytes_, other.tile_bytes_);
    std::swap(bytes_, other.bytes_);
    std::swap(memory_, other.memory_);
    return *this;
  }

  TileFormat format() const { return format_; }
  int rows() const { return rows_; }
  int cols() const { return cols_; }
  int tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  size_t bytes() const { return bytes_; }
  uint8_t* tile(int t) { return memory_.get() + static_cast<size_t>(t) * tile_bytes_; }
  const uint8_t* tile(int t) const { return memory_.get() + static_cast<size_t>(t) * tile_bytes_; }
  bool empty() const { return memory_ == nullptr; }

 private:
  TileFormat format_ = TileFormat::kF32;
  int rows_ = 0, cols_ = 0;
  size_t tile_bytes_ = 0, bytes_ = 0;
  std::shared_ptr<uint8_t> memory_;  // shares the ownership of its region
};

// Packing. `row` r of the source goes to output row r of the matrix; `source` points at that one row.
// Q4_0 and Q4_1 keep their quants and scales exactly (a Q4_0 minimum is -8 d, exact in fp16 unless it overflows); Q8_0 likewise.
void pack_row_q4_0(PackedMatrix& matrix, int row, const uint8_t* source);
void pack_row_q4_1(PackedMatrix& matrix, int row, const uint8_t* source);
void pack_row_q8_0(PackedMatrix& matrix, int row, const uint8_t* source);
/// One block of a row of a kQ4 matrix: 32 quants in 0..15, scale and minimum rounded to f16 (in its range, as the caller sees to).
void pack_block_q4(PackedMatrix& matrix, int row, int block, float scale, float minimum, const uint8_t* quants);
/// One block of a row of a kQ8 matrix: 32 signed quants, the scale rounded to f16.
void pack_block_q8(PackedMatrix& matrix, int row, int block, float scale, const int8_t* quants);
/// A row rounded to 8 bits, as GGML's Q8_0 is made: per 32 values the scale max|w| / 127. No weight moves by more than 0.51 scales. False,
/// and the row untouched, if a value is beyond 127 * 65504 (the scale would be no finite f16) or NaN.
bool pack_row_rounded(PackedMatrix& matrix, int row, const float* source);
void pack_row_bf16(PackedMatrix& matrix, int row, const uint16_t* source);
void pack_row_f32(PackedMatrix& matrix, int row, const float* source);
/// One row of the matrix as float32 (the exact stored weight).
void unpack_row(const PackedMatrix& matrix, int row, float* out);

/// Activations rounded to signed 12 bits with one scale per 32 columns: scale = max|x| / 2032, v = round to nearest even(x / scale).
/// Each v is kept as two signed bytes, v = 16 * high + low with low in [-8, 7], since the dot-product instructions take bytes.
/// Eight bits alone flip the best token of SmolLM2-135M at 2 % of the positions of its own answers (docs/performance.md); the low
/// bytes cost a second dot product, but no memory traffic, so that a single row stays as fast as memory allows. Four more bits
/// rather than seven: 16 * w of a 4-bit weight w still fits a byte, so that a unit whose dot products are 64 bytes long gets
/// high * (16 w) + low * w from a single one.
/// Rows are kept in panels of 16, a panel's blocks behind each other, so that what a kernel reads of the rows beside each other lies
/// at fixed distances: block b of row r is in element r / 16 * (k / 32) + b, at place r % 16. The size is an odd number of cache
/// lines on purpose: a row alone then spreads over all sets of the L1 cache.
struct alignas(64) QuantizedBlock {
  int8_t q[kTileRows][2 * kBlock];  // high bytes, then low bytes
  float scale[kTileRows];
  float offset[kTileRows];    // scale * sum(v): what a weight block's minimum multiplies
  int32_t sum128[kTileRows];  // -128 * sum(v): the initial accumulator of a kQ8 block
};
/// How many of them n rows of k values take.
inline size_t quantized_blocks(int n, int k) {
  return static_cast<size_t>((n + kTileRows - 1) / kTileRows) * static_cast<size_t>(k / kBlock);
}

/// The key or value of a token for one kv head is rounded to f16 where it is stored (f32 for the float32 reference).
enum class KvType { kF16, kF32 };
inline size_t kv_element_bytes(KvType type) { return type == KvType::kF16 ? sizeof(uint16_t) : sizeof(float); }

/// One KV block holds 16 positions of all kv heads of a layer: for each kv head first the keys as [head_dim][16 positions],
/// then the values as [16 positions][head_dim]. Elements are f16 or f32.
inline size_t kv_block_elements(int kv_heads, int head_dim) { return static_cast<size_t>(kv_heads) * 2 * head_dim * kKvBlock; }

/// One kv head's share of an attention call: `n` query vectors (rows x grouped heads) against positions [begin, end) of a cache.
struct AttendChunk {
  KvType type = KvType::kF16;
  const void* const* blocks = nullptr;  // blocks[p / 16] holds position p
  int kv_head = 0;
  int head_dim = 0;        // multiple of 8
  int begin = 0, end = 0;  // begin % kAttentionChunk == 0, end - begin <= kAttentionChunk
  int n = 0;
  const float* const* q = nullptr;  // [n] pointers to head_dim values, already scaled by 1/sqrt(head_dim)
  const int* visible = nullptr;     // [n] query i sees positions < visible[i] ...
  const int* first = nullptr;       // [n] ... and >= first[i]; null: from 0 on
  // Results: softmax numerators' weighted sum of values (not normalised), the maximum score and the sum of numerators.
  float* acc = nullptr;  // [n][head_dim]
  float* max = nullptr;  // [n]   -inf where nothing of the chunk is visible
  float* sum = nullptr;  // [n]
  // Rows of a tree. Behind `tail` query i sees only the positions whose bits are set in ancestors[i] (bit j: position tail + j), its own
  // included; visible[i] is tail + how many these are. In order they count as the positions tail, tail + 1, ... in `begin`, `end` and
  // every sum, so that a row of a tree has the bytes it would have if its branch stood alone.
  const uint64_t* ancestors = nullptr;  // [n]; null: all of [tail, visible[i])
  int tail = 0;
};

/// The functions of one instruction set. All pointers are non-null. x and y rows are `stride` floats apart.
struct Kernels {
  Isa isa;
  const char* name;

  /// n rows of k values (k % 32 == 0), x_stride apart, into rows first, first + 1, ... of `out`.
  void (*quantize_rows)(const float* x, size_t x_stride, int first, int n, int k, QuantizedBlock* out);

  /// y[r][16t + lane] = W x_r for tiles [tile_begin, tile_end) and rows 0..n-1; any n >= 1. Output rows beyond the matrix are
  /// not written. One function per weight format; the quantised ones take quantised rows.
  void (*matmul_quantized)(const PackedMatrix& w, const QuantizedBlock* x, int n, int tile_begin, int tile_end, float* y, size_t y_stride);
  void (*matmul_float)(const PackedMatrix& w, const float* x, size_t x_stride, int n, int tile_begin, int tile_end, float* y,
                       size_t y_stride);

  /// y = x / sqrt(mean(x^2) + eps) * weight; in float32 (arXiv 1910.07467). y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int width, float* y);
  /// y = gate / (1 + exp(-gate)) * up.  y may be gate.
  void (*silu_mul)(const float* gate, const float* up, int width, float* y);
  /// y += x
  void (*add)(const float* x, int width, float* y);
  /// Rotates `heads` vectors of head_dim in place: the pair (j, j + head_dim/2) turns by the angle with cosine cos[j], sine sin[j]
  /// (the "half-split" order of Hugging Face checkpoints; arXiv 2104.09864).
  void (*rope)(float* x, int heads, int head_dim, const float* cos, const float* sin);
  void (*attend_chunk)(const AttendChunk& chunk);
  /// Index of the largest value, the first one among equals; -1 if no value is comparable (all NaN).
  int (*argmax)(const float* x, int n);
};

/// The table of `isa`, or an error that names what this CPU or operating system lacks.
Expected<const Kernels*> kernels_for(Isa isa);
/// The best table this machine can run.
const Kernels& best_kernels();
/// Parses "scalar", "avx2", "avxvnni", "avx512", "amx".
Expected<Isa> parse_isa(std::string_view name);
/// The instruction sets that this machine can run, slowest first. Tests run on all of them.
std::vector<Isa> available_isas();

/// Writes one position's keys and values (each kv_heads x head_dim floats) into its block, rounded to `type`; values beyond
/// the range of f16 are clamped to it, so that no infinity can reach another row's sum.
void store_kv(KvType type, void* block, int position, int kv_heads, int head_dim, const float* k, const float* v);

/// Combines the partial results of a query's chunks, in order of position, into softmax-weighted values. `acc`, `max`, `sum`
/// of chunk c lie c * the given strides after those of chunk 0; chunks that start at or beyond `visible` are not read.
void merge_chunks(int chunks, int visible, int head_dim, const float* acc, size_t acc_stride, const float* max, const float* sum,
                  size_t scalar_stride, float* out);

/// RoPE's frequencies theta^(-2j/head_dim), head_dim/2 of them.
void rope_frequencies(int head_dim, float theta, float* out);
/// cos and sin of position * frequencies[j] for `pairs` pairs; angles are formed in float32, as the field's Python does.
void rope_angles(int position, const float* frequencies, int pairs, float* cos, float* sin);
/// The same with the plain frequencies of base theta.
void rope_angles(int position, int head_dim, float theta, float* cos, float* sin);

}  // namespace aerie::kernels
