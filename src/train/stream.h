// Training without stored states: the target answers prompts, its states are trained on and dropped.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/capture.h"
#include "engine/runtime.h"
#include "train/feed.h"

namespace aerie::train {

struct StreamOptions {
  std::string target;    // GGUF
  std::string prompts;   // JSON lines, plain or gzip (engine/prompts.h)
  int64_t buffer_bytes;  // of states that wait to be trained on
  int threads = 0;
  const std::atomic<bool>* cancel = nullptr;
};

/// Steps of conversations that are had as they are needed, with the settings that a folder of traces was captured with, so that they are
/// what `aerie capture` would have stored. The target answers until the buffer is full, then the trainer works until less than a step is
/// left in it: they never compete for the machine. Conversations are trained on in an order that depends on the seed alone, whichever ends
/// first; those of the folder, which is what the run is judged by, are left out. An interrupted run answers anew what it had not trained on
/// yet.
class StreamFeed : public StepFeed {
 public:
  /// `judged`: where the settings come from, and the conversations that are not trained on. Must outlive the feed.
  static Expected<std::unique_ptr<StreamFeed>> open(const Dataset& judged, const FeedOptions& options, const StreamOptions& stream);

  int64_t steps() const override { return steps_; }
  double tokens() const override { return tokens_; }
  double tokens_of_epoch() const override { return tokens_of_epoch_; }
  double progress(int64_t step, const Place& place) const override;
  void go_to(const Place& place) override;
  Expected<LoadedStep> next() override;
  int64_t left_out() const override { return left_out_; }
  double tokens_per_second() const override { return generating_seconds_ > 0 ? generated_ / generating_seconds_ : 0; }

 private:
  StreamFeed(const Dataset& judged, const FeedOptions& options, const StreamOptions& stream)
      : judged_(judged), options_(options), stream_(stream) {}
  Status begin_epoch();
  Status fill();
  bool step_is_ready() const;
  bool trained_on(const Trace& trace) const;

  const Dataset& judged_;
  FeedOptions options_;
  StreamOptions stream_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<Prompt> prompts_;
  CaptureOptions capture_;
  std::set<std::vector<int32_t>> judged_prompts_;  // tokens before the first answer
  std::vector<uint32_t> order_;                    // of the epoch's prompts
  std::vector<int64_t> place_of_;                  // in that order, by prompt
  Place place_;                                    // of the next conversation; in_epoch counts prompts
  std::unique_ptr<TraceGenerator> generator_;      // of the epoch's prompts from place_ on, none: not begun
  bool generated_all_ = false;
  std::map<int64_t, Trace> waiting_;  // by place in the epoch; empty: left out
  int64_t waiting_bytes_ = 0;
  int64_t steps_ = 0, left_out_ = 0;
  double tokens_ = 0, tokens_of_epoch_ = 0, generated_ = 0, generating_seconds_ = 0;
};

}  // namespace aerie::train
