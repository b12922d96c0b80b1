// Traces whose truth is known: a random drafter drafts, and its own drafts become the text.
//
// The states are random walks through the blocks (what lies side by side is alike, as in a real residual stream). At every cycle the
// drafter drafts K tokens under the true reading; the text takes the first m of them, m being drawn, then a token that it did not
// draft. So the walk of the true reading accepts exactly what was drawn, and any other reading can be judged against it.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "doctor/hypothesis_search.h"
#include "eagle3/drafter.h"
#include "gtest/gtest.h"

namespace aerie {

struct DrawnOptions {
  int conversations = 24, prompt = 4, answer = 40;
  int k = 3;
  std::vector<double> accepted = {0.3, 0.25, 0.2, 0.25};  // shares of m = 0..k
  unsigned seed = 1;
};

class DrawnTrace : public TraceSource {
 public:
  DrawnTrace(std::vector<StateSlot> slots, int hidden, std::vector<Conversation> conversations) : conversations_(std::move(conversations)) {
    slots_ = std::move(slots);
    hidden_ = hidden;
  }
  std::string format() const override { return "drawn"; }
  size_t size() const override { return conversations_.size(); }
  Expected<Conversation> read(size_t i) const override { return conversations_[i]; }

 private:
  std::vector<Conversation> conversations_;
};

/// A drafter for a target of 8 blocks whose boundaries 0, 1, 2, 4, 5, 7 and 8 are captured.
inline DraftSpec drawn_spec() {
  DraftSpec spec;
  spec.taps = {1, 4, 7};
  spec.target_hidden = spec.hidden = 32;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = spec.rope_dim = 8;
  spec.intermediate = 48;
  spec.feature_norm = FeatureNorm::kConcat;
  spec.feedback = Feedback::kPostNorm;
  spec.rope_theta = 10000.0f;
  spec.rms_eps = 1e-5f;
  spec.max_positions = 256;
  spec.own_embedding = true;
  spec.own_head = true;
  spec.vocab = 60;
  spec.draft_vocab = 40;
  for (int d = 0; d < spec.draft_vocab; ++d) spec.d2t.push_back(d * 3 / 2);
  spec.path = "drawn";
  return spec;
}
/// Turns a drawn spec into one with latent attention.
inline void make_latent(DraftSpec& spec) {
  spec.attention = AttentionKind::kMla;
  spec.kv_heads = spec.heads;
  spec.q_rank = 12;
  spec.kv_rank = 10;
  spec.nope_dim = 6;
  spec.rope_dim = 4;
  spec.v_dim = 8;
  spec.head_dim = 10;
}

inline const std::vector<int> kDrawnBoundaries = {0, 1, 2, 4, 5, 7, 8};
inline constexpr int kDrawnBlocks = 8;

inline std::vector<StateSlot> drawn_slots() {
  std::vector<StateSlot> out;
  for (const int b : kDrawnBoundaries) out.push_back({StateSlot::Kind::kBoundary, b, StateSlot::Norm::kRaw});
  return out;
}

/// A checkpoint with random weights; owns them.
inline DraftCheckpoint drawn_checkpoint(const DraftSpec& spec, unsigned seed) {
  DraftCheckpoint out;
  out.spec = spec;
  auto values = std::make_shared<std::map<std::string, std::vector<float>>>();
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (const DraftTensor& tensor : draft_tensors(spec)) {
    uint64_t count = 1;
    for (const uint64_t dim : tensor.shape) count *= dim;
    const bool is_vector = tensor.shape.size() == 1;
    const float width = 1.6f / std::sqrt(static_cast<float>(tensor.shape.back()));
    std::vector<float>& to = (*values)[tensor.name];
    for (uint64_t i = 0; i < count; ++i) to.push_back(is_vector ? 1.0f + 0.3f * normal(random) : width * normal(random));
    TensorView& view = out.tensors[tensor.name];
    view.name = tensor.name;
    view.type = DType::kF32;
    view.shape = tensor.shape;
    view.data = {reinterpret_cast<const uint8_t*>(to.data()), to.size() * sizeof(float)};
  }
  out.owner = values;
  return out;
}

/// A target's embedding and head; they are no drafter's.
inline TargetTables drawn_target(const DraftSpec& spec, unsigned seed) {
  TargetTables out;
  out.hidden = spec.target_hidden;
  out.vocab = spec.vocab;
  out.blocks = kMaxTap;
  auto rows = std::make_shared<std::vector<float>>();
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int i = 0; i < spec.vocab * spec.target_hidden; ++i) rows->push_back(normal(random));
  const auto width = static_cast<size_t>(spec.target_hidden);
  out.embed = [rows, width](int32_t token, float* to) { std::copy_n(rows->data() + static_cast<size_t>(token) * width, width, to); };
  out.head = [rows, width](const float* x, int n, float* logits) {
    const size_t vocab = rows->size() / width;
    for (size_t i = 0; i < static_cast<size_t>(n) * vocab; ++i) {
      const float* row = rows->data() + i % vocab * width;
      logits[i] = 0;
      for (size_t c = 0; c < width; ++c) logits[i] += x[i / vocab * width + c] * row[c];
    }
  };
  return out;
}

inline TargetTables drawn_tables(const DraftSpec& spec) {
  TargetTables out;
  out.hidden = spec.target_hidden;
  out.vocab = spec.vocab;
  out.blocks = kMaxTap;
  return out;
}

