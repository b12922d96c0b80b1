// Which of the stored states is the one that the target's head reads? A trainer takes the head over the last stored state for the target's
// word; where that state is a late block instead of the final one, it learns from a teacher that is not the target.
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
Expected<std::vector<SlotAgreement>> next_token_agreement(const Sample& sample, ReadingScorer& scorer, const TargetTables& target, int most_rows = 256);

/// `final_slot` is the one that the trace gives out as the final state.
std::vector<Finding> judge_slots(const std::vector<SlotAgreement>& slots, int final_slot);
ReportSection describe(const std::vector<SlotAgreement>& slots);

}  // namespace aerie
