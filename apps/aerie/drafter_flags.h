// How a drafter's files are read where they do not say enough; and saying what reading them brought up.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "eagle3/checkpoint.h"

namespace aerie::cli {

/// --taps and --layer-id-convention.
struct DrafterFlags {
  std::string taps, convention;
  void add_to(CLI::App& app);
  /// kInvalidArgument names the flag that has no meaning.
  Expected<OpenOptions> options() const;
};

/// Warns on stderr of each finding that is more than a note.
void warn_of(const std::vector<Finding>& findings);

}  // namespace aerie::cli