inline std::vector<uint16_t> drawn_states(size_t length, int hidden, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> out;
  std::vector<float> state(static_cast<size_t>(hidden));
  for (size_t t = 0; t < length; ++t) {
    for (float& value : state) value = normal(random);
    int at = 0;
    for (const int boundary : kDrawnBoundaries) {
      for (; at < boundary; ++at) {
        for (float& value : state) value = 1.05f * value + 0.7f * normal(random);
      }
      for (const float value : state) out.push_back(f32_to_bf16(value));
    }
  }
  return out;
}

/// One conversation written under `truth`.
inline Conversation drawn_conversation(ReadingScorer& scorer, const Drafter& drafter, const Reading& truth, const DrawnOptions& options,
                                       std::mt19937& random) {
  const DraftSpec& spec = truth.spec;
  const size_t length = static_cast<size_t>(options.prompt + options.answer), width = static_cast<size_t>(spec.hidden);
  std::uniform_int_distribution<int32_t> any(0, spec.vocab - 1);
  std::discrete_distribution<int> accepted(options.accepted.begin(), options.accepted.end());
  Conversation out;
  out.id = "drawn";
  Trace& trace = out.trace;
  trace.slots = static_cast<int>(kDrawnBoundaries.size());
  trace.hidden = spec.target_hidden;
  trace.states = drawn_states(length, spec.target_hidden, random);
  for (size_t t = 0; t < length; ++t) {
    trace.tokens.push_back(any(random));
    trace.mask.push_back(t < static_cast<size_t>(options.prompt) ? 0 : 1);
  }
  const std::vector<uint16_t> features = scorer.features(truth, trace);
  const size_t feature_width = static_cast<size_t>(spec.feature_width());
  DraftKv prefix = drafter.new_kv();
  DraftStates states;
  CpuOps& ops = scorer.ops();
  const auto token_at = [&](int row) { return trace.tokens[static_cast<size_t>(row + 1 + truth.token_shift)]; };
  // Row r is appended when token r + 1 is settled; a cycle stands at the last row.
  int settled = options.prompt;
  while (settled + 1 < static_cast<int>(length)) {
    for (int row = prefix.length(); row < settled; ++row) {
      const DraftRow next{token_at(row), row, &prefix};
      drafter.step0(ops, {&next, 1}, features.data() + static_cast<size_t>(row) * feature_width, states);
    }
    const int row = settled - 1, m = accepted(random);
    DraftKv tail = prefix.fork(row + 1);
    for (int step = 0;; ++step) {
      int32_t draft = -1;
      drafter.argmax(ops, states.head_input.data(), 1, &draft);
      const size_t at = static_cast<size_t>(row + 2 + step);
      if (at >= length) break;
      if (step == m || step == options.k) {
        do trace.tokens[at] = any(random);
        while (trace.tokens[at] == draft);
        break;
      }
      trace.tokens[at] = draft;
      const DraftRow next{token_at(row + step + 1), std::max(0, row + (step + 1) * truth.step_stride + truth.step_offset), &tail};
      std::vector<float> h(states.feedback.begin(), states.feedback.begin() + static_cast<std::ptrdiff_t>(width));
      drafter.step(ops, {&next, 1}, h.data(), states);
    }
    settled = std::min(static_cast<int>(length) - 1, row + 2 + std::min(m, options.k));
  }
  return out;
}

/// A trace written by `checkpoint` under `truth`, whose weights are those that the scorer would open it with.
inline std::unique_ptr<DrawnTrace> draw_trace(const DraftCheckpoint& checkpoint, const Reading& truth, const DrawnOptions& options,
                                              ThreadPool& pool, const TargetTables& tables = {}) {
  Sample none;
  none.slots = drawn_slots();
  none.hidden = truth.spec.target_hidden;
  auto scorer = ReadingScorer::create(checkpoint, truth, tables.vocab == 0 ? drawn_tables(truth.spec) : tables, {}, none,
                                      kernels::best_kernels(), pool);
  EXPECT_TRUE(scorer.ok()) << scorer.status().message();
  const Drafter drafter = scorer->drafter(truth).value();
  std::mt19937 random(options.seed);
  std::vector<Conversation> conversations;
  for (int c = 0; c < options.conversations; ++c) conversations.push_back(drawn_conversation(*scorer, drafter, truth, options, random));
  return std::make_unique<DrawnTrace>(drawn_slots(), truth.spec.target_hidden, std::move(conversations));
}

/// The same trace as if these boundaries had not been captured.
inline std::unique_ptr<DrawnTrace> without_boundaries(const DrawnTrace& source, const std::vector<int>& missing) {
  std::vector<int> kept;
  std::vector<StateSlot> slots;
  for (size_t s = 0; s < source.slots().size(); ++s) {
    if (std::find(missing.begin(), missing.end(), source.slots()[s].number) != missing.end()) continue;
    kept.push_back(static_cast<int>(s));
    slots.push_back(source.slots()[s]);
  }
  std::vector<Conversation> conversations;
  for (size_t i = 0; i < source.size(); ++i) {
    Conversation c = source.read(i).value();
    c.trace.states = c.trace.states_of(kept);
    c.trace.slots = static_cast<int>(kept.size());
    conversations.push_back(std::move(c));
  }
  return std::make_unique<DrawnTrace>(std::move(slots), source.hidden(), std::move(conversations));
}

}  // namespace aerie
