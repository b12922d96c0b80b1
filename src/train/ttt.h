// Training-time test: the drafter unrolled on its own states, its loss and its gradients.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "eagle3/draft_step.h"
#include "train/batch.h"
#include "train/torch_ops.h"

namespace aerie::train {

/// What the target contributes; never trained.
struct Teacher {
  at::Tensor embedding;   // [V, H]
  at::Tensor final_norm;  // [H]
  float eps = 1e-5f;
  at::Tensor head;  // [Vd, H] the target's output rows of the draft vocabulary
};

/// Sums over the rows of one step, so that batches can be added up.
struct StepStats {
  int64_t supervised = 0;  // rows a server could draft at
  int64_t trained = 0;     // of these, rows whose target is inside the draft vocabulary
  int64_t correct = 0;     // rows whose best draft token is the target (the others of `supervised` are misses)
  double loss = 0;         // sum of KL(target || drafter) over the trained rows, in nats
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
                               const PackedBatch& batch, const std::vector<double>& row_weights, bool backward,
                               at::Tensor head_gradient = {});

/// Rows with a loss of each of `steps` steps, in all of the batches.
std::vector<double> loss_rows(const std::vector<PackedBatch>& batches, size_t steps);
/// The weight of one row's loss per step, for rows that are trained together: decay^s, normalised over the steps, divided by the step's
/// rows with a loss.
std::vector<double> row_weights(const std::vector<double>& rows, double decay);

/// Attention of an unrolled step: the step-0 keys of the rows before and of the row itself, causal within each document, plus
/// the row's own key of every later step; one softmax over all, or over the last DraftSpec::sliding_window of them. No mask of
/// [rows, rows] is ever made: each run of rows is multiplied with the keys it may see, and only the triangles at their ends are
/// masked.
class TttAttention {
 public:
  TttAttention(const DraftSpec& spec, const PackedBatch& batch) : spec_(spec), batch_(batch), layers_(static_cast<size_t>(spec.layers)) {}
  /// Moves on to `plan`; keys of the steps before are narrowed to its rows.
  void begin_step(const StepPlan& plan);
  /// q [n, heads*head_dim], k [n, kv_heads*head_dim] and v [n, kv_heads*value_dim] of the current step's rows in a layer ->
  /// [n, heads*value_dim].
  at::Tensor operator()(int layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

 private:
  struct Layer {
    std::vector<at::Tensor> keys, values;          // of step 0, per document [kv_heads, rows, head_dim or value_dim]
    std::vector<at::Tensor> own_keys, own_values;  // of each later step [n, kv_heads, 1, head_dim or value_dim]
  };
  const DraftSpec& spec_;
  const PackedBatch& batch_;
  const StepPlan* plan_ = nullptr;
  std::vector<Layer> layers_;
};

}  // namespace aerie::train
