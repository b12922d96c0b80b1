#include "train/ttt.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace aerie::train {
namespace {

constexpr int64_t kHeadChunk = 128;  // rows whose [rows, Vd] float32 logits stay in the cache between the passes over them

// Views of memory that outlives them. from_blob does not write; it only has no overload for constant memory.
at::Tensor index_tensor(const std::vector<int64_t>& values) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kLong);
}

at::Tensor bf16_tensor(const std::vector<uint16_t>& values, int64_t cols) {
  return at::from_blob(const_cast<uint16_t*>(values.data()), {static_cast<int64_t>(values.size()) / cols, cols}, at::kBFloat16);
}

/// x with zero rows appended up to a multiple of kRowMultiple.
at::Tensor padded(const at::Tensor& x) {
  const int64_t missing = (kRowMultiple - x.size(0) % kRowMultiple) % kRowMultiple;
  return missing == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, missing});
}

/// log softmax of the logits of rows [begin, begin + count) of a padded input.
at::Tensor log_softmax_rows(TorchOps& ops, const at::Tensor& input, const at::Tensor& head, int64_t begin, int64_t count) {
  const int64_t length = std::min(kHeadChunk, input.size(0) - begin);
  return at::log_softmax(ops.linear(input.narrow(0, begin, length), head).narrow(0, 0, count), -1);
}

/// The target's distribution over the draft vocabulary at every teacher row.
struct TeacherRows {
  at::Tensor probabilities;  // [teachers, Vd]
  at::Tensor entropy;        // [teachers] in nats
};

TeacherRows teacher_rows(TorchOps& ops, const Teacher& teacher, const at::Tensor& states) {
  const at::Tensor normed = padded(ops.rms_norm(states, teacher.final_norm, teacher.eps));
  TeacherRows rows;
  rows.probabilities = at::empty({states.size(0), teacher.head.size(0)}, normed.options());
  rows.entropy = at::empty({states.size(0)}, normed.options());
  for (int64_t begin = 0; begin < states.size(0); begin += kHeadChunk) {
    const int64_t count = std::min(kHeadChunk, states.size(0) - begin);
    const at::Tensor log_p = log_softmax_rows(ops, normed, teacher.head, begin, count);
    at::Tensor p = rows.probabilities.narrow(0, begin, count);
    at::exp_out(p, log_p);
    rows.entropy.narrow(0, begin, count).copy_((p * log_p).sum(-1).neg());
  }
  return rows;
}

struct HeadResult {
  at::Tensor input_gradient;  // [m, H]
  at::Tensor logit_gradient;  // [m padded, Vd] in the head's type
};

