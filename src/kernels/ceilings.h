// What this machine can do at most: the rates against which `aerie bench` holds its figures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace aerie::kernels {

/// Arithmetic units that kernels here use. A multiplication and an addition are two operations.
enum class Unit {
  kInt8,       // u8 x s8 dot products of vectors: vpdpbusd, or vpmaddubsw and its additions
  kInt8Tiles,  // the same of AMX tiles
  kFloat32,    // fused multiply-adds of vectors
};

const char* unit_name(Unit unit);

/// The units that kernels of this instruction set use; none for the scalar reference, whose rate nobody asks for.
std::span<const Unit> units_of(Isa isa);

/// The one that computes a product of that many quantised rows.
Unit int8_unit(Isa isa, int rows);

/// Keeps one thread's unit busy with operands in registers, in as many chains as hide its latency, and returns the operations done.
/// `isa` must be one that this machine can run, and have the unit.
double run_unit(Isa isa, Unit unit, int64_t rounds);

/// Reads `bytes` (a multiple of 4096) from a 64-byte aligned address as the product kernels do, prefetching 4 kB ahead; the result
/// depends on every byte.
uint64_t read_all(Isa isa, const void* from, size_t bytes);

}  // namespace aerie::kernels
