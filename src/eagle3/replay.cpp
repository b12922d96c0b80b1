#include "eagle3/replay.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace aerie {
namespace {

/// Runs the drafter over one trace and fills in the matches of `starts`.
class Replayer {
 public:
  Replayer(const Drafter& drafter, CpuOps& ops, const ReplayTrace& trace, const ReplayOptions& options)
      : drafter_(drafter),
        ops_(ops),
        trace_(trace),
        options_(options),
        batch_rows_(options.batch_rows),
        width_(static_cast<size_t>(drafter.spec().hidden)) {}

  /// `drafts`: empty, or [starts, steps].
  void run(std::vector<ReplayStart>& starts, std::span<int32_t> drafts) {
    drafts_ = drafts;
    DraftKv prefix = drafter_.new_kv();
    const std::vector<float> feedback = run_step0(starts, prefix);
    for (size_t begin = 0; begin < starts.size(); begin += static_cast<size_t>(batch_rows_)) {
      const size_t end = std::min(starts.size(), begin + static_cast<size_t>(batch_rows_));
      run_later_steps({starts.data() + begin, end - begin}, begin, feedback.data() + begin * width_, prefix);
    }
  }

 private:
  /// Step 0 of every row up to the last start, which fills the cache; returns the feedback of the starts [starts, H].
  std::vector<float> run_step0(std::vector<ReplayStart>& starts, DraftKv& prefix) {
    std::vector<float> feedback(starts.size() * width_);
    const size_t feature_width = static_cast<size_t>(drafter_.spec().feature_width());
    const int rows = starts.back().row + 1;
    size_t next = 0;  // the first start that lies at or beyond this batch
    for (int begin = 0; begin < rows; begin += batch_rows_) {
      const int end = std::min(rows, begin + batch_rows_);
      rows_.clear();
      for (int i = begin; i < end; ++i) rows_.push_back({token_after(i), i, &prefix});
      drafter_.step0(ops_, rows_, trace_.features.data() + static_cast<size_t>(begin) * feature_width, states_);

      const size_t first = next;
      head_inputs_.clear();
      for (; next < starts.size() && starts[next].row < end; ++next) {
        const size_t at = static_cast<size_t>(starts[next].row - begin) * width_;
        head_inputs_.insert(head_inputs_.end(), states_.head_input.data() + at, states_.head_input.data() + at + width_);
        std::copy_n(states_.feedback.data() + at, width_, feedback.data() + next * width_);
      }
      predict(head_inputs_.data(), next - first);
      for (size_t j = first; j < next; ++j) compare(starts[j], j, 0, predictions_[j - first]);
    }
    return feedback;
  }

  /// `number`: of the first of these starts among all.
  void run_later_steps(std::span<ReplayStart> starts, size_t number, const float* feedback, const DraftKv& prefix) {
    std::vector<DraftKv> caches;
    caches.reserve(starts.size());
    for (const ReplayStart& start : starts) caches.push_back(prefix.fork(start.row + 1));
    std::vector<float> h(feedback, feedback + starts.size() * width_);  // of the start at the same index
    std::vector<float> input;
    for (int step = 1;; ++step) {
      rows_.clear();
      active_.clear();
      input.clear();
      for (size_t j = 0; j < starts.size(); ++j) {
        if (starts[j].available <= step) continue;
        const int position = std::max(0, starts[j].row + step * options_.step_stride + options_.step_offset);
        rows_.push_back({token_after(starts[j].row + step), position, &caches[j]});
        active_.push_back(j);
        input.insert(input.end(), h.data() + j * width_, h.data() + (j + 1) * width_);
      }
      if (rows_.empty()) return;
      drafter_.step(ops_, rows_, input.data(), states_);
      predict(states_.head_input.data(), rows_.size());
      for (size_t a = 0; a < active_.size(); ++a) {
        compare(starts[active_[a]], number + active_[a], step, predictions_[a]);
        std::copy_n(states_.feedback.data() + a * width_, width_, h.data() + active_[a] * width_);
      }
    }
  }

  int32_t token_after(int row) const { return trace_.tokens[static_cast<size_t>(row + 1 + options_.token_shift)]; }

