// inspect --served-by: what other engines would make of a drafter's files.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"
#include "eagle3/checkpoint.h"

namespace aerie::cli {

struct ServedFlags {
  std::string engine, target_arch;
  int target_blocks = 0;

  void add_to(CLI::App& app);
  bool given() const { return !engine.empty(); }
};

/// Prints the readings of the drafter at `path`. Where Aerie itself can open the drafter, what differs from its own reading, by
/// `known`, is named. `target`: a GGUF file or a known name whose architecture and depth are taken where `flags` has none; or "".
Status print_served(const ServedFlags& flags, const std::string& path, const std::string& target, OpenOptions known, bool json);

}  // namespace aerie::cli
