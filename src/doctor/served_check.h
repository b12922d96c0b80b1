// An engine's reading of the files as one more hypothesis: what it would accept of these drafts.
#pragma once

#include <string>
#include <vector>

#include "doctor/hypothesis_search.h"
#include "eagle3/engines/engine_version.h"
#include "eagle3/finding.h"
#include "eagle3/raw_checkpoint.h"

namespace aerie {

/// Replays what each set of rules that the version leaves open makes of the files (engines/as_served.h), beside `base`, the declared
/// reading. What the engine refuses or misreads, and what cannot be replayed, is among the findings: so are taps of the engine
/// that the trace does not hold, where no state near by can stand for them.
std::vector<Finding> replay_served(const RawCheckpoint& raw, const EngineVersion& engine, const std::string& target_architecture,
                                   const Reading& declared, const HypothesisFacts& facts, ReadingScorer& scorer, const Judged& base, int k);

}  // namespace aerie
