// GGUF files of llama.cpp's `eagle3` architecture: taps as boundaries, d2t as absolute ids, rows of q and k in the order that
// llama.cpp's RoPE pairs them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "eagle3/checkpoint.h"
#include "eagle3/raw_checkpoint.h"
#include "formats/gguf_writer.h"

namespace aerie::gguf_eagle3 {

/// Quantised weights are handed out as F32, q and k in the order of the other dialects. Errors do not name the path.
Expected<DraftCheckpoint> load_checkpoint(const RawCheckpoint& raw, const OpenOptions& options);

struct SaveOptions {
  bool float32 = false;                 // otherwise matrices keep their type; norms are always F32, as llama.cpp wants them
  const GgufFile* tokenizer = nullptr;  // the target, whose tokenizer is copied; null: "no_vocab"
  std::string name;                     // general.name
};

/// Writes the drafter. kUnsupported names the field that the architecture cannot hold.
Status save_checkpoint(const std::string& path, const DraftCheckpoint& checkpoint, const SaveOptions& options);

/// The factors by which llama3 scaling divides RoPE's frequencies [rope_dim / 2] (the tensor rope_freqs.weight).
std::vector<float> llama3_factors(const DraftSpec& spec);

/// Whether the spec's rope_scaling is what a file of it reads back as: llama.cpp has fewer keys than a config, and of Llama 3's scaling
/// it keeps the factors alone.
bool reads_back_rope_scaling(const DraftSpec& spec);

}  // namespace aerie::gguf_eagle3
