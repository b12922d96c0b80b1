// Decoding of many sequences, greedy or sampled, in one forward after another: a row of every running sequence, and prompt rows in between.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/runtime.h"
#include "engine/sampler.h"

namespace aerie {

/// Slots hold sequences; each step() forwards tokens that are not computed yet, up to a budget of rows. Since a row's bytes do not
/// depend on its neighbours, every sequence gets the tokens and states that it would get alone. Not thread-safe.
class BatchDecoder {
 public:
  /// `taps`: boundaries whose states every row leaves behind.
  BatchDecoder(Runtime& runtime, int slots, int row_budget, std::vector<int> taps);

  int slots() const { return static_cast<int>(slots_.size()); }
  /// Starts a new sequence in `slot`; there must be room for `max_length` tokens in the model's context.
  Status start(int slot, std::span<const int32_t> tokens, int max_length, const Sampling& sampling = {});
  /// Adds tokens to a slot's sequence.
  void append(int slot, std::span<const int32_t> tokens);
  const std::vector<int32_t>& tokens(int slot) const { return slots_[static_cast<size_t>(slot)].tokens; }
  void stop(int slot) { slots_[static_cast<size_t>(slot)].active = false; }

  /// What a step computed of one sequence.
  struct Result {
    int slot = 0;
    int position = 0;  // of the first row
    int rows = 0;
    const uint16_t* features = nullptr;  // bf16 [rows, taps * hidden], valid until the next step
    int32_t next = -1;                   // the token after the sequence, or -1 while some of its tokens are still to be computed
  };
  /// Computes the next rows of all active slots that have any; an empty result means that none had.
  Expected<std::span<const Result>> step();

 private:
  struct Slot {
    explicit Slot(KvCache cache) : kv(std::move(cache)) {}
    KvCache kv;
    std::vector<int32_t> tokens;
    Sampling sampling;
    bool active = false;
  };
  void sample();

  Runtime& runtime_;
  int row_budget_;
  std::vector<int> taps_;
  std::vector<Slot> slots_;
  std::vector<TargetRow> rows_;
  std::vector<int> logit_rows_;
  std::vector<int32_t> best_;
  std::vector<float> logits_;  // of the logit rows, where one of their sequences is sampled
  std::vector<int> sampled_;   // the slot of each logit row, -1 where the best token is taken
  std::vector<uint16_t> features_;
  std::vector<Result> results_;
  size_t first_slot_ = 0;  // who is served first when the budget is short: turns round
};

}  // namespace aerie
