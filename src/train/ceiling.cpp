#include "train/ceiling.h"

#include <algorithm>
#include <chrono>

#include "eagle3/checkpoint.h"

namespace aerie::train {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLong{100};

/// [out, in] of a trained matrix.
struct Matrix {
  std::string name;
  int64_t out = 0, in = 0;
  double size() const { return static_cast<double>(out) * static_cast<double>(in); }
};

std::vector<Matrix> matrices_of(const DraftSpec& spec) {
  std::vector<Matrix> out;
  for (const DraftTensor& tensor : draft_tensors(spec)) {
    if (tensor.shape.size() != 2 || tensor.name == "embed_tokens") continue;  // rows of an embedding are looked up
    out.push_back({tensor.name, static_cast<int64_t>(tensor.shape[0]), static_cast<int64_t>(tensor.shape[1])});
  }
  return out;
}

/// Rows of a step that are no padding.
double real_rows(const StepPlan& plan) {
  int64_t rows = 0;
  for (const RowRun& run : plan.runs) rows += run.count;
  return static_cast<double>(rows);
}

double fastest(const Matrix& matrix, int64_t rows, const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::full({rows, matrix.in}, 0.5, options), w = at::full({matrix.out, matrix.in}, 0.5, options);
  at::matmul(x, w.t());  // the first one prepares
  double least = 0;
  const Clock::time_point begin = Clock::now();
  do {
    const Clock::time_point start = Clock::now();
    at::matmul(x, w.t()).view({-1})[0].item<double>();  // a GPU has done it when a value of it is there
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds > 0 && (least == 0 || seconds < least)) least = seconds;
  } while (Clock::now() - begin < kLong);
  return least == 0 ? 0.0 : 2 * static_cast<double>(rows) * matrix.size() / least;
}

}  // namespace

double step_operations(const DraftSpec& spec, std::span<const PackedBatch> batches, bool head_trained) {
  double first_rows = 0, all_rows = 0, loss_rows = 0, teacher_rows = 0;
  for (const PackedBatch& batch : batches) {
    if (batch.teacher_states.empty()) continue;  // nothing to train on: not computed
    first_rows += real_rows(batch.steps[0]);
    teacher_rows += static_cast<double>(batch.teacher_states.size()) / spec.target_hidden;
    for (const StepPlan& plan : batch.steps) {
      all_rows += real_rows(plan);
      loss_rows += static_cast<double>(plan.loss_rows.size());
    }
  }
  // Products with a matrix: forward, its gradient, its input's gradient. The features of the target are not trained, but a norm over them
  // is.
  const double fc_products = spec.feature_norm == FeatureNorm::kNone ? 2 : 3, head_products = head_trained ? 3 : 2;
  double sum = 0;
  for (const Matrix& matrix : matrices_of(spec)) {
    const double applied = matrix.name == "fc"        ? fc_products * first_rows
                           : matrix.name == "lm_head" ? head_products * loss_rows + teacher_rows
                                                      : 3 * all_rows;
    sum += 2 * applied * matrix.size();
  }
  return sum;
}

double matmul_ceiling(const DraftSpec& spec, int64_t rows, at::ScalarType type, const at::Device& device) {
  const auto options = at::TensorOptions().dtype(type).device(device);
  std::vector<Matrix> matrices = matrices_of(spec);
  std::sort(matrices.begin(), matrices.end(), [](const Matrix& a, const Matrix& b) { return a.size() > b.size(); });
  double most = fastest(matrices.front(), rows, options);
  const auto body = std::find_if(matrices.begin() + 1, matrices.end(), [](const Matrix& m) { return m.name != "lm_head"; });
  if (body != matrices.end()) most = std::max(most, fastest(*body, rows, options));
  return most;
}

}  // namespace aerie::train
