#include "train/validation.h"

#include <algorithm>

#include "eagle3/walk_figures.h"

namespace aerie::train {
namespace {

/// The features of a row without its final state, [T, taps * hidden].
std::vector<uint16_t> tap_states(const Trace& trace) {
  const size_t width = static_cast<size_t>(trace.slots - 1) * static_cast<size_t>(trace.hidden);
  std::vector<uint16_t> features(trace.length() * width);
  for (size_t i = 0; i < trace.length(); ++i) std::copy_n(trace.state(i, 0).data(), width, features.data() + i * width);
  return features;
}

}  // namespace

DraftCheckpoint checkpoint_view(const DraftSpec& spec, const DraftValues& values) {
  DraftCheckpoint checkpoint;
  checkpoint.spec = spec;
  for (const DraftTensor& tensor : draft_tensors(spec)) {
    const std::vector<float>& source = values.at(tensor.name);
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(source.data()), source.size() * sizeof(float));
    checkpoint.tensors[tensor.name] = {tensor.name, DType::kF32, tensor.shape, bytes};
  }
  return checkpoint;
}

Expected<Validation> validate(const DraftSpec& spec, const DraftValues& values, const std::vector<float>& embedding, int target_blocks,
                              const Dataset& data, std::span<const Conversation> conversations, int steps, ThreadPool& pool) {
  TargetTables tables;
  tables.hidden = spec.target_hidden;
  tables.vocab = spec.vocab;
  tables.blocks = target_blocks;
  tables.embed = [&](int32_t token, float* out) {
    const size_t hidden = static_cast<size_t>(spec.target_hidden);
    std::copy_n(embedding.data() + static_cast<size_t>(token) * hidden, hidden, out);
  };
  AERIE_ASSIGN(const Drafter drafter, Drafter::create(checkpoint_view(spec, values), std::move(tables)));
  CpuOps ops(kernels::best_kernels(), pool);
  const int most = std::max(kMaxWalk, steps);
  ReplayOptions options;
  options.steps = most;
  std::vector<ReplaySummary> summaries(static_cast<size_t>(most));
  for (const Conversation& conversation : conversations) {
    AERIE_ASSIGN(const Trace trace, data.read(conversation));
    const std::vector<uint16_t> features = tap_states(trace);
    AERIE_ASSIGN(const TraceReplay replay, replay_trace(drafter, ops, {trace.tokens, trace.mask, features}, options));
    for (int k = 1; k <= most; ++k) summaries[static_cast<size_t>(k) - 1].add(limited_to(replay, k), k);
  }
  Validation result;
  result.summary = summaries.back();
  for (const ReplaySummary& summary : summaries) result.acceptance_lengths.push_back(summary.acceptance_length());
  return result;
}

}  // namespace aerie::train
