// Checkpoints whose config.json states the layer's keys at the top level: the reference's, SpecForge's, ModelOpt's, NeMo's, AngelSlim's.
#pragma once

#include "eagle3/checkpoint.h"
#include "eagle3/dialects/folder_writer.h"
#include "eagle3/dialects/recognise.h"
#include "eagle3/raw_checkpoint.h"

namespace aerie::flat {

/// Reads a folder of one of these dialects: kSafeAiLab, kSpecForge, kModelOpt, kNemo or kAngelSlim. Errors as for open_drafter, without
/// the path in front.
Expected<DraftCheckpoint> load_checkpoint(const RawCheckpoint& raw, Dialect dialect, const OpenOptions& options);

/// Whose reading a folder is written for.
enum class Maker {
  kSpecForge,  // midlayer.*, ids as SGLang counts, t2d
  kSglang,     // the same for SGLang alone, which knows two architectures
  kModelOpt,   // layers.0.*, ids as block outputs, no t2d, the keys of its exporter
};

/// Writes the drafter with the layer ids of `ids`, as write_draft_folder() does. The spec must be one that the maker's files can
/// hold: see convert.h.
Status save_checkpoint(const std::string& folder, const DraftSpec& spec, const std::map<std::string, TensorView>& tensors, Maker maker,
                       const LayerIds& ids);
/// The same without weights: config.json, and how its tensors are called.
DraftFolder draft_folder(const DraftSpec& spec, Maker maker, const LayerIds& ids);

}  // namespace aerie::flat
