// Attention of the unrolled steps: no mask of [rows, rows] is ever made, and what masks would hide is hardly computed.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "eagle3/draft_spec.h"
#include "train/batch.h"

namespace aerie::train {

/// A row of an unrolled step attends to the step-0 keys of the rows before it and its own, causal within each document, and to the
/// row's own key of every later step; one softmax over all, or over the last DraftSpec::sliding_window of them. Each run of rows is
/// multiplied with the keys that it may see.
class TttAttention {
 public:
  /// `product_type`: of scores, weights and their gradients in the matrix products with step-0 keys; bf16, or the states' own type.
  TttAttention(const DraftSpec& spec, const PackedBatch& batch, at::ScalarType product_type)
      : spec_(spec), batch_(batch), product_type_(product_type), layers_(static_cast<size_t>(spec.layers)) {}
  /// Moves on to `plan`; keys of the steps before are narrowed to its rows.
  void begin_step(const StepPlan& plan);
  /// q [n, heads*head_dim], k [n, kv_heads*head_dim] and v [n, kv_heads*value_dim] of the current step's rows in a layer ->
  /// [n, heads*value_dim].
  at::Tensor operator()(int layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

 private:
  struct Layer {
    at::Tensor keys, values;          // of step 0 [rows, kv_heads * head_dim or value_dim]
    at::Tensor own_keys, own_values;  // of the later steps [n, steps, kv_heads * head_dim or value_dim]
  };
  const DraftSpec& spec_;
  const PackedBatch& batch_;
  at::ScalarType product_type_;
  const StepPlan* plan_ = nullptr;
  std::vector<Layer> layers_;
};

}  // namespace aerie::train
