// The tables of the instruction-set units; only dispatch.cpp hands them out. A vector unit may be entered only after
// dispatch.cpp has checked the CPU and the operating system.
#pragma once

#include "kernels/kernels.h"

namespace aerie::kernels {

const Kernels& scalar_table();
#if defined(__x86_64__)
const Kernels& avx2_table();
const Kernels& avx512_table();
#endif

}  // namespace aerie::kernels
