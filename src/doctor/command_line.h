// An engine's command line as a person pastes it, taken apart the way a shell would. Nothing is expanded or run.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace aerie {

struct Flag {
  std::string name;                  // with its dashes: "--speculative-num-steps"
  std::optional<std::string> value;  // what follows '=', or the next word unless that is a flag
};

struct CommandLine {
  std::vector<Flag> flags;                                       // in order
  std::vector<std::pair<std::string, std::string>> environment;  // NAME=value words in capitals, wherever they stand

  /// The last flag of that name, which is the one argparse keeps; null without any.
  const Flag* find(std::string_view name) const;
  /// The value of an environment variable, or null.
  const std::string* variable(std::string_view name) const;
};

/// Splits at spaces outside quotes; '\' keeps the next character (a line's end: nothing). An open quote is an error. Underscores of a
/// long flag's name become dashes, as vLLM and llama.cpp read them.
Expected<CommandLine> parse_command_line(std::string_view text);

}  // namespace aerie
