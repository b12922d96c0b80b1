// What a step's matrix products come to, counted by hand.
#include "train/ceiling.h"

#include <gtest/gtest.h>

namespace aerie::train {
namespace {

/// H = 4, two taps, two heads of 2, one kv head, I = 6, Vd = 5.
DraftSpec tiny_spec() {
  DraftSpec spec;
  spec.taps = {1, 2};
  spec.target_hidden = spec.hidden = 4;
  spec.heads = 2;
  spec.kv_heads = 1;
  spec.head_dim = spec.rope_dim = 2;
  spec.intermediate = 6;
  spec.feature_norm = FeatureNorm::kConcat;
  spec.max_positions = 16;
  spec.vocab = 9;
  spec.draft_vocab = 5;
  spec.d2t = {0, 1, 2, 3, 4};
  return spec;
}

/// Three rows at the first step, of which two go on; a loss for one of each. `padding` rows more are no work.
PackedBatch tiny_batch(size_t padding) {
  PackedBatch batch;
  batch.teacher_states.resize(2 * 4);
  batch.steps.resize(2);
  batch.steps[0].runs = {{0, 0, 0, 2}, {1, 0, 2, 1}};
  batch.steps[0].tokens.resize(3 + padding);
  batch.steps[0].loss_rows = {1};
  batch.steps[1].runs = {{0, 0, 0, 2}};
  batch.steps[1].tokens.resize(2 + padding);
  batch.steps[1].loss_rows = {0};
  return batch;
}

TEST(Ceiling, CountsTheProductsOfAStep) {
  // Of a row: fc 4 x 8. The layer: q 4 x 8, k and v 2 x 8 each, o 4 x 4, gate and up 6 x 4 each, down 4 x 6.
  const double fc = 32, layer = 32 + 16 + 16 + 16 + 24 + 24 + 24, head = 20;
  // Forward and two gradients: fc for 3 rows, the layer for 3 + 2, the head for 1 + 1; the teacher's head forward for 2.
  const double products = 3 * (3 * fc + 5 * layer + 2 * head) + 2 * head;
  const PackedBatch batches[] = {tiny_batch(0), tiny_batch(13)};
  EXPECT_EQ(products, 2728);
  EXPECT_EQ(step_operations(tiny_spec(), std::span(batches, 1), true), 2 * products);
  EXPECT_EQ(step_operations(tiny_spec(), batches, true), 2 * 2 * products);
  // A head that is kept has no gradient; features that no norm is trained over have none either.
  EXPECT_EQ(step_operations(tiny_spec(), std::span(batches, 1), false), 2 * (products - 2 * head));
  DraftSpec bare = tiny_spec();
  bare.feature_norm = FeatureNorm::kNone;
  EXPECT_EQ(step_operations(bare, std::span(batches, 1), true), 2 * (products - 3 * fc));
}

TEST(Ceiling, WithoutASupervisedRowNothingIsComputed) {
  PackedBatch batch = tiny_batch(0);
  batch.teacher_states.clear();
  EXPECT_EQ(step_operations(tiny_spec(), std::span(&batch, 1), true), 0);
}

TEST(Ceiling, IsMeasuredInEitherTypeWithoutDrawingANumber) {
  at::manual_seed(5);
  const double next = at::rand({1}).item<double>();
  at::manual_seed(5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) EXPECT_GT(matmul_ceiling(tiny_spec(), 8, type), 0);
  EXPECT_EQ(at::rand({1}).item<double>(), next);
}

}  // namespace
}  // namespace aerie::train