/// The head, its loss and its gradients by hand, chunk by chunk: under autograd, several copies of all rows' [m, Vd] would live
/// until the backward pass. `input` is padded.
HeadResult head_loss(TorchOps& ops, const at::Tensor& input, const at::Tensor& head, const TeacherRows& teacher, const StepPlan& plan,
                     double row_weight, bool backward, StepStats& stats) {
  const int64_t rows = static_cast<int64_t>(plan.loss_rows.size());
  const at::Tensor teachers = index_tensor(plan.teachers), labels = index_tensor(plan.labels);
  HeadResult result;
  if (backward) {
    result.logit_gradient = at::empty({input.size(0), head.size(0)}, head.options());
    result.logit_gradient.narrow(0, rows, input.size(0) - rows).zero_();
  }
  at::Tensor loss = at::zeros({}, input.options().dtype(at::kDouble)), correct = at::zeros({}, labels.options());
  for (int64_t begin = 0; begin < rows; begin += kHeadChunk) {
    const int64_t count = std::min(kHeadChunk, rows - begin);
    const at::Tensor log_q = log_softmax_rows(ops, input, head, begin, count);
    const at::Tensor which = teachers.narrow(0, begin, count);
    const at::Tensor p = teacher.probabilities.index_select(0, which);
    const at::Tensor cross = (p * log_q).sum(-1) + teacher.entropy.index_select(0, which);
    loss -= cross.sum(at::kDouble);
    const at::Tensor label_log_q = log_q.gather(1, labels.narrow(0, begin, count).unsqueeze(1)).squeeze(1);
    correct += (label_log_q == log_q.amax(-1)).sum();
    if (backward) result.logit_gradient.narrow(0, begin, count).copy_(log_q.exp().sub_(p).mul_(row_weight));
  }
  if (backward) result.input_gradient = at::matmul(result.logit_gradient, head).narrow(0, 0, rows).to(ops.state_type());
  stats.loss += loss.item<double>();
  stats.correct += correct.item<int64_t>();
  return result;
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

void TttAttention::begin_step(const StepPlan& plan) {
  plan_ = &plan;
  for (Layer& layer : layers_) {
    for (at::Tensor& keys : layer.own_keys) keys = keys.index_select(0, index_tensor(plan.parents));
    for (at::Tensor& values : layer.own_values) values = values.index_select(0, index_tensor(plan.parents));
  }
}

at::Tensor TttAttention::operator()(int layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  auto& [layer_keys, layer_values, own_keys, own_values] = layers_[static_cast<size_t>(layer)];
  const int64_t n = q.size(0), groups = spec_.kv_heads, heads = spec_.heads / spec_.kv_heads, dim = spec_.head_dim;
  const int64_t value_dim = spec_.value_dim();
  const at::Tensor queries = q.view({n, groups, heads, dim}) * (spec_.attention_scale / std::sqrt(static_cast<double>(dim)));
  if (plan_ == &batch_.steps[0]) {
    std::vector<int64_t> sizes = batch_.document_rows;
    sizes.push_back(n - std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));  // padding
    const std::vector<at::Tensor> keys = k.view({n, groups, dim}).split_with_sizes(sizes);
    const std::vector<at::Tensor> values = v.view({n, groups, value_dim}).split_with_sizes(sizes);
    for (size_t d = 0; d < batch_.document_rows.size(); ++d) {
      layer_keys.push_back(keys[d].transpose(0, 1).contiguous());
      layer_values.push_back(values[d].transpose(0, 1).contiguous());
    }
  } else {
    own_keys.push_back(k.view({n, groups, 1, dim}));
    own_values.push_back(v.view({n, groups, 1, value_dim}));
  }
  // The newest key that a row sees is its own of this step; a window reaches back from there.
  const int64_t window = spec_.sliding_window, step = static_cast<int64_t>(own_keys.size());
  const int64_t hidden = window == 0 ? 0 : std::max<int64_t>(step - window, 0), own = step - hidden;
  const auto own_key = own_keys.begin() + hidden, own_value = own_values.begin() + hidden;
  std::vector<at::Tensor> own_scores;
  for (int64_t j = 0; j < own; ++j) own_scores.push_back((queries * own_key[j]).sum(-1, true));  // [n, groups, heads, 1]
  const at::Tensor own_score = own == 0 ? at::Tensor() : at::cat(own_scores, -1);                // [n, groups, heads, own]

  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  const at::Tensor triangle = at::full({kMaxRun, kMaxRun}, kHidden, q.options()).triu(1);
  std::vector<at::Tensor> outputs, own_weights;
  for (const RowRun& run : plan_->runs) {
    const int64_t m = run.count, end = run.first + run.count;
    const int64_t oldest = run.first + step + 1 - window;  // that the run's first row sees in a window
    const int64_t begin = window == 0 ? 0 : std::clamp<int64_t>(oldest, 0, run.first), visible = end - begin;
    const at::Tensor rows = queries.narrow(0, run.begin, m).permute({1, 0, 2, 3}).reshape({groups, m * heads, dim});
    const at::Tensor keys = layer_keys[static_cast<size_t>(run.document)].narrow(1, begin, visible);
    const at::Tensor values = layer_values[static_cast<size_t>(run.document)].narrow(1, begin, visible);
    at::Tensor scores = at::bmm(rows, keys.transpose(1, 2)).view({groups, m, heads, visible});
    // Adding a constant changes no gradient, and nobody has kept the scores yet: hidden from autograd, it costs no copy.
    scores.detach().narrow(3, visible - m, m).add_(triangle.narrow(0, 0, m).narrow(1, 0, m).unsqueeze(1));
    if (window > 0) {
      // Key `begin + c` is hidden from row r of the run where c < r + oldest - begin.
      const at::Tensor before = at::full({m, visible}, kHidden, q.options()).tril(oldest - begin - 1);
      scores.detach().add_(before.unsqueeze(1));
    }
    if (own > 0) scores = at::cat({scores, own_score.narrow(0, run.begin, m).transpose(0, 1)}, -1);
    const at::Tensor weights = at::softmax(scores, -1);  // [groups, m, heads, visible + own]
    const at::Tensor earlier = weights.narrow(3, 0, visible).reshape({groups, m * heads, visible});
    outputs.push_back(at::bmm(earlier, values).view({groups, m, heads, value_dim}).transpose(0, 1));
    if (own > 0) own_weights.push_back(weights.narrow(3, visible, own).transpose(0, 1));
  }
  const int64_t padding = n - (plan_->runs.back().begin + plan_->runs.back().count);
  outputs.push_back(at::zeros({padding, groups, heads, value_dim}, q.options()));
  at::Tensor output = at::cat(outputs, 0);  // [n, groups, heads, value_dim]
  if (own > 0) {
    own_weights.push_back(at::zeros({padding, groups, heads, own}, q.options()));
    const at::Tensor weight = at::cat(own_weights, 0);
    for (int64_t j = 0; j < own; ++j) output = output + weight.narrow(3, j, 1) * own_value[j];
  }
  return output.reshape({n, spec_.heads * value_dim});
}

