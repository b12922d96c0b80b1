// Which of the stored states is the one that the target's head reads? A trainer takes the head over the last stored state for the target's
// word; where that state is a late block instead of the final one, it learns from a teacher that is not the target, and its
// validation, which counts against that teacher, does not tell.
#pragma once

#include <vector>

#include "doctor/report.h"
#include "doctor/sample.h"
#include "doctor/scoring.h"

namespace aerie {

struct SlotAgreement {
  SlotUse use;
  std::string name;
  Interval agreement;  // share of the answer's tokens that the head's best token over this state is; 95 % over conversations
};

/// The target's head over each stored state, as it is and through the final norm, against the next token of the answer. At most
/// `most_rows` positions, spread over the conversations. Best first.
Expected<std::vector<SlotAgreement>> next_token_agreement(const Sample& sample, ReadingScorer& scorer, const TargetTables& target,
                                                          int most_rows = 256);

/// What a teacher that is another state than the final one comes to.
struct TeacherCost {
  Interval ceiling;      // acceptance length of drafts that are this teacher's words: of a drafter that learned it perfectly
  Interval right_to_it;  // share of first drafts that are the teacher's word: what its trainer's validation counts ...
  Interval right;        // ... and those that are the target's
  int rows = 0;
};

/// `reading`: how the drafter is read. The head over `teacher` at the first positions of each answer, k drafts per cycle; at most
/// `most_rows` positions.
Expected<TeacherCost> teacher_cost(const Sample& sample, ReadingScorer& scorer, const TargetTables& target, const Reading& reading,
                                   const SlotUse& teacher, int k, int most_rows = 1024);

/// The better of a slot's readings, with and without the final norm; null where it was not looked at.
const SlotAgreement* best_of_slot(const std::vector<SlotAgreement>& slots, int slot);

/// `final_slot` is the one that was taken for the final state: by the trace, or by whoever trained. `sampled`: the answers are known to
/// have been drawn, so that even the right state does not give all of them, and only a better one is held against it.
std::vector<Finding> judge_slots(const std::vector<SlotAgreement>& slots, int final_slot, bool sampled = false);
/// Adds what it costs to the finding of judge_slots.
void add_cost(Finding& finding, const TeacherCost& cost, int k);
ReportSection describe(const std::vector<SlotAgreement>& slots);

}  // namespace aerie
