// What another engine would make of a drafter's files: would it refuse them, and if not, which forward would it run?
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eagle3/draft_spec.h"
#include "eagle3/engines/engine_version.h"
#include "eagle3/finding.h"
#include "eagle3/raw_checkpoint.h"

namespace aerie {

/// As much of a drafter's files as an engine's reading depends on.
struct DrafterFiles {
  nlohmann::json config = nlohmann::json::object();
  std::map<std::string, std::vector<uint64_t>> tensors;  // shapes by name
  std::vector<int64_t> d2t;                              // as stored, where it is; otherwise empty
  bool gguf = false;
};
DrafterFiles drafter_files(const RawCheckpoint& raw);

/// The target that the drafter is served with.
struct ServedTarget {
  std::string architecture;  // "LlamaForCausalLM", "KimiK25"; "": not known
  int blocks = 0;            // N; 0: not known
};

/// A field of the forward that the engine runs otherwise than it was trained.
struct ServedDifference {
  std::string field, trained, served;
  std::string cost;  // what public reports say that it costs
};

struct ServedReading {
  std::string engine;                // "vLLM 0.33 (V2 runner)"
  std::vector<std::string> caveats;  // why this may not be so
  std::vector<Finding> refusals;     // each stops the engine
  std::vector<Finding> misreadings;  // each happens without an error
  std::string unknown;               // why nothing can be said, or ""
  /// The forward that the engine runs; nothing if it refuses before the config is read, or if that is not known. Taps that
  /// depend on an unknown N are empty, and `taps` says them in words.
  std::optional<DraftSpec> spec;
  std::string taps;
  std::vector<ServedDifference> differences;  // from `trained`

  bool refuses() const { return !refusals.empty(); }
};

/// Emulates `engine`. `trained` is the forward that the drafter was made for, or null; the differences are against it. vLLM is emulated
/// with both model runners where its version leaves open which of them serves.
std::vector<ServedReading> read_as_served(const DrafterFiles& files, const EngineVersion& engine, const ServedTarget& target,
                                          const DraftSpec* trained);

/// What a field that is served otherwise than trained has cost in public reports; "" where there is none.
std::string reported_cost(const std::string& field);

}  // namespace aerie
