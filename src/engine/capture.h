// Capture: the target answers prompts, many at a time, and its states are stored as traces.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/prompts.h"
#include "engine/runtime.h"
#include "formats/traces.h"

namespace aerie {

struct CaptureOptions {
  std::string out;                            // trace folder: created, or continued if it comes from the same target, taps and settings
  std::vector<int> taps;                      // empty: the boundaries 2, N/2 and N-3
  std::vector<double> temperatures = {0};     // prompt i is answered at the (i mod count)-th; 0: greedily
  uint64_t seed = 1;                          // of what is drawn at the others: with the prompt's number and the position it says what
  int max_new_tokens = 256;                   // of one answer
  int max_length = 1024;                      // of one conversation; prompts that leave no room for an answer are left out
  int slots = 32;                             // conversations that are generated together; has no influence on what is stored
  int row_budget = 64;                        // rows of one forward
  int first = 0, limit = 0;                   // prompts [first, first + limit); limit 0: all
  const std::atomic<bool>* cancel = nullptr;  // stops after the rows being computed; a later call goes on
};

struct CaptureProgress {
  int done = 0, total = 0, skipped = 0;   // conversations; `done` includes those that were there before
  int64_t answer_tokens = 0, tokens = 0;  // written by this call
  double seconds = 0;
};

/// What a folder says that is written with these options. Refuses options that have no meaning for this target.
Expected<TraceManifest> capture_manifest(const Runtime& runtime, const CaptureOptions& options);
/// The options, but where to and how many at a time, that a folder was written with. kUnsupported: it was written by another version of
/// this program, whose answers this one would not give.
Expected<CaptureOptions> options_of(const Runtime& runtime, const TraceManifest& manifest);

/// A conversation that has ended. Without tokens: its prompt left no room for an answer.
struct CapturedRow {
  int row = 0;
  int answer_tokens = 0;
  Trace trace;
};

/// Has the conversations of prompts, one forward after another. Not thread-safe.
class TraceGenerator {
 public:
  /// `rows` are numbers of prompts: they are begun in this order, and end in any. What it is given must outlive it.
  static Expected<std::unique_ptr<TraceGenerator>> create(Runtime& runtime, const std::vector<Prompt>& prompts,
                                                          const CaptureOptions& options, std::vector<int> rows);
  ~TraceGenerator();

  /// One forward; appends what has ended. False: there was nothing left to compute.
  Expected<bool> step(std::vector<CapturedRow>& ended);

 private:
  class Impl;
  explicit TraceGenerator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Row numbers are prompt numbers, so that a capture which was interrupted goes on where it was. A conversation with several
/// user messages is answered in turn as long as each answer ends by itself.
Expected<CaptureProgress> capture(Runtime& runtime, const std::vector<Prompt>& prompts, const CaptureOptions& options,
                                  const std::function<void(const CaptureProgress&)>& on_progress);

}  // namespace aerie
