// Engine against replay, tensor by tensor: what an engine's drafter was handed and answered (formats/engine_trace.h), beside what the
// stored states of the same tokens and the same weights give. The first place where they differ names the fault; what comes after it
// would only be its consequence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/report.h"
#include "doctor/scoring.h"
#include "formats/engine_trace.h"

namespace aerie {

/// A request, and the conversation of a trace whose tokens it shares.
struct EngineCase {
  EngineRequest request;
  std::optional<Conversation> stored;
  size_t common = 0;  // tokens that both begin with
};

/// Reads at most `most` requests, and looks for their conversations in `source` (null: there is none).
Expected<std::vector<EngineCase>> read_engine_cases(const EngineTraceReader& reader, const TraceSource* source, size_t most = 64);

/// Agreement of the engine with one thing that it should have done.
struct EngineStage {
  std::string name;  // "features", "tokens", "rows", "positions of the steps", "first drafts", "later drafts", "accepted counts"
  int64_t compared = 0, agreed = 0;
  std::string what;  // for people: what was compared

  double share() const { return compared == 0 ? 1.0 : static_cast<double>(agreed) / static_cast<double>(compared); }
};

struct EngineComparison {
  std::vector<EngineStage> stages;  // in order; those after the first that failed are left out
  std::vector<Finding> findings;
  double acceptance_length = 0;  // of the engine, by its own counts
  int64_t cycles = 0;
  std::vector<RatioPart> length;  // of each request: tokens emitted over cycles
  std::vector<std::vector<RatioPart>>
      accepted;            // [step][request]: cycles that accepted more than `step` drafts, over those that drafted as many
  size_t with_states = 0;  // requests whose states are stored
};

/// `reading`: how the drafter should be read. `facts` has the slots of the stored states.
Expected<EngineComparison> compare_engine(const std::vector<EngineCase>& cases, ReadingScorer& scorer, const Reading& reading,
                                          const HypothesisFacts& facts);

ReportSection describe(const EngineComparison& comparison, const EngineTraceManifest& manifest);

}  // namespace aerie
