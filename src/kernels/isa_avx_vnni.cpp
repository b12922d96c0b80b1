// The AVX-VNNI unit: what AVX2 has, and dot products of bytes in 256 bits (Intel from Alder Lake on, AMD from Zen 5 on).
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "kernels/isa.h"

namespace aerie::kernels {
namespace {

#include "kernels/simd256-inl.h"

#include "kernels/attention-inl.h"
#include "kernels/elementwise-inl.h"
#include "kernels/matmul-inl.h"

}  // namespace

const Kernels& avx_vnni_table() {
  static constexpr Kernels kTable = {Isa::kAvxVnni, "avxvnni", quantize_rows, matmul_quantized, matmul_float, rms_norm,
                                     silu_mul,      add,       rope,          attend_chunk,     argmax};
  return kTable;
}

}  // namespace aerie::kernels
#endif
