// The inputs of an engine's drafter beside stored states: which state stands in which slot, and at which position.
#pragma once

#include <vector>

#include "doctor/engine_check.h"

namespace aerie {

/// What the rows of an engine turned out to hold.
struct FeatureMatch {
  EngineStage stage;
  std::vector<Finding> findings;
  int shift = 0;  // the row at position p holds the states of position p + shift
};

/// Refused where nothing is stored.
FeatureMatch match_features(const std::vector<EngineCase>& cases, const ReadingScorer& scorer, const Reading& reading,
                            const HypothesisFacts& facts);

}  // namespace aerie
