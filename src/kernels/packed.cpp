// Tiled weight matrices: memory, packing and unpacking. The layouts are described at TileFormat.
#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/half.h"
#include "base/page_memory.h"
#include "kernels/isa.h"

namespace aerie::kernels {
namespace {

uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
void store_u16(uint8_t* p, uint16_t value) { std::memcpy(p, &value, sizeof value); }

// Memory that matrices are cut from; it lives as long as one of them does.
struct Slab {
  explicit Slab(size_t bytes) : memory(bytes) {}
  PageMemory memory;
  size_t used = 0;
};

// Zeroed memory for one matrix. Most matrices of a small model are smaller than a huge page, so they share slabs of many.
std::shared_ptr<uint8_t> allocate_zeroed(size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr size_t kSlabBytes = 0;  // a slab each, so that reading past the end of a matrix is seen more often
#else
  constexpr size_t kSlabBytes = size_t{64} << 20;  // untouched pages of it cost nothing
#endif
  static std::mutex mutex;
  static std::weak_ptr<Slab> current;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Slab> slab = current.lock();
  if (slab == nullptr || slab->memory.size() - slab->used < bytes) {
    slab = std::make_shared<Slab>(std::max(kSlabBytes, (bytes + 63) / 64 * 64));
    if (slab->memory.empty()) return nullptr;
    current = slab;
  }
  uint8_t* memory = slab->memory.data() + slab->used;
  slab->used += (bytes + 63) / 64 * 64;
  return {slab, memory};
}

// Where one output row's share of a kQ4 block lies: the nibble of column c is in quants[byte(c)].
struct Q4Place {
  uint8_t* block;
  int lane;
  uint8_t& byte(int column) const { return block[64 * (column / 8) + 4 * lane + column % 4]; }
  static int shift(int column) { return column / 4 % 2 == 0 ? 0 : 4; }
  void set(int column, int quant) const {
    uint8_t& target = byte(column);
    target = static_cast<uint8_t>((target & ~(0xf << shift(column))) | quant << shift(column));
  }
  int get(int column) const { return byte(column) >> shift(column) & 0xf; }
  uint8_t* scale() const { return block + kQ4Scales + 2 * lane; }
  uint8_t* minimum() const { return block + kQ4Minima + 2 * lane; }
};

Q4Place q4_place(const PackedMatrix& matrix, int row, int block) {
  return {const_cast<uint8_t*>(matrix.tile(row / kTileRows)) + kQ4BlockBytes * static_cast<size_t>(block), row % kTileRows};
}

// GGML's 4-bit blocks keep columns 0..15 in the low nibbles of 16 bytes and columns 16..31 in the high ones.
void pack_nibbles(const Q4Place& place, const uint8_t* source) {
  for (int c = 0; c < 16; ++c) {
    place.set(c, source[c] & 0xf);
    place.set(c + 16, source[c] >> 4);
  }
}

uint8_t* q8_block(const PackedMatrix& matrix, int row, int block) {
  return const_cast<uint8_t*>(matrix.tile(row / kTileRows)) + kQ8BlockBytes * static_cast<size_t>(block);
}
uint8_t* q8_quant(const PackedMatrix& matrix, int row, int column) {
  const int c = column % kBlock;
  return q8_block(matrix, row, column / kBlock) + 64 * (c / 4) + 4 * (row % kTileRows) + c % 4;
}
uint8_t* q8_scale(const PackedMatrix& matrix, int row, int block) {
  return q8_block(matrix, row, block) + kQ8Scales + 2 * (row % kTileRows);
}

}  // namespace

size_t tile_bytes(TileFormat format, int cols) {
  const size_t columns = static_cast<size_t>(cols), blocks = columns / kBlock;
  switch (format) {
    case TileFormat::kQ4: return blocks * kQ4BlockBytes;
    case TileFormat::kQ8: return (blocks * kQ8BlockBytes + 63) / 64 * 64;
    case TileFormat::kBf16: return (columns * kTileRows * sizeof(uint16_t) + 63) / 64 * 64;
    case TileFormat::kF32: return columns * kTileRows * sizeof(float);
  }
  return 0;
}

PackedMatrix::PackedMatrix(TileFormat format, int rows, int cols) {
  assert(rows > 0 && cols > 0 && ((format != TileFormat::kQ4 && format != TileFormat::kQ8) || cols % kBlock == 0));
  const size_t tile = tile_bytes(format, cols), total = tile * ((static_cast<size_t>(rows) + kTileRows - 1) / kTileRows);
  memory_ = allocate_zeroed(total);
  if (memory_ == nullptr) return;
  format_ = format;
  rows_ = rows;
  cols_ = cols;
  tile_bytes_ = tile;
  bytes_ = total;
}

void pack_row_q4_0(PackedMatrix& matrix, int row, const uint8_t* source) {
  assert(matrix.format() == TileFormat::kQ4);
  for (int b = 0; b < matrix.cols() / kBlock; ++b, source += 18) {
    const Q4Place place = q4_place(matrix, row, b);
    const uint16_t d = load_u16(source);
    float minimum = -8.0f * half_to_float(d);
    // Beyond 65504 the minimum has no half; the nearest one keeps the row finite (no real model has such a scale).
    if (minimum > kMaxHalf && minimum < 600000.0f) minimum = kMaxHalf;
    if (minimum < -kMaxHalf && minimum > -600000.0f) minimum = -kMaxHalf;
    store_u16(place.scale(), d);
    store_u16(place.minimum(), float_to_half(minimum));
    pack_nibbles(place, source + 2);
  }
}

void pack_row_q4_1(PackedMatrix& matrix, int row, const uint8_t* source) {
  assert(matrix.format() == TileFormat::kQ4);
  for (int b = 0; b < matrix.cols() / kBlock; ++b, source += 20) {
    const Q4Place place = q4_place(matrix, row, b);
    store_u16(place.scale(), load_u16(source));
    store_u16(place.minimum(), load_u16(source + 2));
    pack_nibbles(place, source + 4);
  }
}

void pack_row_q8_0(PackedMatrix& matrix, int row, const uint8_t* source) {
  assert(matrix.format() == TileFormat::kQ8);
  for (int b = 0; b < matrix.cols() / kBlock; ++b, source += 34) {
    store_u16(q8_scale(matrix, row, b), load_u16(source));
    for (int c = 0; c < kBlock; ++c) *q8_quant(matrix, row, b * kBlock + c) = static_cast<uint8_t>(source[2 + c] + 128);
  }
}

void pack_block_q4(PackedMatrix& matrix, int row, int block, float scale, float minimum, const uint8_t* quants) {
  assert(matrix.format() == TileFormat::kQ4);
  const Q4Place place = q4_place(matrix, row, block);
  store_u16(place.scale(), float_to_half(scale));
  store_u16(place.minimum(), float_to_half(minimum));
  for (int c = 0; c < kBlock; ++c) place.set(c, quants[c]);
}

void pack_block_q8(PackedMatrix& matrix, int row, int block, float scale, const int8_t* quants) {
  assert(matrix.format() == TileFormat::kQ8);
  store_u16(q8_scale(matrix, row, block), float_to_half(scale));
  for (int c = 0; c < kBlock; ++c) *q8_quant(matrix, row, block * kBlock + c) = static_cast<uint8_t>(quants[c] + 128);
}

bool pack_row_rounded(PackedMatrix& matrix, int row, const float* source) {
  const auto fits = [](float w) { return std::fabs(w) <= 127.0f * kMaxHalf; };
  if (!std::all_of(source, source + matrix.cols(), fits)) return false;
  for (int b = 0; b < matrix.cols() / kBlock; ++b, source += kBlock) {
    float largest = 0;
    for (int c = 0; c < kBlock; ++c) largest = std::max(largest, std::fabs(source[c]));
    const float scale = half_to_float(float_to_half(largest / 127.0f));
    int8_t quants[kBlock];
    for (int c = 0; c < kBlock; ++c)
      quants[c] = static_cast<int8_t>(scale == 0 ? 0.0f : std::clamp(std::nearbyint(source[c] / scale), -127.0f, 127.0f));
    pack_block_q8(matrix, row, b, scale, quants);
  }
  return true;
}

void pack_row_bf16(PackedMatrix& matrix, int row, const uint16_t* source) {
  assert(matrix.format() == TileFormat::kBf16);
  auto* tile = reinterpret_cast<uint16_t*>(matrix.tile(row / kTileRows)) + row % kTileRows;
  for (int c = 0; c < matrix.cols(); ++c) tile[static_cast<size_t>(c) * kTileRows] = source[c];
}

void pack_row_f32(PackedMatrix& matrix, int row, const float* source) {
  assert(matrix.format() == TileFormat::kF32);
  auto* tile = reinterpret_cast<float*>(matrix.tile(row / kTileRows)) + row % kTileRows;
  for (int c = 0; c < matrix.cols(); ++c) tile[static_cast<size_t>(c) * kTileRows] = source[c];
}

void unpack_row(const PackedMatrix& matrix, int row, float* out) {
  const uint8_t* tile = matrix.tile(row / kTileRows);
  const int lane = row % kTileRows;
  switch (matrix.format()) {
    case TileFormat::kQ4:
      for (int c = 0; c < matrix.cols(); ++c) {
        const Q4Place place = q4_place(matrix, row, c / kBlock);
        out[c] =
            half_to_float(load_u16(place.scale())) * static_cast<float>(place.get(c % kBlock)) + half_to_float(load_u16(place.minimum()));
      }
      break;
    case TileFormat::kQ8:
      for (int c = 0; c < matrix.cols(); ++c) {
        out[c] = half_to_float(load_u16(q8_scale(matrix, row, c / kBlock))) * static_cast<float>(*q8_quant(matrix, row, c) - 128);
      }
      break;
    case TileFormat::kBf16:
      for (int c = 0; c < matrix.cols(); ++c) {
        const uint32_t bits = reinterpret_cast<const uint16_t*>(tile)[static_cast<size_t>(c) * kTileRows + lane];
        out[c] = std::bit_cast<float>(bits << 16);
      }
      break;
    case TileFormat::kF32:
      for (int c = 0; c < matrix.cols(); ++c) out[c] = reinterpret_cast<const float*>(tile)[static_cast<size_t>(c) * kTileRows + lane];
      break;
  }
}

}  // namespace aerie::kernels
