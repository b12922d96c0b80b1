// The part of aerie doctor that replays stored states: which reading of a checkpoint makes the drafter work.
#pragma once

#include <optional>
#include <string>

#include "command.h"
#include "doctor/report.h"
#include "eagle3/engines/engine_version.h"

namespace aerie::cli {

struct ReplayFlags {
  std::string drafter, target, traces, rows, engine_trace;
  std::string domains, fix;        // files: of each row's domain; to write the mended drafter to
  std::string training_log;        // metrics.jsonl of its training
  std::vector<double> validated;   // shares of drafts right by step, as the training reported them
  std::vector<std::string> slots;  // what the trace's states are, where it does not say it
  std::optional<int> teacher;      // the boundary that the trainer took for the final state
  bool without_mask = false;
  std::optional<int64_t> sample_tokens;
  int threads = 0;
  DrafterFlags reading;

  bool given() const { return !drafter.empty() || !traces.empty(); }
  /// A drafter by itself says nothing.
  bool complete() const { return drafter.empty() || !traces.empty() || !engine_trace.empty(); }
  void add_to(CLI::App& app);
};

/// Adds what the replay says to `report`. `engine`: whose reading of the files is replayed too, or nothing. `served`: drafts per cycle,
/// where flags say it.
Status replay_hypotheses(const ReplayFlags& flags, const std::optional<EngineVersion>& engine, const std::string& target_arch,
                         std::optional<int> served, Report& report);

}  // namespace aerie::cli
