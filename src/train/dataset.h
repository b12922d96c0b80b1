// Captured conversations as training data: which are used, in what order, and which of their rows are trained on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/trace_source.h"

namespace aerie::train {

/// One conversation; its states stay in the file until a batch needs them.
struct Conversation {
  size_t folder = 0;
  size_t row = 0;               // of the folder, from 0 without gaps
  std::vector<int32_t> tokens;  // [T]
  std::vector<uint8_t> mask;    // [T] 1 = the target generated this token
};

struct DatasetOptions {
  int max_tokens = 1024;            // longer conversations are left out
  double holdout = 0.02;            // below 1 a share of the conversations, otherwise their number
  std::vector<int> taps = {};       // of the captured boundaries, in the order of the drafter's feature; empty: all, as captured
  std::optional<int> teacher = {};  // the captured boundary over which the target's head is taken for its word; none: N
  bool judge_only = false;          // all are held out, and none are trained on
  // For folders of other makers, which do not say where their states come from: the target, and which boundaries its states are, in order.
  const TraceTarget* target = nullptr;
  std::vector<int> states = {};
  std::string token_rows = {};  // the masks of a speculators folder, the only one, if not beside it (formats/trace_source.h)
};

/// What was left out, for the log.
struct DatasetReport {
  int64_t too_long = 0;
  int64_t nothing_supervised = 0;       // no answer of two tokens or more
  std::vector<std::string> sampled;     // folders whose answers were drawn, and at which temperatures
  std::vector<std::string> unreadable;  // why, with the file's name: NaN or infinity among the states, a broken file
};

class Dataset {
 public:
  /// Reads all rows of all folders once. Refused: folders of different sources (target, taps, template, precision) or makers, more than
  /// 1 % of unreadable rows, no supervised row at all or fewer than 1 % of the tokens, nothing left to train on, taps or a teacher
  /// that were not captured; of other makers' folders, states
  /// of another width than the target's, another number of `states` than they hold, and conversations that have no mask.
  static Expected<Dataset> open(const std::vector<std::string>& folders, const DatasetOptions& options);

  /// Of folders of other makers, what the options say.
  const TraceManifest& manifest() const { return manifest_; }
  /// "Aerie" or whose folders these are.
  std::string format() const { return sources_[0]->format(); }
  /// Whether the final norm has been applied to a folder's final states, as far as its format says.
  StateSlot::Norm final_norm(size_t folder) const { return sources_[folder]->slots().back().norm; }
  /// The training conversations, and those held out for validation. Which ones are held out depends on their number alone, so
  /// that runs with different seeds can be compared.
  const std::vector<Conversation>& training() const { return training_; }
  const std::vector<Conversation>& held_out() const { return held_out_; }
  /// Whose answers tell what there is to draft: the training conversations, or where there are none those held out.
  const std::vector<Conversation>& told_by() const { return training_.empty() ? held_out_ : training_; }
  const DatasetReport& report() const { return report_; }
  int64_t training_tokens() const;
  size_t folders() const { return sources_.size(); }
  /// SHA-256 of what is trained on and held out: tokens and masks in their order, and how they were generated. The states are not in it.
  const std::string& contents_id() const { return contents_id_; }
  /// The drafter's taps, and the boundary that its teacher reads.
  const std::vector<int>& taps() const { return taps_; }
  int teacher() const { return teacher_; }

  /// The conversation with its states: the taps in their order, then the teacher's. Thread-safe.
  Expected<Trace> read(const Conversation& conversation) const;

 private:
  Status add_source(const std::string& folder, const DatasetOptions& options);
  Status choose_states(const DatasetOptions& options);
  std::string identify() const;

  std::vector<std::unique_ptr<TraceSource>> sources_;
  TraceManifest manifest_;
  std::string first_folder_, contents_id_;
  std::vector<int> taps_;
  int teacher_ = 0;
  std::vector<int> slots_;  // of a stored row, in the order of read()
  bool as_captured_ = true;
  std::vector<Conversation> training_, held_out_;
  DatasetReport report_;
};

/// The draft vocabulary: the `size` most frequent tokens of the training answers (count descending, id ascending), the lowest
/// unused ids where there are not enough, `always` included in any case; ascending. Refused: size of 0 or above `vocab`.
Expected<std::vector<int32_t>> choose_draft_vocab(std::span<const Conversation> conversations, int size, int vocab,
                                                  std::span<const int32_t> always);
/// The smallest size of it that covers `share` of the training answers' tokens, rounded up to a multiple of kVocabStep, `vocab` at most.
int draft_vocab_for(std::span<const Conversation> conversations, double share, int vocab, std::span<const int32_t> always);
inline constexpr int kVocabStep = 64;
/// The share of the training answers' tokens that these ids make up.
double coverage_of(std::span<const int32_t> ids, std::span<const Conversation> conversations, int vocab);

/// The conversations of each optimiser step of one epoch: shuffled by (seed, epoch), at least `tokens_per_step` tokens each. A
/// last step of less than half of that joins the one before.
std::vector<std::vector<uint32_t>> plan_epoch(std::span<const Conversation> conversations, int64_t tokens_per_step, uint64_t seed,
                                              int64_t epoch);

/// The numbers 0..count-1 in an order that depends on `seed` alone, on every machine.
std::vector<uint32_t> shuffled(uint32_t count, uint64_t seed);

}  // namespace aerie::train
