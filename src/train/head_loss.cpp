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

}  // namespace aerie::train
