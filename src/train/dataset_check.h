// What `aerie data check` says, said of the data of a run before it starts.
#pragma once

#include "train/dataset.h"
#include "train/target_tensors.h"

namespace aerie::train {

/// Logs what was left out of the data (`row_length`: the longest conversation that was not), and what DataCheck (doctor/data_check.h) finds
/// in the conversations that are trained on or held out. Nothing of it stops a run: what nobody can train on was refused when the data was
/// opened, and the rest, such as a loss on prompts, may be meant.
void report_on_data(const Dataset& data, const TargetTensors& target, int row_length);

}  // namespace aerie::train
