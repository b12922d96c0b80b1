// The CPU instantiation of the one forward against the numpy reference, and the law that a row's bytes are its own.
#include "eagle3/drafter.h"

#include <cmath>
#include <functional>

#include "draft_fixture.h"
#include "eagle3/dialects/speculators.h"

namespace aerie {
namespace {

using kernels::Isa;

/// Three steps of all known rows of a case; index = step.
std::vector<DraftStates> unroll(const Drafter& drafter, CpuOps& ops, const DraftGolden& golden, int batch) {
  const size_t width = static_cast<size_t>(drafter.spec().hidden), feature = static_cast<size_t>(drafter.spec().feature_width());
  std::vector<DraftStates> out(kGoldenSteps);
  DraftStates states;
  DraftKv prefix = drafter.new_kv();
  const int count = golden.rows.back() + 1;
  std::vector<float> head_input, feedback;
  for (int begin = 0; begin < count; begin += batch) {
    std::vector<DraftRow> rows;
    for (int i = begin; i < std::min(count, begin + batch); ++i) rows.push_back({golden.tokens[static_cast<size_t>(i) + 1], i, &prefix});
    drafter.step0(ops, rows, golden.features.data() + static_cast<size_t>(begin) * feature, states);
    head_input.insert(head_input.end(), states.head_input.begin(), states.head_input.end());
    feedback.insert(feedback.end(), states.feedback.begin(), states.feedback.end());
  }
  std::vector<DraftKv> caches;
  const auto pick = [&](const std::vector<float>& from, int row, std::vector<float>& to) {
    const auto at = from.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(row) * width);
    to.insert(to.end(), at, at + static_cast<std::ptrdiff_t>(width));
  };
  for (const int row : golden.rows) {
    pick(head_input, row, out[0].head_input);
    pick(feedback, row, out[0].feedback);
    caches.push_back(prefix.fork(row + 1));
  }
  for (int s = 1; s < kGoldenSteps; ++s) {
    DraftStates& result = out[static_cast<size_t>(s)];
    for (size_t begin = 0; begin < golden.rows.size(); begin += static_cast<size_t>(batch)) {
      std::vector<DraftRow> rows;
      for (size_t r = begin; r < std::min(golden.rows.size(), begin + static_cast<size_t>(batch)); ++r) {
        const int position = golden.rows[r] + s;
        rows.push_back({golden.tokens[static_cast<size_t>(position) + 1], position, &caches[r]});
      }
      drafter.step(ops, rows, out[static_cast<size_t>(s) - 1].feedback.data() + begin * width, states);
      result.head_input.insert(result.head_input.end(), states.head_input.begin(), states.head_input.end());
      result.feedback.insert(result.feedback.end(), states.feedback.begin(), states.feedback.end());
    }
  }
  return out;
}

float worst(const std::vector<float>& found, const float* expected) {
  float out = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const float error = std::fabs(found[i] - expected[i]) / std::max(1.0f, std::fabs(expected[i]));
    out = std::isfinite(error) ? std::max(out, error) : 1e30f;
  }
  return out;
}

/// The largest relative error of head inputs, feedback and logits over all steps.
float golden_error(const DraftGolden& golden, const DraftSpec& spec, Isa isa, DraftPrecision precision) {
  DraftCheckpoint checkpoint = golden.checkpoint;
  checkpoint.spec = spec;
  auto drafter = Drafter::create(checkpoint, golden_tables(golden), precision);
  EXPECT_TRUE(drafter.ok()) << drafter.status().message();
  if (!drafter.ok()) return 1e30f;
  ThreadPool pool(2);
  CpuOps ops(table(isa), pool);
  const auto states = unroll(*drafter, ops, golden, 64);
  const size_t n = golden.rows.size(), width = static_cast<size_t>(spec.hidden), vocab = static_cast<size_t>(spec.draft_vocab);
  float out = 0;
  for (size_t s = 0; s < states.size(); ++s) {
    std::vector<float> logits(n * vocab);
    drafter->logits(ops, states[s].head_input.data(), static_cast<int>(n), logits.data());
    std::vector<int32_t> ids(n);
    drafter->argmax(ops, states[s].head_input.data(), static_cast<int>(n), ids.data());
    out =
        std::max({out, worst(states[s].head_input, golden.head_input.data() + s * n * width),
                  worst(states[s].feedback, golden.feedback.data() + s * n * width), worst(logits, golden.logits.data() + s * n * vocab)});
    if (out < 1e-4f) {
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), golden.predictions.begin() + static_cast<std::ptrdiff_t>(s * n))) << "step " << s;
    }
  }
  return out;
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, ThreeStepsAgreeWithNumpyOnEveryIsa) {
  const DraftGolden golden = load_draft_golden(GetParam());
  ASSERT_FALSE(golden.tokens.empty());
  for (const Isa isa : kernels::available_isas()) {
    EXPECT_LT(golden_error(golden, golden.checkpoint.spec, isa, DraftPrecision::kFloat32), 5e-5f) << table(isa).name;
  }
}

