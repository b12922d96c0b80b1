// The LibTorch instantiation of the one forward: against the numpy reference, against our kernels, and its gradients against
// finite differences in double.
#include "train/ttt.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "eagle3/drafter.h"
#include "support/draft_golden.h"
#include "tiny_target.h"
#include "train/optimizer.h"

namespace aerie::train {
namespace {

at::Tensor tensor_of(const TensorView& view, at::ScalarType type) {
  const std::vector<float> values = to_float(view).value();
  const std::vector<int64_t> shape(view.shape.begin(), view.shape.end());
  return at::from_blob(const_cast<float*>(values.data()), shape, at::kFloat).to(type, false, true);
}

/// A checkpoint's weights as parameters, whose view() the forward takes.
Parameters parameters_of(const DraftCheckpoint& checkpoint, at::ScalarType type) {
  TargetTensors none;
  none.config.hidden = checkpoint.spec.target_hidden;
  Parameters parameters = Parameters::initial(checkpoint.spec, none, HeadMode::kFree, 1, type);
  const at::NoGradGuard no_grad;
  for (Parameter& p : parameters.list()) p.value.copy_(tensor_of(checkpoint.tensors.at(p.name), type));
  return parameters;
}

/// The golden's rows at every step; all rows at step 0.
PackedBatch golden_batch(const DraftGolden& golden) {
  PackedBatch batch;
  batch.steps.resize(kGoldenSteps);
  const int64_t rows = golden.rows.back() + 1;
  batch.document_rows = {rows};
  batch.features = golden.features;
  batch.features.resize(static_cast<size_t>(rows) * static_cast<size_t>(golden.checkpoint.spec.feature_width()));
  for (int64_t i = 0; i < rows; ++i) {
    batch.steps[0].tokens.push_back(golden.tokens[static_cast<size_t>(i) + 1]);
    batch.steps[0].positions.push_back(i);
    if (i % kMaxRun == 0) batch.steps[0].runs.push_back({0, i, i, std::min(kMaxRun, rows - i)});
  }
  for (int s = 1; s < kGoldenSteps; ++s) {
    StepPlan& plan = batch.steps[static_cast<size_t>(s)];
    for (size_t r = 0; r < golden.rows.size(); ++r) {
      const int64_t row = golden.rows[r], place = static_cast<int64_t>(r);
      plan.parents.push_back(s == 1 ? row : place);
      plan.tokens.push_back(golden.tokens[static_cast<size_t>(row + 1 + s)]);
      plan.positions.push_back(row + s);
      plan.runs.push_back({0, row, place, 1});
    }
  }
  return batch;
}

float worst(const at::Tensor& found, const float* expected) {
  const at::Tensor reference = at::from_blob(const_cast<float*>(expected), found.sizes(), at::kFloat).to(found.scalar_type());
  return ((found - reference).abs() / reference.abs().clamp_min(1)).max().item<float>();
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, AgreesWithTheNumpyReference) {
  const DraftGolden golden = load_draft_golden(GetParam());
  const DraftSpec& spec = golden.checkpoint.spec;
  const at::NoGradGuard no_grad;
  const at::Tensor embedding = spec.own_embedding ? tensor_of(golden.checkpoint.tensors.at("embed_tokens"), at::kFloat)
                                                  : at::tensor(golden.target_embedding, at::kFloat).view({spec.vocab, spec.hidden});
  const Parameters parameters = parameters_of(golden.checkpoint, at::kFloat);
  TorchOps ops;
  const auto weights = parameters.view(spec, at::kFloat);
  const PackedBatch batch = golden_batch(golden);
  const auto steps = unroll(ops, spec, weights, embedding, batch);
  ASSERT_EQ(steps.size(), static_cast<size_t>(kGoldenSteps));
  const std::vector<int64_t> rows(golden.rows.begin(), golden.rows.end());
  const size_t n = rows.size(), width = static_cast<size_t>(spec.hidden);
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto known = [&](const at::Tensor& all) { return s == 0 ? all.index_select(0, at::tensor(rows, at::kLong)) : all; };
    EXPECT_LT(worst(known(steps[s].head_input), golden.head_input.data() + s * n * width), 1e-4f) << "step " << s;
    EXPECT_LT(worst(known(steps[s].feedback), golden.feedback.data() + s * n * width), 1e-4f) << "step " << s;
    if (!spec.own_head) continue;
    const at::Tensor logits = at::linear(known(steps[s].head_input), weights.lm_head) * spec.logit_scale;
    EXPECT_LT(worst(logits, golden.logits.data() + s * n * static_cast<size_t>(spec.draft_vocab)), 1e-4f) << "step " << s;
  }
}

TEST_P(Golden, AgreesWithOurKernelsAtEveryStep) {
  const DraftGolden golden = load_draft_golden(GetParam());
  const DraftSpec& spec = golden.checkpoint.spec;
  const size_t width = static_cast<size_t>(spec.hidden);
  TargetTables tables;
  tables.hidden = spec.target_hidden;
  tables.vocab = spec.vocab;
  tables.blocks = 12;
  tables.embed = [&](int32_t token, float* out) {
    std::copy_n(golden.target_embedding.data() + static_cast<size_t>(token) * width, width, out);
  };
  tables.head = [](const float*, int, float*) {};
  const auto drafter = Drafter::create(golden.checkpoint, tables, DraftPrecision::kFloat32);
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  ThreadPool pool(2);
  CpuOps cpu(kernels::best_kernels(), pool);

  const at::NoGradGuard no_grad;
  const at::Tensor embedding = spec.own_embedding ? tensor_of(golden.checkpoint.tensors.at("embed_tokens"), at::kFloat)
                                                  : at::tensor(golden.target_embedding, at::kFloat).view({spec.vocab, spec.hidden});
  TorchOps ops;
  const Parameters parameters = parameters_of(golden.checkpoint, at::kFloat);
  const PackedBatch batch = golden_batch(golden);
  const auto steps = unroll(ops, spec, parameters.view(spec, at::kFloat), embedding, batch);

  DraftKv prefix = drafter->new_kv();
  std::vector<DraftRow> rows;
  for (size_t i = 0; i < batch.steps[0].tokens.size(); ++i) {
    rows.push_back({static_cast<int32_t>(batch.steps[0].tokens[i]), static_cast<int>(i), &prefix});
  }
  DraftStates states;
  drafter->step0(cpu, rows, batch.features.data(), states);
  EXPECT_LT(worst(steps[0].head_input, states.head_input.data()), 1e-4f);
  std::vector<DraftKv> caches;
  for (const int row : golden.rows) caches.push_back(prefix.fork(row + 1));
  std::vector<float> feedback = states.feedback;
  for (size_t s = 1; s < steps.size(); ++s) {
    const StepPlan& plan = batch.steps[s];
    std::vector<float> h;
    rows.clear();
    for (size_t r = 0; r < plan.tokens.size(); ++r) {
      rows.push_back({static_cast<int32_t>(plan.tokens[r]), static_cast<int>(plan.positions[r]), &caches[r]});
      const float* parent = feedback.data() + static_cast<size_t>(plan.parents[r]) * width;
      h.insert(h.end(), parent, parent + width);
    }
    drafter->step(cpu, rows, h.data(), states);
    feedback = states.feedback;
    EXPECT_LT(worst(steps[s].head_input, states.head_input.data()), 1e-4f) << "step " << s;
    EXPECT_LT(worst(steps[s].feedback, states.feedback.data()), 1e-4f) << "step " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden, testing::ValuesIn(draft_golden_names()), [](const auto& test) { return test.param; });

/// A tiny target with its traces in one packed row, for a loss in double.
struct LossCase {
  LossCase(FeatureNorm feature_norm, Feedback feedback, bool norm_before_residual, HeadMode head, int documents = 3,
           void (*change)(DraftSpec&) = nullptr) {
    tensors = read_target_tensors(target.path()).value();
    spec.taps = {1, 3};
    spec.target_hidden = spec.hidden = kTinyHidden;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_dim = 8;
    spec.rope_dim = 8;
    spec.intermediate = 12;
    spec.feature_norm = feature_norm;
    spec.feedback = feedback;
    spec.norm_before_residual = norm_before_residual;
    spec.max_positions = 256;
    spec.vocab = kTinyVocab;
    spec.draft_vocab = 40;
    for (int d = 0; d < spec.draft_vocab; ++d) spec.d2t.push_back(d + d / 3);
    if (change != nullptr) change(spec);
    EXPECT_TRUE(spec.validate().ok()) << spec.validate().message();
    traces = target.conversations(documents);
    parameters = Parameters::initial(spec, tensors, head, 5, at::kDouble);
    // Norm weights of one would hide a norm that is applied to the wrong thing.
    const at::NoGradGuard no_grad;
    at::Generator generator = at::detail::createCPUGenerator(9);
    for (Parameter& p : parameters.list()) {
      if (p.value.dim() == 1) p.value.copy_(at::empty_like(p.value).uniform_(0.5, 1.5, generator));
    }
    teacher = make_teacher(tensors, spec, at::kDouble, at::kDouble);
  }

  double loss(const PackedBatch& batch, const std::vector<double>& weights, bool backward) {
    const auto stats = run_ttt(ops, spec, parameters.view(spec, at::kDouble), teacher, batch, options, weights, backward,
                               backward ? parameters.head_gradient() : at::Tensor());
    double sum = 0;
    for (size_t s = 0; s < stats.size(); ++s) sum += weights[s] * stats[s].loss;
    return sum;
  }

  at::Tensor gradient(const Parameter& p) const { return p.gradient.defined() ? p.gradient : p.value.grad(); }

  TinyTarget target;
  TargetTensors tensors;
  DraftSpec spec;
  std::vector<Trace> traces;
  Parameters parameters;
  Teacher teacher;
  LossOptions options;
  TorchOps ops{at::kDouble};
};

class Gradient : public testing::TestWithParam<int> {};

constexpr int kFlagCases = 12;
constexpr void (*kOtherShapes[])(DraftSpec&) = {
    [](DraftSpec& s) {
      s.layers = 2;
      s.layout = LayerLayout::kConcat;
      s.qkv_bias = s.o_bias = s.mlp_bias = s.fc_bias = s.qk_norm = s.feature_normed_twice = true;
      s.rope_dim = 4;
    },
    [](DraftSpec& s) {
      s.layers = 2;
      s.layout = LayerLayout::kHiddenNorm;
      s.sliding_window = 2;  // at the last step not even the row's own keys of all steps
    },
    [](DraftSpec& s) {
      s.attention = AttentionKind::kMla;
      s.kv_heads = s.heads;
      s.q_rank = 6;
      s.kv_rank = 10;
      s.nope_dim = s.rope_dim = 4;
      s.v_dim = 12;
      s.rope_interleaved = true;
      s.sliding_window = 5;
    },
};

TEST_P(Gradient, EqualsFiniteDifferencesInDouble) {
  const int n = GetParam();
  LossCase c(static_cast<FeatureNorm>(n % 3), static_cast<Feedback>(n / 3 % 2), n / 6 % 2 == 1,
             n % 2 == 0 ? HeadMode::kWarm : HeadMode::kFree, 3, n < kFlagCases ? nullptr : kOtherShapes[n - kFlagCases]);
  const PackedBatch batch = pack_documents(c.traces, 3, invert_d2t(c.spec), {.anchors = n % 3 == 1 ? 4 : 0});
  ASSERT_FALSE(batch.steps[2].loss_rows.empty());
  c.options.teacher_temperature = n % 4 == 3 ? 0.6 : 1.0;
  const std::vector<double> weights = row_weights(loss_rows({batch}, batch.steps.size()), 0.8);
  c.parameters.zero_gradients();
  c.loss(batch, weights, true);
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(n));
  constexpr double kStep = 1e-5;
  for (Parameter& p : c.parameters.list()) {
    ASSERT_TRUE(c.gradient(p).defined()) << p.name;
    // Along random directions every entry takes part; a few single entries catch what cancels.
    for (int trial = 0; trial < 4; ++trial) {
      const at::NoGradGuard no_grad;
      at::Tensor direction = at::zeros_like(p.value);
      if (trial < 2) {
        direction.normal_(0, 1, generator);
      } else {
        direction.view({-1})[(trial * 7919) % direction.numel()] = 1;
      }
      const auto slope = [&](double step) {
        p.value.add_(direction, step);
        const double above = c.loss(batch, weights, false);
        p.value.add_(direction, -2 * step);
        const double below = c.loss(batch, weights, false);
        p.value.add_(direction, step);
        return (above - below) / (2 * step);
      };
      // Two steps together cancel the error of second order, which reaches 1e-6 along some of the random directions.
      const double expected = (4 * slope(kStep / 2) - slope(kStep)) / 3, found = (c.gradient(p) * direction).sum().item<double>();
      EXPECT_NEAR(found, expected, 5e-7 * std::max(1.0, std::fabs(expected))) << p.name << ", trial " << trial;
    }
  }
}

// Other devices than the CPU are not at hand when tests are run: what is computed there is computed here.
TEST_P(Gradient, IsTheSameInLibTorchsOwnOperations) {
  const int n = GetParam();
  LossCase c(static_cast<FeatureNorm>(n % 3), static_cast<Feedback>(n / 3 % 2), n / 6 % 2 == 1,
             n % 2 == 0 ? HeadMode::kWarm : HeadMode::kFree, 3, n < kFlagCases ? nullptr : kOtherShapes[n - kFlagCases]);
  c.traces.push_back(c.target.conversation(77, 90, 100));  // several runs of rows
  c.options = {n % 2 == 0 ? Loss::kKl : Loss::kLkHybrid, n % 4 == 3 ? 0.6 : 1.0};
  PackedBatch batch = pack_documents(c.traces, 3, invert_d2t(c.spec));
  if (n % 3 == 1) pad_rows(batch);
  const std::vector<double> weights = row_weights(loss_rows({batch}, batch.steps.size()), 0.8);
  c.parameters.zero_gradients();
  const double expected = c.loss(batch, weights, true);
  std::vector<at::Tensor> gradients;
  for (const Parameter& p : c.parameters.list()) gradients.push_back(c.gradient(p).clone());
  const double norm = c.parameters.gradient_norm();

  const WithoutRowOps other_device;
  c.parameters.zero_gradients();
  EXPECT_NEAR(c.loss(batch, weights, true), expected, 1e-10 * expected);
  EXPECT_NEAR(c.parameters.gradient_norm(), norm, 1e-10 * norm);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Parameter& p = c.parameters.list()[i];
    EXPECT_LT((c.gradient(p) - gradients[i]).abs().max().item<double>(), 1e-10 * (1 + gradients[i].abs().max().item<double>())) << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(AllFlags, Gradient, testing::Range(0, kFlagCases + static_cast<int>(std::size(kOtherShapes))));

TEST(Packed, EqualsUnpacked) {
  LossCase c(FeatureNorm::kConcat, Feedback::kPostNorm, false, HeadMode::kWarm, 4);
  c.traces.push_back(c.target.conversation(77, 90, 100));  // several runs of rows
  const auto map = invert_d2t(c.spec);
  const PackedBatch together = pack_documents(c.traces, 4, map);
  const std::vector<double> weights = row_weights(loss_rows({together}, together.steps.size()), 0.7);
  c.parameters.zero_gradients();
  const double packed = c.loss(together, weights, true);
  std::vector<at::Tensor> gradients;
  for (const Parameter& p : c.parameters.list()) gradients.push_back(c.gradient(p).clone());

  c.parameters.zero_gradients();
  std::vector<PackedBatch> alone;
  for (const Trace& trace : c.traces) alone.push_back(pack_documents({&trace, 1}, 4, map));
  EXPECT_EQ(row_weights(loss_rows(alone, alone[0].steps.size()), 0.7), weights);
  double unpacked = 0;
  for (const PackedBatch& batch : alone) unpacked += c.loss(batch, weights, true);
  EXPECT_NEAR(packed, unpacked, 1e-12 * packed);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor now = c.gradient(c.parameters.list()[i]);
    EXPECT_LT((now - gradients[i]).abs().max().item<double>(), 1e-12 * (1 + gradients[i].abs().max().item<double>()));
  }
}

TEST(Packed, PaddingChangesNothing) {
  LossCase c(FeatureNorm::kPerTap, Feedback::kPostNorm, false, HeadMode::kWarm, 4);
  const PackedBatch bare = pack_documents(c.traces, 4, invert_d2t(c.spec));
  PackedBatch batch = bare;
  pad_rows(batch);
  for (const StepPlan& plan : batch.steps) EXPECT_EQ(plan.tokens.size() % kRowMultiple, 0u);
  EXPECT_GT(batch.rows(), bare.rows());
  const std::vector<double> weights = row_weights(loss_rows({bare}, bare.steps.size()), 0.7);
  c.parameters.zero_gradients();
  const double expected = c.loss(bare, weights, true);
  std::vector<at::Tensor> gradients;
  for (const Parameter& p : c.parameters.list()) gradients.push_back(c.gradient(p).clone());
  c.parameters.zero_gradients();
  EXPECT_NEAR(c.loss(batch, weights, true), expected, 1e-12 * expected);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor now = c.gradient(c.parameters.list()[i]);
    EXPECT_LT((now - gradients[i]).abs().max().item<double>(), 1e-12 * (1 + gradients[i].abs().max().item<double>()));
  }
}

