// Row operations in AVX2; entered only where the CPU and the system have it.
#if defined(__x86_64__)
#include "train/row_ops-inl.h"

namespace aerie::train {

extern const RowOpTables kRowOpsAvx2;
const RowOpTables kRowOpsAvx2 = {kernels::Isa::kAvx2, row_ops_here<uint16_t, float>(), row_ops_here<float, float>()};

}  // namespace aerie::train
#endif
