// The AVX2 unit: AVX2, FMA and F16C; no VNNI.
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

const Kernels& avx2_table() {
  static constexpr Kernels kTable = {Isa::kAvx2, "avx2", quantize_rows, matmul_quantized, matmul_float, rms_norm,
                                     silu_mul,   add,    rope,          attend_chunk,     argmax};
  return kTable;
}

}  // namespace aerie::kernels
#endif
