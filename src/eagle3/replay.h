// Replay: runs captured states of a target through a drafter, without any engine, and says what an engine must accept.
//
// An answer is a maximal run [a, b] of tokens that the target generated (mask 1), its last token b being the stop token or the
// one at which a length limit cut it. Row i reads the feature of position i and token i+1 and predicts token i+2.
//
// A cycle at row i (token i+1 is the last one emitted) drafts for the tokens i+2, i+3, ...; it accepts the m drafts that match
// before the first that does not, and emits the m+1 tokens i+2 .. i+2+m, of which the last is the target's own. The next cycle
// is at row i+m+1. The first cycle of an answer is at row a-1: its first token comes from the prefill.
//
// The end of an answer: nothing is emitted beyond b, so m <= b - (i+2): where a draft for token b matched too, token b counts as
// the target's own token of that cycle. No cycle starts with token b. An engine that cuts its output at a stop token or a limit
// must count in the same way: accepted = emitted - 1.
//
// The walk is exact for greedily generated answers: while the drafts match, the tokens fed to the drafter are the captured ones. Over
// answers that were drawn it has the distribution of what an engine accepts that samples at their temperature.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "eagle3/drafter.h"
#include "formats/traces.h"

namespace aerie {

inline constexpr int kMaxReplaySteps = 32;

/// Traces are not fit to be trained on where more than this share of the conversations cannot be read, or fewer than this share of the
/// tokens are ones that a drafter could be trained to draft.
inline constexpr double kMostUnreadable = 0.01, kLeastSupervised = 0.01;

/// One captured conversation of T tokens.
struct ReplayTrace {
  std::span<const int32_t> tokens;     // [T]
  std::span<const uint8_t> mask;       // [T] 1 = the target generated this token
  std::span<const uint16_t> features;  // bf16 [T, k*Ht], the taps of the drafter in their order
};

/// The drafter's features [T, k*Ht] out of a stored row: each of its taps is looked up among the boundaries that were captured.
/// kInvalidArgument names a boundary that was not, or both widths.
Expected<std::vector<uint16_t>> select_features(const DraftSpec& spec, const TraceManifest& manifest, const Trace& trace);

struct ReplayOptions {
  int steps = 3;        // K: drafts per cycle, 0..kMaxReplaySteps
  int batch_rows = 64;  // rows that are computed together; has no influence on any result
  bool keep_drafts = false;
  // Ways to feed a drafter otherwise than it is served, for finding out how it was trained.
  int token_shift = 0;  // row i reads token i + 1 + token_shift: -1 or 0; what it is compared with does not change
  int step_stride = 1;  // step s stands at position row + s * step_stride ...
  int step_offset = 0;  // ... + step_offset, where s > 0; the position is never below 0
};

/// A run of generated tokens, both ends included.
struct Answer {
  int first = 0, last = 0;
};

/// A row at which a cycle can stand: tokens row+1 and row+2 belong to the same answer.
struct ReplayStart {
  int row = 0;
  int last = 0;          // the answer's last token
  int available = 0;     // steps whose target token exists: min(K, last - row - 1)
  uint32_t matches = 0;  // bit s: the draft of step s (fed with the captured tokens) equals token row+2+s; s < available
  int accepted = 0;      // m(row): consecutive matches from step 0, capped at K and at the end of the answer
};

/// The cycles of one answer, in order.
struct AnswerWalk {
  Answer answer;
  std::vector<int> accepted;  // per cycle
};

struct TraceReplay {
  std::vector<ReplayStart> starts;  // in order of row
  std::vector<AnswerWalk> walks;    // one per answer of at least two tokens
  std::vector<int32_t> drafts;      // [starts, steps] where they are to be kept: target ids, -1 beyond `available`
  int64_t answer_tokens = 0;        // tokens with mask 1
  int64_t covered_tokens = 0;       // of these, the ones inside the draft vocabulary; the others can never be drafted
};

/// Replays one conversation. Refused: lengths that do not fit, tokens outside the vocabulary, a bad K.
Expected<TraceReplay> replay_trace(const Drafter& drafter, CpuOps& ops, const ReplayTrace& trace, const ReplayOptions& options);

/// Acceptance of one step over all starts at which its target token exists.
struct StepAcceptance {
  int64_t starts = 0, matched = 0;           // unconditional
  int64_t reached = 0, matched_reached = 0;  // those whose earlier steps all matched
  double unconditional() const { return starts == 0 ? 0.0 : static_cast<double>(matched) / static_cast<double>(starts); }
  double conditional() const { return reached == 0 ? 0.0 : static_cast<double>(matched_reached) / static_cast<double>(reached); }
};

/// Sums over traces; every ratio of the report comes from these counts.
struct ReplaySummary {
  std::vector<StepAcceptance> steps;
  int64_t answer_tokens = 0, covered_tokens = 0;
  int64_t cycles = 0, accepted = 0;  // of the walks
  void add(const TraceReplay& trace, int steps);
  void add(const ReplaySummary& other);
  double coverage() const { return answer_tokens == 0 ? 0.0 : static_cast<double>(covered_tokens) / static_cast<double>(answer_tokens); }
  /// Tokens emitted per cycle, the target's own included: 1 + accepted / cycles.
  double acceptance_length() const { return cycles == 0 ? 0.0 : 1.0 + static_cast<double>(accepted) / static_cast<double>(cycles); }
};

/// Whether a mask calls every token the target's own, prompts included: it was made without a template's generation tags.
bool marks_everything(std::span<const uint8_t> mask);
/// The answers of a mask, in order.
std::vector<Answer> find_answers(std::span<const uint8_t> mask);
/// The rows at which cycles can stand, in order, with `available` filled in.
std::vector<ReplayStart> find_starts(std::span<const uint8_t> mask, int steps);
/// m of a start from its matches (see the rule for the end of an answer above).
int accepted_at(const ReplayStart& start);
/// Walks an answer over `starts` (all those of its trace, with `accepted` filled in).
AnswerWalk walk_answer(const Answer& answer, std::span<const ReplayStart> starts);

}  // namespace aerie
