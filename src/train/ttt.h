// Training-time test: the drafter unrolled on its own states, its loss and its gradients.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "eagle3/draft_step.h"
#include "train/batch.h"
#include "train/head_loss.h"
#include "train/torch_ops.h"

namespace aerie::train {

/// What the target contributes; never trained.
struct Teacher {
  at::Tensor embedding;   // [V, H]
  at::Tensor final_norm;  // [H]
  float eps = 1e-5f;
  bool states_normed = false;  // the final norm has been applied to the final states already
  at::Tensor head;             // [Vd, H] the target's output rows of the draft vocabulary
};

/// Sums over the rows of one step, so that batches can be added up.
struct StepStats {
  int64_t supervised = 0;  // rows a server could draft at
  int64_t trained = 0;     // of these, rows whose target is inside the draft vocabulary
  int64_t correct = 0;     // rows whose best draft token is the target (the others of `supervised` are misses)
  double loss = 0;         // sum of the trained rows' losses (row_ops.h), in nats
  StepStats& operator+=(const StepStats& other);
  double accuracy() const { return supervised == 0 ? 0.0 : static_cast<double>(correct) / static_cast<double>(supervised); }
};

/// The drafter's steps over a packed row: what each row of each step's plan gives. `embedding` [V, H].
std::vector<DraftStep<TorchOps>> unroll(TorchOps& ops, const DraftSpec& spec, const DraftWeights<TorchOps>& weights,
                                        const at::Tensor& embedding, const PackedBatch& batch);

/// Runs `batch` through all of its steps; the loss is the sum over steps of row_weights[s] * (sum of the step's row losses). With
/// `backward`, its gradient is added to the .grad of the leaves behind `weights`. The head is handled by hand: `weights.lm_head` is
/// a constant to autograd, and its gradient is added to `head_gradient` [Vd, H] where that is defined.
std::vector<StepStats> run_ttt(TorchOps& ops, const DraftSpec& spec, const DraftWeights<TorchOps>& weights, const Teacher& teacher,
                               const PackedBatch& batch, const LossOptions& loss, const std::vector<double>& row_weights, bool backward,
                               at::Tensor head_gradient = {});

/// Rows with a loss of each of `steps` steps, in all of the batches.
std::vector<double> loss_rows(const std::vector<PackedBatch>& batches, size_t steps);
/// The weight of one row's loss per step, for rows that are trained together: decay^s, normalised over the steps, divided by the step's
/// rows with a loss.
std::vector<double> row_weights(const std::vector<double>& rows, double decay);

}  // namespace aerie::train
