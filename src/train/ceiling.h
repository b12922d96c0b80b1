// How much of what the machine can multiply a run uses: the arithmetic of its steps against the fastest product of the drafter's own size.
#pragma once

#include <ATen/ATen.h>

#include <span>

#include "eagle3/draft_spec.h"
#include "train/batch.h"

namespace aerie::train {

/// Arithmetic operations (a multiplication and an addition are two) of the matrix products that one optimiser step needs: every trained
/// matrix forward and backward over the rows that it is applied to, the head over the rows with a loss, the teacher's head over its rows.
/// Not counted: attention's products, rows that only pad, and what the optimiser multiplies.
double step_operations(const DraftSpec& spec, std::span<const PackedBatch> batches, bool head_trained);

/// Operations a second of the fastest at::matmul of `rows` rows with one of the drafter's matrices, in `type`: its largest and the largest
/// but the head are tried, a tenth of a second each. No random number is drawn.
double matmul_ceiling(const DraftSpec& spec, int64_t rows, at::ScalarType type, const at::Device& device = at::kCPU);

}  // namespace aerie::train
