// What `aerie data check` says, said of the data of a run before it starts.
#pragma once

#include "base/status.h"
#include "formats/gguf.h"
#include "train/dataset.h"

namespace aerie::train {

/// Logs what DataCheck (doctor/data_check.h) finds in the conversations that are trained on or held out, and refuses what it calls an error.
Status check_data(const Dataset& data, const GgufFile& target, int vocab);

}  // namespace aerie::train
