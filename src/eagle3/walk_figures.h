// Figures of the acceptance walk beside the plain one of ReplaySummary: at every draft length, and without what repeats itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eagle3/replay.h"

namespace aerie {

/// Tokens in a row whose second occurrence within an answer counts as a repetition.
inline constexpr size_t kRepeatedGram = 8;

/// [tokens.size()] 1 where the `gram` tokens that end there stood earlier, too.
std::vector<uint8_t> ends_of_repeats(std::span<const int32_t> tokens, size_t gram = kRepeatedGram);

/// The same within each answer of a conversation; 0 outside of them.
std::vector<uint8_t> ends_of_repeats(std::span<const int32_t> tokens, std::span<const uint8_t> mask, size_t gram = kRepeatedGram);

/// What the same replay gives with at most `k` drafts per cycle.
TraceReplay limited_to(const TraceReplay& replay, int k);

struct CycleCount {
  int64_t accepted = 0, cycles = 0;
};
/// The walk's cycles; with `left_out` [T], only those whose first drafted token is not among them.
CycleCount count_cycles(const TraceReplay& replay, std::span<const uint8_t> left_out = {});

}  // namespace aerie
