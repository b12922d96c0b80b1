// Engine traces: what an engine's drafter was handed and what it answered, step by step (docs/trace-format.md). Aerie writes them with
// `run --trace`, and the recorders of tools/trace/ write them inside other engines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace aerie {

/// Where a trace comes from; engine.json.
struct EngineTraceManifest {
  static constexpr int kFormatVersion = 1;

  std::string engine;   // "aerie 0.1.0", "sglang 0.5.23": name and version
  std::string drafter;  // for people
};

/// A row that was fed with the target's feature: step 0 of the drafter.
struct EngineRow {
  int32_t token = 0;     // whose embedding it consumed
  int32_t position = 0;  // RoPE position that it was given
  int32_t cycle = 0;     // of the cycle that drafted after it
};

/// One draft step: the forward of which a draft is the best token.
struct EngineStep {
  int32_t cycle = 0, step = 0;
  int32_t token = 0, position = 0;  // as of EngineRow; step 0: those of the newest row
};

struct EngineCycle {
  int32_t newest = 0;  // index into tokens of the newest one when it began: the one that the target had not read yet
  int32_t accepted = 0;
  std::vector<int32_t> drafts;  // target ids, in order
};

/// One request that ran alone. Everything is in the order in which it happened.
struct EngineRequest {
  std::vector<int32_t> tokens;  // prompt and answer
  int32_t prompt = 0;           // tokens of the prompt
  int32_t cached = 0;           // of these, the ones that a prefix cache held: the drafter may not have been fed them
  std::vector<EngineCycle> cycles;
  std::vector<EngineRow> rows;
  std::vector<uint16_t> features;  // bf16 [rows, width]
  int width = 0;
  std::vector<EngineStep> steps;
  int top = 0;                      // logits kept of a step, the highest first
  std::vector<int32_t> top_tokens;  // target ids [steps, top]
  std::vector<float> top_logits;    // [steps, top]

  /// kInvalidArgument says which count contradicts which.
  Status check() const;
};

/// Writes requests into a folder, one at a time and each atomically. Not thread-safe.
class EngineTraceWriter {
 public:
  /// Creates the folder with its engine.json, or joins it. kInvalidArgument: it holds the trace of another engine or drafter.
  static Expected<EngineTraceWriter> open(const std::string& folder, const EngineTraceManifest& manifest);
  /// Under the next free number.
  Status write(const EngineRequest& request);

 private:
  std::string folder_;
  int next_ = 0;
};

/// Reads a folder. Thread-safe.
class EngineTraceReader {
 public:
  static Expected<EngineTraceReader> open(const std::string& folder);

  const EngineTraceManifest& manifest() const { return manifest_; }
  size_t size() const { return numbers_.size(); }
  int number(size_t i) const { return numbers_[i]; }
  /// kCorrupt names the file: cut off, sizes that contradict each other, tokens or positions below 0, cycles that are not there.
  /// Features that are not finite are read: that the engine fed them is what a diagnosis is after.
  Expected<EngineRequest> read(size_t i) const;

 private:
  std::string folder_;
  EngineTraceManifest manifest_;
  std::vector<int> numbers_;
};

}  // namespace aerie
