#include "train/row_ops.h"

#include <algorithm>

#include "train/row_ops-inl.h"

namespace aerie::train {

#if defined(__x86_64__)
extern const RowOpTables kRowOpsAvx512, kRowOpsAvx2;
#endif

namespace {

constexpr RowOpTables kRowOpsPlain = {kernels::Isa::kScalar, row_ops_here<uint16_t, float>(), row_ops_here<float, float>()};

const RowOpTables& best() {
  static const RowOpTables& tables = *available_row_ops().front();
  return tables;
}

}  // namespace

std::vector<const RowOpTables*> available_row_ops() {
  std::vector<const RowOpTables*> tables;
#if defined(__x86_64__)
  const std::vector<kernels::Isa> isas = kernels::available_isas();
  for (const RowOpTables* wide : {&kRowOpsAvx512, &kRowOpsAvx2}) {
    if (std::find(isas.begin(), isas.end(), wide->isa) != isas.end()) tables.push_back(wide);
  }
#endif
  tables.push_back(&kRowOpsPlain);
  return tables;
}

template <>
const RowOps<uint16_t, float>& row_ops() {
  return best().bf16;
}
template <>
const RowOps<float, float>& row_ops() {
  return best().f32;
}
template <>
const RowOps<double, double>& row_ops() {
  static constexpr RowOps<double, double> ops = row_ops_here<double, double>();
  return ops;
}

}  // namespace aerie::train
