#include "eagle3/unroll.h"

#include <algorithm>

namespace aerie {
namespace {

Status check(const DraftSpec& spec, std::span<const float> features, std::span<const int32_t> token_ids, const UnrollOptions& options) {
  if (options.steps < 1 || options.steps > kMaxUnrollSteps) {
    return invalid_argument("{} steps were asked for, expected 1 to {}", options.steps, kMaxUnrollSteps);
  }
  if (options.first_position < 0 || options.first_position > 1) {
    return invalid_argument("the first position is {}, expected 0 or 1", options.first_position);
  }
  if (options.batch_rows < 1) return invalid_argument("batch_rows is {}, expected at least 1", options.batch_rows);
  const size_t rows = token_ids.size(), width = static_cast<size_t>(spec.feature_width());
  if (rows == 0) return invalid_argument("there are no rows, expected at least one token with its feature");
  if (rows > (size_t{1} << 24)) return resource_error("there are {} rows, more than can be computed", rows);
  if (features.size() != rows * width) {
    return invalid_argument("there are {} feature values for {} tokens, expected {} a token ({} taps of width {})", features.size(), rows,
                            width, spec.taps.size(), spec.target_hidden);
  }
  for (size_t i = 0; i < rows; ++i) {
    if (token_ids[i] < 0 || token_ids[i] >= spec.vocab) {
      return invalid_argument("token {} is {}, outside the drafter's target vocabulary of {}", i, token_ids[i], spec.vocab);
    }
  }
  return {};
}

class Unroller {
 public:
  Unroller(const Drafter& drafter, CpuOps& ops, std::span<const float> features, std::span<const int32_t> token_ids,
           const UnrollOptions& options, const UnrollSink& sink)
      : drafter_(drafter), ops_(ops), features_(features), token_ids_(token_ids), options_(options), sink_(sink) {}

  void run() {
    DraftKv prefix = drafter_.new_kv();
    const int total = static_cast<int>(token_ids_.size());
    const size_t feature_width = static_cast<size_t>(drafter_.spec().feature_width());
    for (int first = 0; first < total; first += options_.batch_rows) {
      const int count = std::min(options_.batch_rows, total - first);
      rows_.clear();
      for (int i = first; i < first + count; ++i) rows_.push_back(row(i, 0, prefix));
      drafter_.step0(ops_, rows_, features_.data() + static_cast<size_t>(first) * feature_width, states_);
      emit(0, first);
      later_steps(first, count, prefix);
    }
  }

 private:
  DraftRow row(int i, int step, DraftKv& kv) const {
    const size_t token = static_cast<size_t>(i) + static_cast<size_t>(step);
    return {token < token_ids_.size() ? token_ids_[token] : 0, i + step + options_.first_position, &kv};
  }

  /// `prefix` ends with the last row of the batch, whose step 0 is in states_.
  void later_steps(int first, int count, const DraftKv& prefix) {
    caches_.clear();
    for (int i = first; i < first + count; ++i) caches_.push_back(prefix.fork(i + 1));
    for (int step = 1; step < options_.steps; ++step) {
      rows_.clear();
      for (int r = 0; r < count; ++r) rows_.push_back(row(first + r, step, caches_[static_cast<size_t>(r)]));
      drafter_.step(ops_, rows_, states_.feedback.data(), states_);
      emit(step, first);
    }
  }

  void emit(int step, int first) {
    logits_.resize(rows_.size() * static_cast<size_t>(drafter_.spec().draft_vocab));
    drafter_.logits(ops_, states_.head_input.data(), static_cast<int>(rows_.size()), logits_.data());
    sink_(step, first, static_cast<int>(rows_.size()), logits_.data());
  }

  const Drafter& drafter_;
  CpuOps& ops_;
  std::span<const float> features_;
  std::span<const int32_t> token_ids_;
  const UnrollOptions& options_;
  const UnrollSink& sink_;
  std::vector<DraftRow> rows_;
  std::vector<DraftKv> caches_;
  DraftStates states_;
  std::vector<float> logits_;
};

}  // namespace

Status unroll_logits(const Drafter& drafter, CpuOps& ops, std::span<const float> features, std::span<const int32_t> token_ids,
                     const UnrollOptions& options, const UnrollSink& sink) {
  AERIE_TRY(check(drafter.spec(), features, token_ids, options));
  Unroller(drafter, ops, features, token_ids, options, sink).run();
  return {};
}

}  // namespace aerie