  void predict(const float* head_inputs, size_t n) {
    predictions_.resize(n);
    if (n != 0) drafter_.argmax(ops_, head_inputs, static_cast<int>(n), predictions_.data());
  }

  void compare(ReplayStart& start, size_t number, int step, int32_t prediction) {
    if (!drafts_.empty()) drafts_[number * static_cast<size_t>(options_.steps) + static_cast<size_t>(step)] = prediction;
    if (prediction == trace_.tokens[static_cast<size_t>(start.row + 2 + step)]) start.matches |= uint32_t{1} << step;
  }

  const Drafter& drafter_;
  CpuOps& ops_;
  const ReplayTrace& trace_;
  const ReplayOptions& options_;
  const int batch_rows_;
  const size_t width_;
  std::vector<DraftRow> rows_;
  std::vector<size_t> active_;
  DraftStates states_;
  std::vector<float> head_inputs_;
  std::vector<int32_t> predictions_;
  std::span<int32_t> drafts_;
};

Status check(const DraftSpec& spec, const ReplayTrace& trace, const ReplayOptions& options) {
  if (options.steps < 0 || options.steps > kMaxReplaySteps) {
    return invalid_argument("replay of {} drafts a cycle was asked for, expected 0 to {}", options.steps, kMaxReplaySteps);
  }
  if (options.batch_rows < 1) return invalid_argument("batch_rows is {}, expected at least 1", options.batch_rows);
  if (options.token_shift < -1 || options.token_shift > 0)
    return invalid_argument("token_shift is {}, expected -1 or 0", options.token_shift);
  if (std::abs(options.step_stride) > kMaxReplaySteps || std::abs(options.step_offset) > kMaxReplaySteps) {
    return invalid_argument("step_stride is {} and step_offset {}, expected at most {}", options.step_stride, options.step_offset,
                            kMaxReplaySteps);
  }
  const size_t tokens = trace.tokens.size();
  if (tokens > (size_t{1} << 30)) return resource_error("the trace has {} tokens, more than can be replayed", tokens);
  if (trace.mask.size() != tokens) return invalid_argument("the trace has {} tokens but a mask of {}", tokens, trace.mask.size());
  const size_t width = static_cast<size_t>(spec.feature_width());
  if (trace.features.size() != tokens * width) {
    return invalid_argument("the trace has {} feature values for {} tokens, expected {} a token ({} taps of width {})",
                            trace.features.size(), tokens, width, spec.taps.size(), spec.target_hidden);
  }
  for (size_t t = 0; t < tokens; ++t) {
    if (trace.tokens[t] < 0 || trace.tokens[t] >= spec.vocab) {
      return invalid_argument("token {} of the trace is {}, outside the drafter's target vocabulary of {}", t, trace.tokens[t], spec.vocab);
    }
  }
  return {};
}

}  // namespace

Expected<std::vector<uint16_t>> select_features(const DraftSpec& spec, const TraceManifest& manifest, const Trace& trace) {
  if (spec.target_hidden != trace.hidden) {
    return invalid_argument("the drafter reads states of width {}, the trace holds states of width {}", spec.target_hidden, trace.hidden);
  }
  if (trace.slots != manifest.slots()) {
    return invalid_argument("the trace holds {} states a position, its manifest says {}", trace.slots, manifest.slots());
  }
  std::vector<int> slots;
  for (const int tap : spec.taps) {
    const std::optional<int> slot = manifest.slot_of(tap);
    if (!slot) {
      return invalid_argument("the drafter reads {}, which was not captured (the trace has the boundaries {} and {})", boundary_name(tap),
                              fmt::join(manifest.taps, ","), manifest.target.blocks);
    }
    slots.push_back(*slot);
  }
  return trace.states_of(slots);
}

bool marks_everything(std::span<const uint8_t> mask) {
  return std::all_of(mask.begin(), mask.end(), [](uint8_t m) { return m != 0; });
}

std::vector<Answer> find_answers(std::span<const uint8_t> mask) {
  std::vector<Answer> out;
  for (int t = 0; t < static_cast<int>(mask.size()); ++t) {
    if (mask[static_cast<size_t>(t)] == 0) continue;
    if (t > 0 && mask[static_cast<size_t>(t) - 1] != 0) {
      out.back().last = t;
    } else {
      out.push_back({t, t});
    }
  }
  return out;
}