TEST(Packed, AnotherDocumentChangesNothing) {
  LossCase c(FeatureNorm::kNone, Feedback::kPreNorm, true, HeadMode::kFree);
  const at::NoGradGuard no_grad;
  const auto map = invert_d2t(c.spec);
  const PackedBatch alone = pack_documents({&c.traces[1], 1}, 3, map), together = pack_documents(c.traces, 3, map);
  const auto weights = c.parameters.view(c.spec, at::kDouble);
  const auto one = unroll(c.ops, c.spec, weights, c.teacher.embedding, alone);
  const auto all = unroll(c.ops, c.spec, weights, c.teacher.embedding, together);
  const int64_t before = together.document_rows[0], rows = together.document_rows[1];
  EXPECT_LT((all[0].head_input.narrow(0, before, rows) - one[0].head_input).abs().max().item<double>(), 1e-12);
}

/// The rows that anchors leave compute what they compute among all of them.
TEST(Packed, AnchorsLeaveRowsAsTheyAre) {
  std::vector<void (*)(DraftSpec&)> shapes(std::begin(kOtherShapes), std::end(kOtherShapes));
  shapes.push_back(nullptr);
  for (const auto& change : shapes) {
    LossCase c(FeatureNorm::kConcat, Feedback::kPostNorm, false, HeadMode::kWarm, 3, change);
    c.traces.push_back(c.target.conversation(77, 30, 200));  // more than one run
    const at::NoGradGuard no_grad;
    const auto map = invert_d2t(c.spec);
    const PackedBatch all = pack_documents(c.traces, 3, map), some = pack_documents(c.traces, 3, map, {.anchors = 140});
    ASSERT_LT(some.steps[1].tokens.size(), all.steps[1].tokens.size());
    ASSERT_GT(some.steps[2].runs.size(), c.traces.size());
    const auto weights = c.parameters.view(c.spec, at::kDouble);
    const auto expected = unroll(c.ops, c.spec, weights, c.teacher.embedding, all);
    const auto found = unroll(c.ops, c.spec, weights, c.teacher.embedding, some);
    ASSERT_EQ(found.size(), 3u);
    // Each row of a step by its row of step 0.
    std::vector<int64_t> all_roots, some_roots;
    for (size_t s = 1; s < 3; ++s) {
      const auto descend = [s](std::vector<int64_t>& roots, const StepPlan& plan) {
        std::vector<int64_t> now;
        for (const int64_t parent : plan.parents) now.push_back(s == 1 ? parent : roots[static_cast<size_t>(parent)]);
        roots = now;
      };
      descend(all_roots, all.steps[s]);
      descend(some_roots, some.steps[s]);
      std::vector<int64_t> places;
      for (const int64_t root : some_roots) places.push_back(std::ranges::find(all_roots, root) - all_roots.begin());
      const at::Tensor same = expected[s].head_input.index_select(0, at::tensor(places, at::kLong));
      EXPECT_LT((found[s].head_input - same).abs().max().item<double>(), 1e-12) << "step " << s;
    }
  }
}

