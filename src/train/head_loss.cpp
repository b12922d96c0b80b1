#include "train/head_loss.h"

#include <algorithm>

#include "train/fused.h"

namespace aerie::train {
namespace {

/// x with zero rows appended up to a multiple of kRowMultiple.
at::Tensor padded(const at::Tensor& x) {
  const int64_t missing = rounded_up(x.size(0), kRowMultiple) - x.size(0);
  return missing == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, missing});
}

}  // namespace

HeadLoss::HeadLoss(at::Tensor head, const at::Tensor& teacher_head, const at::Tensor& teacher_states, const LossOptions& options)
    : head_(std::move(head)), options_(options) {
  if (!row_ops_reach(head_)) {
    teacher_logits_.push_back(at::matmul(teacher_states.to(teacher_head.scalar_type()), teacher_head.t()));
    return;
  }
  with_row_types(head_.scalar_type(),
                 [&](auto zero, auto wide) { prepare_teacher<decltype(zero), decltype(wide)>(teacher_head, teacher_states); });
}

template <class T, class A>
void HeadLoss::prepare_teacher(const at::Tensor& teacher_head, const at::Tensor& states) {
  const int64_t rows = states.size(0), width = teacher_head.size(0);
  const at::Tensor input = padded(states.to(teacher_head.scalar_type()));
  teacher_rows_.resize(static_cast<size_t>(rows));
  for (int64_t begin = 0; begin < input.size(0); begin += kHeadChunk) {
    const int64_t count = std::min(kHeadChunk, input.size(0) - begin);
    const at::Tensor& logits = teacher_logits_.emplace_back(at::matmul(input.narrow(0, begin, count), teacher_head.t()));
    for_rows(std::min(count, rows - begin), width, [&](int64_t first, int64_t last, int) {
      for (int64_t r = first; r < last; ++r) {
        const TeacherRow<A> row =
            row_ops<T, A>().teacher(values_of<T>(logits) + r * width, width, static_cast<A>(1 / options_.teacher_temperature));
        teacher_rows_[static_cast<size_t>(begin + r)] = {row.log_sum, row.entropy};
      }
    });
  }
}

HeadLoss::Result HeadLoss::operator()(const at::Tensor& input, const std::vector<int64_t>& teachers, const std::vector<int64_t>& labels,
                                      double row_weight, bool backward, at::Tensor head_gradient) const {
  if (!row_ops_reach(head_)) return run_plainly(input, teachers, labels, row_weight, backward, std::move(head_gradient));
  return with_row_types(head_.scalar_type(), [&](auto zero, auto wide) {
    return run<decltype(zero), decltype(wide)>(input, teachers, labels, row_weight, backward, head_gradient);
  });
}

template <class T, class A>
HeadLoss::Result HeadLoss::run(const at::Tensor& input, const std::vector<int64_t>& teachers, const std::vector<int64_t>& labels,
                               double row_weight, bool backward, at::Tensor head_gradient) const {
  const int64_t rows = input.size(0), width = head_.size(0);
  const at::Tensor narrow = padded(input.to(head_.scalar_type()));
  Result result;
  if (backward) result.input_gradient = at::empty_like(input);
  std::vector<RowLoss> losses(static_cast<size_t>(rows));
  for (int64_t begin = 0; begin < rows; begin += kHeadChunk) {
    const int64_t count = std::min(kHeadChunk, narrow.size(0) - begin), real = std::min(count, rows - begin);
    const at::Tensor chunk = narrow.narrow(0, begin, count);
    const at::Tensor logits = at::matmul(chunk, head_.t());  // and then, in its place, the gradient
    for_rows(real, width, [&](int64_t first, int64_t last, int) {
      std::vector<A> scratch(2 * static_cast<size_t>(width));
      for (int64_t r = first; r < last; ++r) {
        const size_t row = static_cast<size_t>(begin + r);
        const TeacherRow<double>& teacher = teacher_rows_[static_cast<size_t>(teachers[row])];
        RowLossInput<A> in;
        in.teacher = {static_cast<A>(teacher.log_sum), static_cast<A>(teacher.entropy)};
        in.sharpness = static_cast<A>(1 / options_.teacher_temperature);
        in.label = labels[row];
        in.weight = static_cast<A>(row_weight);
        in.loss = options_.loss;
        const T* teacher_logits = values_of<T>(teacher_logits_[static_cast<size_t>(teachers[row] / kHeadChunk)]);
        T* z = values_of<T>(logits) + r * width;
        losses[row] =
            row_ops<T, A>().loss(z, teacher_logits + teachers[row] % kHeadChunk * width, width, in, scratch.data(), backward ? z : nullptr);
      }
    });
    if (!backward) continue;
    logits.narrow(0, real, count - real).zero_();
    result.input_gradient.narrow(0, begin, real).copy_(at::matmul(logits, head_).narrow(0, 0, real));
    if (head_gradient.defined()) head_gradient.add_(at::matmul(logits.t(), chunk));
  }
  for (const RowLoss& row : losses) {  // in order, so that the sum does not depend on the threads
    result.loss += row.loss;
    result.correct += row.correct ? 1 : 0;
  }
  return result;
}

HeadLoss::Result HeadLoss::run_plainly(const at::Tensor& input, const std::vector<int64_t>& teachers, const std::vector<int64_t>& labels,
                                       double row_weight, bool backward, at::Tensor head_gradient) const {
  const at::ScalarType state_type = input.scalar_type();
  const at::Tensor narrow = input.to(head_.scalar_type()), all_teachers = index_tensor(teachers, head_.device()),
                   all_labels = index_tensor(labels, head_.device());
  Result result;
  if (backward) result.input_gradient = at::empty_like(input);
  for (int64_t begin = 0; begin < input.size(0); begin += kHeadChunk) {
    const int64_t count = std::min(kHeadChunk, input.size(0) - begin);
    const at::Tensor chunk = narrow.narrow(0, begin, count), label = all_labels.narrow(0, begin, count).unsqueeze(1);
    const at::Tensor z = at::matmul(chunk, head_.t()).to(state_type);
    const at::Tensor t = teacher_logits_[0].index_select(0, all_teachers.narrow(0, begin, count)).to(state_type);
    const at::Tensor log_p = at::log_softmax(t / options_.teacher_temperature, 1), log_q = at::log_softmax(z, 1);
    const at::Tensor p = log_p.exp(), q = log_q.exp();
    const at::Tensor kl = (p * (log_p - log_q)).sum(1, true), overlap = at::minimum(p, q).sum(1, true);
    const at::Tensor share = options_.loss == Loss::kKl ? at::ones_like(overlap) : (overlap * -3).exp();
    result.loss += (share * kl + (1 - share) * (1 - overlap)).sum().item<double>();
    result.correct += (z.gather(1, label) >= z.amax(1, true)).sum().item<int64_t>();
    if (!backward) continue;
    const at::Tensor below = (q < p).to(state_type);
    const at::Tensor gradient =
        (row_weight * (share * (q - p) + (1 - share) * q * ((q * below).sum(1, true) - below))).to(head_.scalar_type());
    result.input_gradient.narrow(0, begin, count).copy_(at::matmul(gradient, head_));
    if (head_gradient.defined()) head_gradient.add_(at::matmul(gradient.t(), chunk));
  }
  return result;
}

}  // namespace aerie::train