std::vector<ReplayStart> find_starts(std::span<const uint8_t> mask, int steps) {
  std::vector<ReplayStart> out;
  for (const Answer& answer : find_answers(mask)) {
    // Where an answer begins with the first token of the trace there is no row -1: its walk begins one token later.
    for (int row = std::max(answer.first - 1, 0); row + 2 <= answer.last; ++row) {
      out.push_back({row, answer.last, std::min(steps, answer.last - row - 1), 0, 0});
    }
  }
  return out;
}

int accepted_at(const ReplayStart& start) {
  return std::min({std::countr_one(start.matches), start.available, start.last - start.row - 2});
}

AnswerWalk walk_answer(const Answer& answer, std::span<const ReplayStart> starts) {
  AnswerWalk out{answer, {}};
  const int first = std::max(answer.first - 1, 0);
  const auto at = std::lower_bound(starts.begin(), starts.end(), first, [](const ReplayStart& s, int row) { return s.row < row; });
  const std::span<const ReplayStart> own = starts.subspan(static_cast<size_t>(at - starts.begin()));
  for (int row = first; row + 2 <= answer.last; row += out.accepted.back() + 1) {
    out.accepted.push_back(own[static_cast<size_t>(row - first)].accepted);
  }
  return out;
}

Expected<TraceReplay> replay_trace(const Drafter& drafter, CpuOps& ops, const ReplayTrace& trace, const ReplayOptions& options) {
  AERIE_TRY(check(drafter.spec(), trace, options));
  TraceReplay out;
  out.starts = find_starts(trace.mask, options.steps);
  if (options.keep_drafts) out.drafts.assign(out.starts.size() * static_cast<size_t>(options.steps), -1);
  if (options.steps > 0 && !out.starts.empty()) Replayer(drafter, ops, trace, options).run(out.starts, out.drafts);
  for (ReplayStart& start : out.starts) start.accepted = accepted_at(start);
  for (const Answer& answer : find_answers(trace.mask)) {
    AnswerWalk walk = walk_answer(answer, out.starts);
    if (!walk.accepted.empty()) out.walks.push_back(std::move(walk));
  }
  const std::vector<int32_t> to_draft = invert_d2t(drafter.spec());
  for (size_t t = 0; t < trace.tokens.size(); ++t) {
    if (trace.mask[t] == 0) continue;
    ++out.answer_tokens;
    out.covered_tokens += to_draft[static_cast<size_t>(trace.tokens[t])] >= 0 ? 1 : 0;
  }
  return out;
}

void ReplaySummary::add(const TraceReplay& trace, int step_count) {
  if (steps.size() < static_cast<size_t>(step_count)) steps.resize(static_cast<size_t>(step_count));
  for (const ReplayStart& start : trace.starts) {
    bool reached = true;
    for (int s = 0; s < start.available; ++s) {
      StepAcceptance& step = steps[static_cast<size_t>(s)];
      const bool match = (start.matches >> s & 1u) != 0;
      ++step.starts;
      step.matched += match ? 1 : 0;
      step.reached += reached ? 1 : 0;
      step.matched_reached += reached && match ? 1 : 0;
      reached = reached && match;
    }
  }
  answer_tokens += trace.answer_tokens;
  covered_tokens += trace.covered_tokens;
  for (const AnswerWalk& walk : trace.walks) {
    for (const int count : walk.accepted) {
      ++cycles;
      accepted += count;
    }
  }
}

void ReplaySummary::add(const ReplaySummary& other) {
  if (steps.size() < other.steps.size()) steps.resize(other.steps.size());
  for (size_t s = 0; s < other.steps.size(); ++s) {
    steps[s].starts += other.steps[s].starts;
    steps[s].matched += other.steps[s].matched;
    steps[s].reached += other.steps[s].reached;
    steps[s].matched_reached += other.steps[s].matched_reached;
  }
  answer_tokens += other.answer_tokens;
  covered_tokens += other.covered_tokens;
  cycles += other.cycles;
  accepted += other.accepted;
}

}  // namespace aerie
