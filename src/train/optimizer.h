// One step of the optimiser over all parameters.
#pragma once

#include <ATen/ATen.h>

#include "train/parameters.h"

namespace aerie::train {

struct OptimizerOptions {
  Optimizer kind = Optimizer::kAdamW;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01;  // AdamW (arXiv 1711.05101)
  double momentum = 0.95;                                             // Muon's
  double clip = 1.0;                                                  // of the global gradient norm
  at::ScalarType matmul_type = at::kFloat;  // of Muon's matrix products: bf16 where the parameters are float32, or their own
};

/// Warm-up to 1 over `warmup_steps`, times a cosine from 1 to 0.1 over the run; `step` counts from 0, `progress` is in [0, 1].
double learning_rate_factor(int64_t step, int64_t warmup_steps, double progress);

/// Gradients scaled to a norm of at most `clip` (`norm` is theirs); `step` counts from 1.
void update(Parameters& parameters, const OptimizerOptions& options, double learning_rate, int64_t step, double norm);

/// The matrix with the singular vectors of `g` and singular values near one, by five Newton-Schulz steps in its type
/// (https://kellerjordan.github.io/posts/muon/). `norm`: of g, over all values.
at::Tensor orthogonalised(const at::Tensor& g, double norm);

}  // namespace aerie::train
