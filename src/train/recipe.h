// What a run is made of: the drafter's shape, the drafter it goes on from, and the record of every choice.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "eagle3/checkpoint.h"
#include "train/dataset.h"
#include "train/parameters.h"
#include "train/trainer.h"

namespace aerie::train {

/// kAuto becomes what this CPU multiplies best.
MatmulPrecision precision_here(MatmulPrecision asked);

/// A new drafter for the target, with the draft vocabulary of the data.
Expected<DraftSpec> make_spec(const TrainOptions& options, const TargetTensors& target, const Dataset& data);

/// The drafter that a run goes on from, as far as it can be trained and written again.
Expected<DraftCheckpoint> open_source(const std::string& path, const TargetTensors& target);

/// Everything that the bytes of the result depend on, besides the length of the run.
nlohmann::json recipe_of(const TrainOptions& options, const DraftSpec& spec, const Dataset& data, MatmulPrecision precision);

}  // namespace aerie::train
