// The AVX-512 unit.
#if defined(__x86_64__)
#include "kernels/isa.h"

namespace aerie::kernels {
const Kernels& avx512_table() { return scalar_table(); }
}  // namespace aerie::kernels
#endif
