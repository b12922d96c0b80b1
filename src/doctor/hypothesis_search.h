// Which reading of a checkpoint makes the drafter work? Every hypothesis is replayed on stored states and compared with what the files
// declare, conversation by conversation.
//
// Half of the conversations are searched, the other half judges: the few readings that did best in the search are replayed there, and
// only what beats the declared reading on conversations that had no part in choosing it is named. So the best of a thousand tries is
// not taken for a fault because it was the best of a thousand. After a fault is named, the search goes on from the mended reading.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "doctor/scoring.h"
#include "doctor/tap_search.h"

namespace aerie {

struct SearchOptions {
  int k = 3;            // drafts per cycle
  int most_faults = 3;  // named one after another
  TapSearchOptions taps;
  std::function<void(const std::string& doing)> on_progress;  // or null
};

/// A gain in acceptance length that is worth naming: at least this much, and at least this share of the accepted drafts per cycle.
inline constexpr double kLeastGain = 0.02, kLeastShare = 0.05;
/// What is needed before anything is said.
inline constexpr size_t kLeastConversations = 8;
inline constexpr int64_t kLeastRows = 300;
/// A healthy reading is called better by chance in one of this many diagnoses.
inline constexpr double kFalseAlarms = 1e-3;

struct Judged {
  Hypothesis hypothesis;
  Score score;             // over all conversations
  Interval first, length;  // step-0 acceptance and acceptance length with 95 % intervals
  Interval gain;           // in acceptance length over the base, on the judging half, so wide that it errs once in kFalseAlarms diagnoses
  bool beats = false;      // the gain is beyond that interval and worth naming
};

struct SearchRound {
  Judged base;                    // as declared, or as mended so far; its gain is nothing
  std::vector<Judged> finalists;  // by acceptance length, best first
  std::optional<size_t> winner;   // of the finalists
  std::optional<size_t> tie;      // the best finalist that beats the base too and cannot be told from the winner
  Interval apart;                 // winner over tie, on all conversations
  size_t tried = 0;               // hypotheses, choices of taps included
  size_t without_effect = 0;      // of these, the ones that change no draft on this trace
  TapSearchResult taps;
};

struct SearchResult {
  std::vector<SearchRound> rounds;   // the last one found nothing more, unless most_faults were found
  std::string too_little;            // why nothing was searched, or ""
  size_t searched = 0, judging = 0;  // conversations
  size_t available = 0;              // that the trace holds
  int64_t tokens = 0;                // of those that were looked at
  std::vector<StandIn> stand_ins;    // of the declared feature
  /// A gain below this could not have been told from chance: the half width of the gains' intervals.
  double visible = 0;
};

/// `declared` is how the files and the trace are read as they stand.
Expected<SearchResult> search_hypotheses(ReadingScorer& scorer, const Reading& declared, const HypothesisFacts& facts,
                                         const SearchOptions& options);

/// The numbers of a sample's conversations in the order of the scores of Judged: those that are searched, then those that judge.
std::vector<size_t> judged_order(const Sample& sample);

/// How the drafter does with every fault mended that was named. There must have been a round.
const Judged& last_judged(const SearchResult& result);
/// Its reading.
const Reading& last_reading(const SearchResult& result);

/// One more reading, such as an engine's, over all conversations; the gain is over `base` and at 95 %.
Expected<Judged> judge_reading(ReadingScorer& scorer, const Hypothesis& hypothesis, const Judged& base, int k);

}  // namespace aerie
