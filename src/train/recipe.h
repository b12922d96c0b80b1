// What a run is made of: the drafter's shape, the drafter it goes on from, and the record of every choice.
#pragma once

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "eagle3/checkpoint.h"
#include "train/dataset.h"
#include "train/parameters.h"
#include "train/trainer.h"

namespace aerie::train {

/// "cpu", "cuda" (with several processes on a machine the one that LOCAL_RANK names) or "cuda:1". kInvalidArgument: another word;
/// kUnsupported: the LibTorch that is linked has no CUDA, or the machine not that device.
Expected<at::Device> device_of(const std::string& name);

/// kAuto becomes what the device multiplies best.
MatmulPrecision precision_on(const at::Device& device, MatmulPrecision asked);

/// A new drafter for the target, with the draft vocabulary of the data.
Expected<DraftSpec> make_spec(const TrainOptions& options, const TargetTensors& target, const Dataset& data);

/// The drafter that a run goes on from, as far as it can be trained and written again.
Expected<DraftCheckpoint> open_source(const std::string& path, const TargetTensors& target);

/// What the bytes of the result depend on, besides the length of the run, the validations that choose among its checkpoints, and the
/// machine: threads, instruction set, number of processes.
nlohmann::json recipe_of(const TrainOptions& options, const DraftSpec& spec, const Dataset& data, MatmulPrecision precision);

}  // namespace aerie::train
