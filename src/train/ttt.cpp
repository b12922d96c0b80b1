#include "train/ttt.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "train/fused.h"
#include "train/ttt_attention.h"

namespace aerie::train {
namespace {

/// A view of memory that outlives it, or on another device a copy.
at::Tensor bf16_tensor(const std::vector<uint16_t>& values, int64_t cols, const at::Device& device) {
  return at::from_blob(const_cast<uint16_t*>(values.data()), {static_cast<int64_t>(values.size()) / cols, cols}, at::kBFloat16).to(device);
}

}  // namespace

StepStats& StepStats::operator+=(const StepStats& other) {
  supervised += other.supervised;
  trained += other.trained;
  correct += other.correct;
  loss += other.loss;
  return *this;
}

std::vector<double> loss_rows(const std::vector<PackedBatch>& batches, size_t steps) {
  std::vector<double> rows(steps, 0.0);
  for (const PackedBatch& batch : batches) {
    for (size_t s = 0; s < steps; ++s) rows[s] += static_cast<double>(batch.steps[s].loss_rows.size());
  }
  return rows;
}

std::vector<double> row_weights(const std::vector<double>& rows, double decay) {
  std::vector<double> weights;
  double total = 0;
  for (size_t s = 0; s < rows.size(); ++s) {
    weights.push_back(std::pow(decay, static_cast<double>(s)));
    total += weights.back();
  }
  for (size_t s = 0; s < rows.size(); ++s) weights[s] = rows[s] == 0 ? 0.0 : weights[s] / total / rows[s];
  return weights;
}

std::vector<DraftStep<TorchOps>> unroll(TorchOps& ops, const DraftSpec& spec, const DraftWeights<TorchOps>& weights,
                                        const at::Tensor& embedding, const PackedBatch& batch) {
  std::vector<DraftStep<TorchOps>> steps;
  TttAttention attention(spec, batch, weights.layers[0].o.weight.scalar_type());
  const at::Device device = embedding.device();
  at::Tensor h = fuse_features(ops, spec, weights, bf16_tensor(batch.features, spec.feature_width(), device).to(ops.state_type()));
  for (const StepPlan& plan : batch.steps) {
    if (plan.tokens.empty()) break;
    if (!steps.empty()) h = steps.back().feedback.index_select(0, index_tensor(plan.parents, device));
    attention.begin_step(plan);
    const at::Tensor e = embedding.index_select(0, index_tensor(plan.tokens, device));
    steps.push_back(
        draft_step(ops, spec, weights, e, h, index_tensor(plan.positions, device),
                   [&](int layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) { return attention(layer, q, k, v); }));
  }
  return steps;
}

std::vector<StepStats> run_ttt(TorchOps& ops, const DraftSpec& spec, const DraftWeights<TorchOps>& weights, const Teacher& teacher,
                               const PackedBatch& batch, const LossOptions& loss, const std::vector<double>& row_weight, bool backward,
                               at::Tensor head_gradient) {
  std::vector<StepStats> stats(batch.steps.size());
  if (batch.teacher_states.empty()) return stats;
  const at::Device device = teacher.embedding.device();
  std::vector<at::Tensor> head_inputs;  // of the rows with a loss
  {
    const at::AutoGradMode grad_mode(backward);
    for (const DraftStep<TorchOps>& step : unroll(ops, spec, weights, teacher.embedding, batch)) {
      const StepPlan& plan = batch.steps[head_inputs.size()];
      head_inputs.push_back(step.head_input.index_select(0, index_tensor(plan.loss_rows, device)));
    }
  }
  const at::NoGradGuard no_grad;
  at::Tensor teacher_states = bf16_tensor(batch.teacher_states, teacher.final_norm.size(0), device).to(ops.state_type());
  if (!teacher.states_normed) teacher_states = ops.rms_norm(teacher_states, teacher.final_norm, teacher.eps);
  const HeadLoss head(weights.lm_head.detach(), teacher.head, teacher_states, loss);
  std::vector<at::Tensor> input_gradients;
  for (size_t s = 0; s < head_inputs.size(); ++s) {
    const StepPlan& plan = batch.steps[s];
    stats[s].supervised = plan.supervised;
    stats[s].trained = static_cast<int64_t>(plan.loss_rows.size());
    HeadLoss::Result result = head(head_inputs[s].detach(), plan.teachers, plan.labels, row_weight[s], backward, head_gradient);
    stats[s].loss = result.loss;
    stats[s].correct = result.correct;
    input_gradients.push_back(std::move(result.input_gradient));
  }
  if (backward) torch::autograd::backward(head_inputs, input_gradients);
  return stats;
}

}  // namespace aerie::train
