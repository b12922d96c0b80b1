// What an engine's command line puts in force: rarely what was asked for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "eagle3/engines/engine_version.h"
#include "eagle3/finding.h"

namespace aerie {

/// One property of serving.
struct Setting {
  std::string name;      // "draft tokens (K)"
  std::string asked;     // as given, or "" if it was not
  std::string in_force;  // what the engine does
  std::string why;       // the rule that made it so, or ""
};

struct EngineSetup {
  EngineVersion engine;
  bool starts = true;  // false: the engine refuses these flags; an error of `findings` says why
  bool speculates = false;
  std::string algorithm;            // in the engine's own word, lower case: "eagle3"
  std::string drafter;              // path or name, "" without any
  std::optional<int> draft_tokens;  // K: drafts that one verify checks, the bonus token not counted; in a tree its nodes
  std::optional<int> depth;         // the most drafts that one verify can accept; equals K in a chain
  bool draft_tokens_vary = false;   // K is the most; the engine may draft fewer
  bool faked_acceptance = false;    // acceptance is simulated: its figures say nothing
  std::vector<Setting> settings;
  std::vector<Finding> findings;
  std::vector<std::string> write_instead;  // the flags that say what is in force, or what was meant
};

/// What is known beside the flags.
struct FlagContext {
  std::string target_architecture;  // "LlamaForCausalLM"; "" if not known
};

/// Reads the command line of `engine` (for TensorRT-LLM and OpenVINO also the text of a run configuration: YAML lines or NAME=VALUE
/// words). Flags that do not concern speculation are passed over; those that do and are not known give a finding. An error means that
/// the text is no command line (an open quote, JSON that does not parse).
Expected<EngineSetup> read_engine_flags(const EngineVersion& engine, std::string_view command_line, const FlagContext& context = {});

}  // namespace aerie