/// The drafter whose matrices hold what 8 bits and a scale per 32 columns leave of their values, where they have whole blocks.
DraftCheckpoint eight_bits(DraftCheckpoint checkpoint, std::vector<std::vector<float>>& memory) {
  memory.reserve(checkpoint.tensors.size());
  for (auto& [name, tensor] : checkpoint.tensors) {
    if (tensor.shape.size() != 2 || tensor.cols() % 32 != 0 || name == "embed_tokens") continue;
    std::vector<float>& values = memory.emplace_back(to_float(tensor).value());
    for (size_t begin = 0; begin < values.size(); begin += 32) {
      const auto block = std::span(values).subspan(begin, 32);
      float largest = 0;
      for (const float value : block) largest = std::max(largest, std::fabs(value));
      const float scale = f16_to_f32(f32_to_f16(largest / 127));
      for (float& value : block) value = scale == 0 ? 0 : scale * std::nearbyint(value / scale);
    }
    tensor.type = DType::kF32;
    tensor.data = {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
  }
  return checkpoint;
}

TEST_P(Golden, ServedIsTheForwardOfTheWeightsInEightBits) {
  const DraftGolden golden = load_draft_golden(GetParam());
  std::vector<std::vector<float>> memory;
  const DraftCheckpoint rounded = eight_bits(golden.checkpoint, memory);
  const auto exact = Drafter::create(rounded, golden_tables(golden), DraftPrecision::kFloat32);
  const auto served = Drafter::create(golden.checkpoint, golden_tables(golden), DraftPrecision::kServed);
  ASSERT_TRUE(exact.ok() && served.ok());
  ThreadPool pool(2);
  for (const Isa isa : kernels::available_isas()) {
    CpuOps ops(table(isa), pool);
    const auto expected = unroll(*exact, ops, golden, 64), found = unroll(*served, ops, golden, 64);
    for (size_t s = 0; s < found.size(); ++s) {
      // What is left are the 12 bits of the activations, and what steep attention over a handful of values makes of them.
      EXPECT_LT(worst(found[s].head_input, expected[s].head_input.data()), 0.1f) << table(isa).name << ", step " << s;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(draft_golden_names()), [](const auto& test) { return test.param; });

/// A change of one field that moves the forward's results by more than `least`, at a golden whose tensors still fit. Fields that
/// come with tensors of their own need none: a golden without the tensor's effect would not agree.
struct FieldChange {
  const char* golden;
  const char* field;
  void (*change)(DraftSpec&);
  float least = 1e-2f;
};

TEST(Drafter, EveryFieldOfTheSpecReachesTheForward) {
  const FieldChange changes[] = {
      {"normed_none_post", "norm_before_residual", [](DraftSpec& s) { s.norm_before_residual = false; }},
      {"normed_none_post", "feedback", [](DraftSpec& s) { s.feedback = Feedback::kPreNorm; }},
      {"normed_none_post", "rope_theta", [](DraftSpec& s) { s.rope_theta = 20000.0f; }, 1e-4f},
      {"normed_none_post", "rms_eps", [](DraftSpec& s) { s.rms_eps = 1e-1f; }, 1e-3f},
      {"normed_none_post", "rope_dim", [](DraftSpec& s) { s.rope_dim = 4; }},
      {"normed_none_post", "rope_interleaved", [](DraftSpec& s) { s.rope_interleaved = true; }},
      {"normed_none_post", "attention_scale", [](DraftSpec& s) { s.attention_scale = 1.5f; }},
      {"normed_none_post", "sliding_window", [](DraftSpec& s) { s.sliding_window = 4; }},
      {"normed_none_post", "feature_normed_twice", [](DraftSpec& s) { s.feature_normed_twice = true; }},
      {"normed_none_post", "head_norm", [](DraftSpec& s) { s.head_norm = false; }},
      {"normed_none_post", "logit_scale", [](DraftSpec& s) { s.logit_scale = 0.5f; }},
      {"spec_layers_c", "layers", [](DraftSpec& s) { s.layers = 1; }},
      {"spec_rope_linear", "rope_scaling.factor", [](DraftSpec& s) { s.rope_scaling.factor = 2.0f; }},
      {"spec_rope_linear", "rope_scaling.kind", [](DraftSpec& s) { s.rope_scaling.kind = RopeScalingKind::kNone; }},
      {"spec_rope_llama3", "rope_scaling.low_freq_factor", [](DraftSpec& s) { s.rope_scaling.low_freq_factor = 3.0f; }, 1e-4f},
      {"spec_rope_llama3", "rope_scaling.high_freq_factor", [](DraftSpec& s) { s.rope_scaling.high_freq_factor = 16.0f; }, 1e-4f},
      {"spec_rope_llama3", "rope_scaling.original_max_positions", [](DraftSpec& s) { s.rope_scaling.original_max_positions = 8; }, 1e-4f},
      {"spec_rope_yarn", "rope_scaling.beta_fast", [](DraftSpec& s) { s.rope_scaling.beta_fast = 16.0f; }, 1e-3f},
      {"spec_rope_yarn", "rope_scaling.beta_slow", [](DraftSpec& s) { s.rope_scaling.beta_slow = 3.0f; }, 1e-3f},
      {"spec_rope_yarn", "rope_scaling.truncate", [](DraftSpec& s) { s.rope_scaling.truncate = false; }, 1e-4f},
      {"spec_rope_yarn", "rope_scaling.magnitude", [](DraftSpec& s) { s.rope_scaling.magnitude = 1.0f; }},
      {"spec_mla", "latent_eps", [](DraftSpec& s) { s.latent_eps = 1e-1f; }, 1e-3f},
  };
  for (const FieldChange& change : changes) {
    const DraftGolden golden = load_draft_golden(change.golden);
    DraftSpec spec = golden.checkpoint.spec;
    EXPECT_LT(golden_error(golden, spec, Isa::kScalar, DraftPrecision::kFloat32), 5e-5f) << change.golden;
    change.change(spec);
    EXPECT_GT(golden_error(golden, spec, Isa::kScalar, DraftPrecision::kFloat32), change.least) << change.field;
  }
}

TEST(Drafter, ReadAsIsTheDrafterOfTheOtherSpec) {
  const DraftGolden golden = load_draft_golden(draft_golden_names()[0]);
  ThreadPool pool(1);
  CpuOps ops(kernels::best_kernels(), pool);
  const Drafter drafter = Drafter::create(golden.checkpoint, golden_tables(golden)).value();
  DraftCheckpoint other = golden.checkpoint;
  other.spec.rope_theta *= 7;
  other.spec.norm_before_residual = !other.spec.norm_before_residual;
  other.spec.feedback = other.spec.feedback == Feedback::kPreNorm ? Feedback::kPostNorm : Feedback::kPreNorm;
  std::reverse(other.spec.taps.begin(), other.spec.taps.end());
  const auto shared = drafter.read_as(other.spec);
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  const auto found = unroll(*shared, ops, golden, 8),
             expected = unroll(Drafter::create(other, golden_tables(golden)).value(), ops, golden, 8);
  const auto before = unroll(drafter, ops, golden, 8);
  for (size_t s = 0; s < found.size(); ++s) {
    EXPECT_EQ(found[s].head_input, expected[s].head_input) << s;
    EXPECT_EQ(found[s].feedback, expected[s].feedback) << s;
    EXPECT_NE(found[s].feedback, before[s].feedback) << s;
  }
}

TEST(Drafter, ReadAsRefusesASpecThatCallsForOtherWeights) {
  const DraftSpec spec = tiny_spec();
  const auto weights = random_weights(spec, 5);
  DraftCheckpoint checkpoint;
  checkpoint.spec = spec;
  for (const DraftTensor& tensor : draft_tensors(spec)) {
    const std::vector<float>& values = weights.at(tensor.name);
    checkpoint.tensors[tensor.name] = {
        tensor.name, DType::kF32, tensor.shape, {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)}};
  }
  TargetTables tables;
  tables.hidden = spec.target_hidden, tables.vocab = spec.vocab, tables.blocks = 4;
  const Drafter drafter = Drafter::create(checkpoint, tables).value();
  const auto message = [&](const std::function<void(DraftSpec&)>& change) {
    DraftSpec other = spec;
    change(other);
    const auto result = drafter.read_as(other);
    return result.ok() ? std::string() : result.status().message();
  };
  const auto expect = [](const std::string& found, const char* part) { EXPECT_NE(found.find(part), std::string::npos) << found; };
  EXPECT_EQ(message([](DraftSpec& s) { s.feature_norm = FeatureNorm::kNone; }), "");  // it has more than is called for
  expect(message([](DraftSpec& s) { s.feature_norm = FeatureNorm::kPerTap; }), "needs fc_norm.0, which it has not");
  expect(message([](DraftSpec& s) { s.taps = {1}; }), "of shape [12], it has [24]");
  expect(message([](DraftSpec& s) { s.taps = {1, 5}; }), "boundary 5");
  expect(message([](DraftSpec& s) { s.rope_theta = -1; }), "rope_theta is -1");
}

TEST(Drafter, ARowsBytesDependNeitherOnTheBatchNorOnThreads) {
  for (const char* name : {"long", "normed_pertap_post", "raw_concat_post", "spec_all", "spec_window_long", "spec_mla_layers"}) {
    const DraftGolden golden = load_draft_golden(name);
    for (const Isa isa : kernels::available_isas()) {
      auto drafter = Drafter::create(golden.checkpoint, golden_tables(golden));
      ASSERT_TRUE(drafter.ok()) << drafter.status().message();
      ThreadPool one(1), three(3);
      CpuOps alone(table(isa), one);
      const auto expected = unroll(*drafter, alone, golden, 1);
      for (const int batch : {2, 3, 7, 64}) {
        CpuOps ops(table(isa), batch == 3 ? one : three);
        const auto found = unroll(*drafter, ops, golden, batch);
        for (size_t s = 0; s < found.size(); ++s) {
          EXPECT_EQ(found[s].head_input, expected[s].head_input) << name << " " << table(isa).name << " batch " << batch << " step " << s;
          EXPECT_EQ(found[s].feedback, expected[s].feedback) << name << " " << table(isa).name << " batch " << batch << " step " << s;
        }
      }
    }
  }
}

TEST(Drafter, RowsOfSeveralSequencesInOneCallAreThoseOfTheSequencesAlone) {
  const DraftGolden golden = load_draft_golden("normed_concat_pre");
  const size_t feature = static_cast<size_t>(golden.checkpoint.spec.feature_width());
  auto drafter = Drafter::create(golden.checkpoint, golden_tables(golden));
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  ThreadPool pool(2);
  CpuOps ops(kernels::best_kernels(), pool);
  const auto features_of = [&](std::initializer_list<size_t> positions) {
    std::vector<uint16_t> out;
    for (const size_t p : positions)
      out.insert(out.end(), golden.features.data() + p * feature, golden.features.data() + (p + 1) * feature);
    return out;
  };
  DraftStates alone_a, alone_b, together;
  DraftKv a = drafter->new_kv(), b = drafter->new_kv();
  drafter->step0(ops, std::vector<DraftRow>{{1, 0, &a}, {2, 1, &a}}, features_of({0, 1}).data(), alone_a);
  drafter->step0(ops, std::vector<DraftRow>{{5, 0, &b}, {6, 1, &b}}, features_of({4, 5}).data(), alone_b);
  DraftKv c = drafter->new_kv(), d = drafter->new_kv();
  // The rows of both stand interleaved.
  drafter->step0(ops, std::vector<DraftRow>{{1, 0, &c}, {5, 0, &d}, {2, 1, &c}, {6, 1, &d}}, features_of({0, 4, 1, 5}).data(), together);
  const size_t width = static_cast<size_t>(drafter->spec().hidden);
  const auto row = [width](const DraftStates& states, size_t r) {
    return std::vector<float>(states.feedback.data() + r * width, states.feedback.data() + (r + 1) * width);
  };
  EXPECT_EQ(row(together, 0), row(alone_a, 0));
  EXPECT_EQ(row(together, 1), row(alone_b, 0));
  EXPECT_EQ(row(together, 2), row(alone_a, 1));
  EXPECT_EQ(row(together, 3), row(alone_b, 1));
  EXPECT_NE(row(alone_a, 1), row(alone_b, 1));
}

TEST(Drafter, AStepMayReadTheFeedbackThatItReplaces) {
  const DraftGolden golden = load_draft_golden("raw_none_pre");
  auto drafter = Drafter::create(golden.checkpoint, golden_tables(golden));
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  ThreadPool pool(1);
  CpuOps ops(kernels::best_kernels(), pool);
  DraftKv kv = drafter->new_kv();
  DraftStates states, other;
  drafter->step0(ops, std::vector<DraftRow>{{3, 0, &kv}}, golden.features.data(), states);
  DraftKv fork = kv.fork(1);
  const std::vector<float> h = states.feedback;
  drafter->step(ops, std::vector<DraftRow>{{4, 1, &kv}}, states.feedback.data(), states);
  drafter->step(ops, std::vector<DraftRow>{{4, 1, &fork}}, h.data(), other);
  EXPECT_EQ(states.feedback, other.feedback);
}

TEST(Drafter, RefusesATargetThatItDoesNotFit) {
  const DraftGolden golden = load_draft_golden("raw_concat_pre");
  const auto refusal = [&](auto&& change) {
    TargetTables tables = golden_tables(golden);
    change(tables);
    auto drafter = Drafter::create(golden.checkpoint, tables);
    return drafter.ok() ? std::string("accepted") : drafter.status().message();
  };
  EXPECT_EQ(refusal([](TargetTables&) {}), "accepted");
  const std::string width = refusal([](TargetTables& t) { t.hidden = 576; });
  EXPECT_NE(width.find("hidden width 16, this target has 576"), std::string::npos) << width;
  const std::string vocab = refusal([](TargetTables& t) { t.vocab = 49152; });
  EXPECT_NE(vocab.find("40 tokens, this target has 49152"), std::string::npos) << vocab;
  const std::string blocks = refusal([](TargetTables& t) { t.blocks = 8; });
  EXPECT_NE(blocks.find("boundary 9, this target has only 8 blocks"), std::string::npos) << blocks;
  const std::string embed = refusal([](TargetTables& t) { t.embed = nullptr; });
  EXPECT_NE(embed.find("embedding"), std::string::npos) << embed;

  const DraftGolden headless = load_draft_golden("target_head");
  TargetTables tables = golden_tables(headless);
  tables.head = nullptr;
  auto drafter = Drafter::create(headless.checkpoint, tables);
  ASSERT_FALSE(drafter.ok());
  EXPECT_NE(drafter.status().message().find("head"), std::string::npos);
}

TEST(Drafter, RefusesWeightsThatAreNotFinite) {
  DraftGolden golden = load_draft_golden("raw_none_pre");
  TensorView& norm = golden.checkpoint.tensors.at("layers.0.hidden_norm");
  std::vector<uint8_t> bytes(norm.data.begin(), norm.data.end());
  bytes[4] = 0xc0;
  bytes[5] = 0x7f;  // a bf16 NaN in column 2
  norm.data = bytes;
  auto drafter = Drafter::create(golden.checkpoint, golden_tables(golden));
  ASSERT_FALSE(drafter.ok());
  EXPECT_NE(drafter.status().message().find("hidden_norm.weight holds nan in row 0, column 2"), std::string::npos)
      << drafter.status().message();
}

TEST(Drafter, ArgmaxTakesTheFirstAmongEqualsAndSaysWhenNothingIsComparable) {
  DraftSpec spec = tiny_spec();
  auto weights = random_weights(spec, 7);
  std::fill(weights["lm_head"].begin(), weights["lm_head"].end(), 0.25f);
  TempFolder dir;
  const Status saved = speculators::save_checkpoint(dir / "d", spec, weights);
  ASSERT_TRUE(saved.ok()) << saved.message();
  auto checkpoint = open_drafter(dir / "d");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  auto drafter = Drafter::create(*checkpoint, {12, 10, 4, nullptr, nullptr});
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  EXPECT_GT(drafter->step_bytes(), 0u);
  ThreadPool pool(1);
  for (const Isa isa : kernels::available_isas()) {
    CpuOps ops(table(isa), pool);
    std::vector<float> x(32, 1.0f);
    x[20] = std::nanf("");
    int32_t ids[2] = {5, 5};
    drafter->argmax(ops, x.data(), 2, ids);
    EXPECT_EQ(ids[0], 0);
    EXPECT_EQ(ids[1], -1);
  }
}

TEST(Arena, StepsOfOneSizeAllocateOnlyOnce) {
  Arena arena;
  for (int i = 0; i < 100; ++i) arena.floats(10'000);
  arena.reset();
  float* first = arena.floats(10'000);
  for (int i = 1; i < 100; ++i) arena.floats(10'000);
  arena.reset();
  EXPECT_EQ(arena.floats(10'000), first);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.floats(3)) % 64, 0u);
}

}  // namespace
}  // namespace aerie
