// The tables of the instruction-set units; only dispatch.cpp hands them out. A vector unit may be entered only after
// dispatch.cpp has checked the CPU and the operating system.
#pragma once

#include "kernels/kernels.h"

namespace aerie::kernels {

// Bytes of a block of 32 columns and, inside it, where the scales and minima lie (see TileFormat).
inline constexpr size_t kQ4BlockBytes = 320, kQ4Scales = 256, kQ4Minima = 288;
inline constexpr size_t kQ8BlockBytes = 544, kQ8Scales = 512;

// Weights are read ahead by hand: the hardware follows a stream too closely for kernels that compute much on every byte. What lies
// behind a matrix may be read ahead too: a prefetch of memory that is not there does nothing.
inline constexpr size_t kReadAhead = 4096;

// Up to so many rows the AVX-512 unit is as fast as tiles, and does not lower the clock for what follows.
inline constexpr int kAmxFewRows = 8;

const Kernels& scalar_table();
#if defined(__x86_64__)
const Kernels& avx2_table();
const Kernels& avx_vnni_table();
const Kernels& avx512_table();
const Kernels& amx_table();
#endif

}  // namespace aerie::kernels
