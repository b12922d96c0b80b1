#include "engine/batch_decoder.h"

#include <algorithm>

namespace aerie {

BatchDecoder::BatchDecoder(Runtime& runtime, int slots, int row_budget, std::vector<int> taps)
    : runtime_(runtime), row_budget_(std::min(row_budget, runtime.target().max_rows())), taps_(std::move(taps)) {
  for (int i = 0; i < slots; ++i) slots_.emplace_back(runtime.target().make_cache());
}

Status BatchDecoder::start(int slot, std::span<const int32_t> tokens, int max_length, const Sampling& sampling) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  if (tokens.empty()) return invalid_argument("a sequence needs at least one token");
  if (max_length > runtime_.target().config().context) {
    return invalid_argument("{} tokens do not fit into the model's context of {}", max_length, runtime_.target().config().context);
  }
  AERIE_TRY(s.kv.reserve(max_length));
  s.kv.truncate(0);
  s.tokens.assign(tokens.begin(), tokens.end());
  s.sampling = sampling;
  s.active = true;
  return {};
}

void BatchDecoder::append(int slot, std::span<const int32_t> tokens) {
  auto& all = slots_[static_cast<size_t>(slot)].tokens;
  all.insert(all.end(), tokens.begin(), tokens.end());
}

Expected<std::span<const BatchDecoder::Result>> BatchDecoder::step() {
  rows_.clear();
  logit_rows_.clear();
  sampled_.clear();
  results_.clear();
  for (size_t i = 0; i < slots_.size(); ++i) {
    const size_t index = (first_slot_ + i) % slots_.size();
    Slot& slot = slots_[index];
    const int computed = slot.kv.length();
    const int waiting = slot.active ? static_cast<int>(slot.tokens.size()) - computed : 0;
    const int rows = std::min(waiting, row_budget_ - static_cast<int>(rows_.size()));
    if (rows <= 0) continue;
    Result result{static_cast<int>(index), computed, rows, nullptr, -1};
    for (int r = 0; r < rows; ++r) rows_.push_back({slot.tokens[static_cast<size_t>(computed + r)], computed + r, &slot.kv});
    if (rows == waiting) {
      result.next = static_cast<int32_t>(logit_rows_.size());  // replaced by the token below
      logit_rows_.push_back(static_cast<int>(rows_.size()) - 1);
      sampled_.push_back(slot.sampling.temperature > 0 ? result.slot : -1);
    }
    results_.push_back(result);
  }
  first_slot_ = (first_slot_ + 1) % slots_.size();
  if (rows_.empty()) return std::span<const Result>();

  Target& target = runtime_.target();
  const size_t width = taps_.size() * static_cast<size_t>(target.config().hidden);
  best_.resize(logit_rows_.size());
  features_.resize(std::max(features_.size(), rows_.size() * width));
  const bool samples = std::ranges::any_of(sampled_, [](int slot) { return slot >= 0; });
  if (samples) logits_.resize(logit_rows_.size() * static_cast<size_t>(target.config().vocab));
  AERIE_TRY(
      target.forward(runtime_.pool(), {rows_, logit_rows_, samples ? logits_.data() : nullptr, taps_, features_.data(), best_.data()}));
  if (samples) sample();

  size_t row = 0;
  for (Result& result : results_) {
    result.features = features_.data() + row * width;
    row += static_cast<size_t>(result.rows);
    if (result.next < 0) continue;
    result.next = best_[static_cast<size_t>(result.next)];
    if (result.next < 0) return internal_error("the model's output is not finite");
  }
  return std::span<const Result>(results_);
}

/// Puts a drawn token in the place of the best one, for the sequences that are sampled.
void BatchDecoder::sample() {
  const size_t vocab = static_cast<size_t>(runtime_.target().config().vocab);
  runtime_.pool().parallel_for(sampled_.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (sampled_[i] < 0) continue;
      const Slot& slot = slots_[static_cast<size_t>(sampled_[i])];
      best_[i] = sample_token({logits_.data() + i * vocab, vocab}, slot.sampling, static_cast<int>(slot.tokens.size()));
    }
  });
}

}  // namespace aerie