TEST(Loss, IsTheKlDivergenceByHand) {
  LossCase c(FeatureNorm::kConcat, Feedback::kPostNorm, false, HeadMode::kFree, 2);
  const at::NoGradGuard no_grad;
  const PackedBatch batch = pack_documents(c.traces, 2, invert_d2t(c.spec));
  const auto weights = c.parameters.view(c.spec, at::kDouble);
  const auto steps = unroll(c.ops, c.spec, weights, c.teacher.embedding, batch);
  const auto stats = run_ttt(c.ops, c.spec, weights, c.teacher, batch, {}, {1, 1}, false);
  for (size_t s = 0; s < steps.size(); ++s) {
    const StepPlan& plan = batch.steps[s];
    double expected = 0;
    int64_t correct = 0;
    for (size_t n = 0; n < plan.loss_rows.size(); ++n) {
      const at::Tensor q = at::softmax(at::mv(weights.lm_head, steps[s].head_input[plan.loss_rows[n]]), 0);
      std::vector<double> state;
      for (size_t i = 0; i < kTinyHidden; ++i) {
        state.push_back(bf16_to_f32(batch.teacher_states[static_cast<size_t>(plan.teachers[n]) * kTinyHidden + i]));
      }
      const at::Tensor h = at::tensor(state, at::kDouble);
      const at::Tensor p = at::softmax(at::mv(c.teacher.head, h / (h.square().mean() + 1e-5).sqrt() * c.teacher.final_norm), 0);
      EXPECT_EQ(p.argmax().item<int64_t>(), plan.labels[n]);
      expected += (p * (p / q).log()).sum().item<double>();
      correct += q.argmax().item<int64_t>() == plan.labels[n] ? 1 : 0;
    }
    EXPECT_NEAR(stats[s].loss, expected, 1e-6 * expected);
    EXPECT_EQ(stats[s].correct, correct);
    EXPECT_EQ(stats[s].supervised, plan.supervised);
    EXPECT_EQ(stats[s].trained, static_cast<int64_t>(plan.loss_rows.size()));
    EXPECT_LT(stats[s].trained, stats[s].supervised);  // the draft vocabulary has gaps
  }
}

