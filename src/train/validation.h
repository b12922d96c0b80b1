// Judging weights by what serves them: the replay of eagle3/replay.h, with the kernels and the precision of the engine.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "eagle3/replay.h"
#include "train/dataset.h"

namespace aerie::train {

inline constexpr int kMaxWalk = 6;  // the walk is reported for K = 1..kMaxWalk, or up to the trained steps if they are more

struct Validation {
  ReplaySummary summary;                   // at the largest K
  std::vector<double> acceptance_lengths;  // [K-1] the walk's AL at K
  double acceptance_length(int k) const { return acceptance_lengths[static_cast<size_t>(k) - 1]; }
};

/// Weights by canonical name (eagle3/checkpoint.h), float32; they are rounded as a saved checkpoint is.
using DraftValues = std::map<std::string, std::vector<float>>;

/// A checkpoint in memory whose views point into `values`, so that weights need not be written to be judged.
DraftCheckpoint checkpoint_view(const DraftSpec& spec, const DraftValues& values);

/// Replays `conversations` for every K up to max(kMaxWalk, steps). `embedding` [V, H] is the target's.
Expected<Validation> validate(const DraftSpec& spec, const DraftValues& values, const std::vector<float>& embedding, int target_blocks,
                              const Dataset& data, std::span<const Conversation> conversations, int steps, ThreadPool& pool);

}  // namespace aerie::train
