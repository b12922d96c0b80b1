// What the stored states are, found out from the states themselves: the name that somebody gave them is where drafters go wrong.
#pragma once

#include "base/status.h"
#include "train/dataset.h"
#include "train/target_tensors.h"

namespace aerie::train {

struct StatesCheck {
  bool final_normed = false;  // the final norm has been applied to the final states already
  double on_policy = 1.0;     // share of the answers' tokens that the target's head, over the final state before them, thinks most likely
  int rows = 0;               // looked at
};

/// Looks at up to 256 rows of answers, spread over each folder's conversations.
/// Whether the final states are normed: only then is a state, divided by the norm's weight, one of root mean square 1. Where the format
/// says otherwise, what was measured holds, with a warning. Refused: a tap that is called another boundary and is the embedding of the
/// tokens, or is called the embedding and is not. Where the teacher is not the final state, it is neither judged nor taken for normed.
Expected<StatesCheck> check_states(const Dataset& data, const TargetTensors& target);

/// Says in the log whose words the answers are, where they are not the target's most likely ones.
void report_on_policy(const StatesCheck& check);

}  // namespace aerie::train