TEST(Optimiser, FollowsTheFormulaByHand) {
  LossCase c(FeatureNorm::kConcat, Feedback::kPostNorm, false, HeadMode::kWarm, 1);
  Parameter& p = *c.parameters.find("layers.0.o");
  const at::NoGradGuard no_grad;
  const double before = p.value[0][0].item<double>();
  p.value.mutable_grad() = at::full_like(p.value, 0.5);
  const double norm = c.parameters.gradient_norm();
  EXPECT_NEAR(norm, 0.5 * std::sqrt(static_cast<double>(p.value.numel())), 1e-9);
  OptimizerOptions adam;
  adam.clip = norm / 2;  // halves the gradient
  update(c.parameters, adam, 0.01, 1, norm);
  // First step: both moments are corrected to g and g^2, so the step is the rate itself whatever the gradient's size.
  EXPECT_NEAR(p.value[0][0].item<double>(), before * (1 - 0.01 * 0.01) - 0.01 * 0.25 / (0.25 + 1e-8), 1e-12);
  EXPECT_NEAR(p.first[0][0].item<double>(), 0.1 * 0.25, 1e-12);
  EXPECT_NEAR(p.second[0][0].item<double>(), 0.05 * 0.0625, 1e-12);
}

TEST(Optimiser, MuonStepsAlongTheSingularVectors) {
  at::Generator generator = at::detail::createCPUGenerator(3);
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{12, 40}, {40, 12}, {16, 16}}) {
    const at::Tensor g = at::empty({rows, cols}, at::kDouble).normal_(0, 3, generator);
    const at::Tensor o = orthogonalised(g, g.norm().item<double>());
    const auto [u, s, v] = at::linalg_svd(g, false);
    // In the gradient's own singular directions, values near one and nothing off the diagonal.
    const at::Tensor inside = at::matmul(at::matmul(u.t(), o), v.t()), values = inside.diagonal();
    EXPECT_LT((inside - at::diag(values)).abs().max().item<double>(), 1e-9);
    EXPECT_GT(values.min().item<double>(), 0.5);
    EXPECT_LT(values.max().item<double>(), 1.3);
  }

  LossCase c(FeatureNorm::kConcat, Feedback::kPostNorm, false, HeadMode::kWarm, 1);
  const at::NoGradGuard no_grad;
  Parameter &matrix = *c.parameters.find("layers.0.o"), &norm = *c.parameters.find("norm");
  const at::Tensor matrix_before = matrix.value.clone(), norm_before = norm.value.clone();
  matrix.value.mutable_grad() = at::empty_like(matrix.value).normal_(0, 1, generator);
  norm.value.mutable_grad() = at::full_like(norm.value, 0.5);
  OptimizerOptions muon;
  muon.kind = Optimizer::kMuon;
  muon.matmul_type = at::kDouble;
  muon.clip = 1e9;
  update(c.parameters, muon, 0.01, 1, 1.0);
  const double longer = static_cast<double>(std::max(matrix.value.size(0), matrix.value.size(1)));
  const at::Tensor expected =
      matrix_before * (1 - 0.01 * 0.01) -
      0.01 * 0.2 * std::sqrt(longer) * orthogonalised(matrix.value.grad(), matrix.value.grad().norm().item<double>());
  EXPECT_LT((matrix.value - expected).abs().max().item<double>(), 1e-7);
  EXPECT_NEAR(norm.value[0].item<double>(), norm_before[0].item<double>() - 0.01, 1e-6);  // AdamW's first step
}

}  // namespace
}  // namespace aerie::train
