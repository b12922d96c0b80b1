// The draft head, its loss against the target and its gradients, by hand: under autograd, several float32 copies of all rows' logits
// [rows, Vd] would live until the backward pass.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "train/row_ops.h"

namespace aerie::train {

struct LossOptions {
  Loss loss = Loss::kKl;
  double teacher_temperature = 1.0;  // below 1, the target's distribution is sharpened towards its argmax
};

/// Rows whose logits are made and used together. A piece of 8,192 values a row in bf16 is small enough to be kept by the allocator.
inline constexpr int64_t kHeadChunk = 1920;

class HeadLoss {
 public:
  /// `head` and `teacher_head` [Vd, H] of one type; `teacher_states` [teachers, H] after the target's final norm.
  HeadLoss(at::Tensor head, const at::Tensor& teacher_head, const at::Tensor& teacher_states, const LossOptions& options);

  struct Result {
    double loss = 0;  // sum over the rows
    int64_t correct = 0;
    at::Tensor input_gradient;  // [m, H] of row_weight * loss, in the input's type; undefined without `backward`
  };
  /// For `input` [m, H]: row r is held against teacher row teachers[r] and the draft token labels[r]. With `backward`, the head's gradient
  /// is added to `head_gradient` [Vd, H] where that is defined.
  Result operator()(const at::Tensor& input, const std::vector<int64_t>& teachers, const std::vector<int64_t>& labels, double row_weight,
                    bool backward, at::Tensor head_gradient) const;

 private:
  template <class T, class A>
  void prepare_teacher(const at::Tensor& teacher_head, const at::Tensor& states);
  template <class T, class A>
  Result run(const at::Tensor& input, const std::vector<int64_t>& teachers, const std::vector<int64_t>& labels, double row_weight,
             bool backward, at::Tensor head_gradient) const;

  Result run_plainly(const at::Tensor& input, const std::vector<int64_t>& teachers, const std::vector<int64_t>& labels, double row_weight,
                     bool backward, at::Tensor head_gradient) const;

  at::Tensor head_;
  LossOptions options_;
  std::vector<at::Tensor> teacher_logits_;        // [kHeadChunk, Vd] each, in the head's type; without row operations one of all rows
  std::vector<TeacherRow<double>> teacher_rows_;  // [teachers]
};

}  // namespace aerie::train
