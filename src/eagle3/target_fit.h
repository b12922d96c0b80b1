// What a drafter's files say beside those of the target that it is to be used with.
#pragma once

#include <string>
#include <vector>

#include "eagle3/checkpoint.h"
#include "formats/gguf.h"
#include "formats/tensor.h"

namespace aerie {

/// What is known of a target.
struct TargetFacts {
  int hidden = 0, vocab = 0, blocks = 0;
  int context = 0;                        // positions; 0: not known
  float rope_theta = 0.0f;                // 0: not known
  const TensorView* embedding = nullptr;  // [V, Ht] of any type, or null
};

/// Of a target's file, which must outlive the result.
Expected<TargetFacts> target_facts(const GgufFile& file);

/// "another-target": an error, V, Ht or a tap does not fit; nothing else is looked at then. "context-longer-than-trained": a warning.
/// "rope-theta-not-the-targets": a note, or a warning where it is the default of config classes. "embedding-not-the-targets": a
/// warning, the drafter's own table of the target's width points elsewhere, so that engines which replace it serve another forward;
/// where it looks random besides (see below) an error.
Expected<std::vector<Finding>> target_findings(const DraftCheckpoint& checkpoint, const TargetFacts& target);

/// Takes the drafter's own embedding away where it is the target's but for the rounding of either file, so that the target's is used; false
/// where it is not, or that is not known.
Expected<bool> drop_targets_embedding(DraftCheckpoint& checkpoint, const TargetFacts& target);

/// "embedding-random": a warning, the drafter's own table looks as one that was initialised and neither trained nor copied. Nothing if
/// it does not, if there is none, or if it is too small to tell.
Expected<std::vector<Finding>> embedding_findings(const DraftCheckpoint& checkpoint);

}  // namespace aerie
