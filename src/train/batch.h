// A packed row of conversations, laid out for the unrolled training steps.
//
// Row i of a conversation reads the feature of position i and token i+1 and predicts token i+2 (+ s at step s). It is supervised
// at step s where a server could draft that token: tokens i+1 .. i+2+s all belong to one answer (find_starts of
// eagle3/replay.h, the very rule of the acceptance walk). See docs/training.md, "Alignment".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "train/dataset.h"
#include "train/row_ops.h"

namespace aerie::train {

inline constexpr int kMaxTttSteps = 16;

/// Rows of one step whose attention is computed together: rows of one document, ascending. Only anchors leave gaps between them.
struct RowRun {
  int64_t document = 0;
  int64_t first = 0;  // the first one's row of the document
  int64_t begin = 0;  // its place in the step's list of rows
  int64_t count = 0;  // at most kMaxRun
  bool operator==(const RowRun&) const = default;
};
inline constexpr int64_t kMaxRun = 128;  // bounds the triangle of scores that causality throws away

/// One unrolled step. Step 0 feeds all rows (their keys are what later rows attend to), later steps only the supervised ones, or the
/// anchors among them.
struct StepPlan {
  std::vector<int64_t> parents;    // place in the list of the step before; empty at step 0
  std::vector<int64_t> tokens;     // token i+1+s
  std::vector<int64_t> positions;  // i+s
  std::vector<RowRun> runs;        // rows that no run covers are padding
  // The rows with a loss: those supervised whose target is inside the draft vocabulary.
  std::vector<int64_t> loss_rows;  // place in this step's list
  std::vector<int64_t> teachers;   // place in teacher_states
  std::vector<int64_t> labels;     // draft id of token i+2+s
  int64_t supervised = 0;          // targets outside the draft vocabulary included
  bool operator==(const StepPlan&) const = default;
};

struct PackedBatch {
  int64_t tokens = 0;                    // of the conversations, for tokens/s
  std::vector<int64_t> document_rows;    // rows of each document, in order
  std::vector<uint16_t> features;        // bf16 [rows, taps * hidden]
  std::vector<uint16_t> teacher_states;  // bf16 [teachers, hidden], boundary N at i+1 of each row supervised at step 0
  std::vector<StepPlan> steps;
  bool operator==(const PackedBatch&) const = default;
  int64_t rows() const { return static_cast<int64_t>(steps.empty() ? 0 : steps[0].tokens.size()); }
};

/// What is drawn anew in every epoch while conversations are laid out. It depends on the seed, the epoch and the conversation alone, so
/// that threads, ranks, packing and interruptions have no influence. By default nothing is drawn.
struct Draws {
  double noise = 0;  // every value of a feature is moved by a number drawn from [-noise, noise); the teacher's states are not
  int anchors = 0;   // rows of a conversation at which the steps after the first are unrolled; 0: all that have such steps
  uint64_t seed = 0;
  int64_t epoch = 0;
};

/// Lays out conversations for `steps` unrolled steps. `to_draft` maps target ids to draft ids, -1 outside. `numbers`: what the draws know
/// each conversation by; their places where there are none.
PackedBatch pack_documents(std::span<const Trace> documents, int steps, std::span<const int32_t> to_draft, const Draws& draws = {},
                           std::span<const uint32_t> numbers = {});

/// Appends rows to each step's list up to a multiple of kRowMultiple; they attend to nothing and nothing depends on them.
void pad_rows(PackedBatch& batch);

/// Groups conversations of these lengths (by their place) into packed rows of at most `row_length` tokens, first fit, in order.
std::vector<std::vector<size_t>> pack_rows(std::span<const int64_t> lengths, int64_t row_length);

/// Which of an optimiser step's packed rows a process works on: every `of`-th, from `first` on.
struct RowShare {
  int first = 0, of = 1;
};

/// Reads and lays out one optimiser step: the packed rows of the chosen conversations, or a share of them.
Expected<std::vector<PackedBatch>> load_step(const Dataset& data, std::span<const uint32_t> chosen, int64_t row_length, int steps,
                                             std::span<const int32_t> to_draft, const Draws& draws, RowShare share = {});
/// The same of conversations in memory; `numbers` are what the draws know them by.
std::vector<PackedBatch> lay_out_step(std::vector<Trace> documents, std::span<const uint32_t> numbers, int64_t row_length, int steps,
                                      std::span<const int32_t> to_draft, const Draws& draws);

}  // namespace aerie::train
