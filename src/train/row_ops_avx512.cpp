// Row operations in AVX-512; entered only where the CPU and the system have it.
#if defined(__x86_64__)
#include "train/row_ops-inl.h"

namespace aerie::train {

extern const RowOpTables kRowOpsAvx512;
const RowOpTables kRowOpsAvx512 = {kernels::Isa::kAvx512, row_ops_here<uint16_t, float>(), row_ops_here<float, float>()};

}  // namespace aerie::train
#endif