std::vector<DraftStep<TorchOps>> unroll(TorchOps& ops, const DraftSpec& spec, const DraftWeights<TorchOps>& weights,
                                        const at::Tensor& embedding, const PackedBatch& batch) {
  std::vector<DraftStep<TorchOps>> steps;
  TttAttention attention(spec, batch);
  at::Tensor h = fuse_features(ops, spec, weights, bf16_tensor(batch.features, spec.feature_width()).to(ops.state_type()));
  for (const StepPlan& plan : batch.steps) {
    if (plan.tokens.empty()) break;
    if (!steps.empty()) h = steps.back().feedback.index_select(0, index_tensor(plan.parents));
    attention.begin_step(plan);
    const at::Tensor e = embedding.index_select(0, index_tensor(plan.tokens));
    steps.push_back(
        draft_step(ops, spec, weights, e, h, index_tensor(plan.positions),
                   [&](int layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) { return attention(layer, q, k, v); }));
  }
  return steps;
}

std::vector<StepStats> run_ttt(TorchOps& ops, const DraftSpec& spec, const DraftWeights<TorchOps>& weights, const Teacher& teacher,
                               const PackedBatch& batch, const std::vector<double>& row_weight, bool backward, at::Tensor head_gradient) {
  std::vector<StepStats> stats(batch.steps.size());
  if (batch.teacher_states.empty()) return stats;
  std::vector<at::Tensor> head_inputs;  // of the rows with a loss
  {
    const at::AutoGradMode grad_mode(backward);
    for (const DraftStep<TorchOps>& step : unroll(ops, spec, weights, teacher.embedding, batch)) {
      const StepPlan& plan = batch.steps[head_inputs.size()];
      head_inputs.push_back(step.head_input.index_select(0, index_tensor(plan.loss_rows)));
    }
  }
  const at::NoGradGuard no_grad;
  const TeacherRows teachers = teacher_rows(ops, teacher, bf16_tensor(batch.teacher_states, teacher.final_norm.size(0)));
  const at::Tensor head = weights.lm_head.detach();
  std::vector<at::Tensor> narrow_inputs, input_gradients, logit_gradients;
  for (size_t s = 0; s < head_inputs.size(); ++s) {
    const StepPlan& plan = batch.steps[s];
    stats[s].supervised = plan.supervised;
    stats[s].trained = static_cast<int64_t>(plan.loss_rows.size());
    narrow_inputs.push_back(padded(head_inputs[s].detach().to(head.scalar_type())));
    HeadResult result = head_loss(ops, narrow_inputs[s], head, teachers, plan, row_weight[s], backward, stats[s]);
    input_gradients.push_back(result.input_gradient);
    logit_gradients.push_back(result.logit_gradient);
  }
  if (!backward) return stats;
  if (head_gradient.defined()) head_gradient.add_(at::matmul(at::cat(logit_gradients, 0).t(), at::cat(narrow_inputs, 0)));
  torch::autograd::backward(head_inputs, input_gradients);
  return stats;
}

}  // namespace aerie::train
