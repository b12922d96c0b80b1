// Which stored states does a drafter want, and in which order?
//
// fc is linear: h = fc(g) is the sum over the slots of W_slot * state, with a norm in front of it a scaled sum. So every captured state is
// put through every slot's columns of fc once, and the h of any ordered choice of states is k additions. The rest of the drafter runs
// for every choice, on short pieces of conversations (rows that attend to a few rows before them), and the choices are ranked by the mean
// log-probability of the target's next token, which tells more from few rows than matches do. The best are ranked again on more rows,
// twice. What wins here is only a candidate: the replay of whole conversations decides.
#pragma once

#include <span>
#include <vector>

#include "doctor/scoring.h"

namespace aerie {

struct TapSearchOptions {
  int pieces = 64;                         // pieces of the last round
  int rows_per_piece = 8;                  // whose predictions count
  int context = 12;                        // rows before these that they attend to
  size_t most_choices = 2048;              // where there are more, those in reach of the declared ones are tried
  size_t keep = 24;                        // choices that are handed back
  uint64_t max_bytes = uint64_t{1} << 29;  // of projected states
};

struct TapChoice {
  std::vector<SlotUse> feature;
  double log_likelihood = 0;  // mean over the rows of the last round it was in, of tokens inside the draft vocabulary
};

struct TapSearchResult {
  std::vector<TapChoice> best;  // best first
  size_t tried = 0, possible = 0;
  int rows = 0;  // of the last round
};

/// Ranks ordered choices of as many states as the drafter has taps, without repeating one. `conversations`: those to take pieces of.
Expected<TapSearchResult> search_taps(ReadingScorer& scorer, const Reading& base, std::span<const SlotUse> states,
                                      std::span<const size_t> conversations, const TapSearchOptions& options);

}  // namespace aerie
