// Checkpoints whose config.json states the layer's keys at the top level: the reference's, SpecForge's, ModelOpt's, NeMo's, AngelSlim's.
#pragma once

#include "eagle3/checkpoint.h"
#include "eagle3/raw_checkpoint.h"

namespace aerie::flat {

/// Reads a folder of one of these dialects (named in spec.dialect: "safeailab", "specforge", "modelopt", "nemo", "angelslim"). Errors
/// as for open_drafter, without the path in front.
Expected<DraftCheckpoint> load_checkpoint(const RawCheckpoint& raw, const OpenOptions& options);

}  // namespace aerie::flat
