// Flags of the subcommands that read a drafter without running it.
#pragma once

#include <optional>
#include <string>

#include "command.h"
#include "eagle3/checkpoint.h"

namespace aerie::cli {

/// --taps and --layer-id-convention.
struct DrafterFlags {
  std::string taps, convention;
  void add_to(CLI::App& app);
  /// `target`: of the drafter, or null. kInvalidArgument names the flag that has no meaning.
  Expected<OpenOptions> options(const GgufFile* target) const;
};

}  // namespace aerie::cli
