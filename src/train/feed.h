// Where the optimiser's steps come from: folders of traces, or a target that answers prompts while it is trained for (stream.h).
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "train/batch.h"
#include "train/dataset.h"

namespace aerie::train {

/// A step's place in the data. What `in_epoch` counts is the feed's own.
struct Place {
  int64_t epoch = 0, in_epoch = 0;
};

/// One optimiser step, laid out. Without batches at the end of data that turned out shorter than was thought.
struct LoadedStep {
  std::vector<PackedBatch> batches;
  Place next;  // of the step after it
  bool end = false;
};

/// How steps are cut and laid out.
struct FeedOptions {
  int64_t tokens_per_step = 0, row_length = 0, epochs = 1, max_steps = 0;
  int ttt_steps = 1;
  std::span<const int32_t> to_draft;  // target id -> draft id, -1 outside
  Draws draws;                        // the epoch is the feed's
  RowShare share;
};

class StepFeed {
 public:
  virtual ~StepFeed() = default;

  /// Optimiser steps of the run, and its tokens; of answers that are not known yet, about as many.
  virtual int64_t steps() const = 0;
  virtual double tokens() const = 0;
  /// Tokens of one pass over the data: those that are new.
  virtual double tokens_of_epoch() const = 0;
  /// How far a run is that has done so many steps and goes on at `place`; 1 at the end.
  virtual double progress(int64_t step, const Place& place) const = 0;
  /// The next call of next() gives the step at `place`.
  virtual void go_to(const Place& place) = 0;
  /// kCancelled: interrupted while the step was being made.
  virtual Expected<LoadedStep> next() = 0;
  /// Tokens a second at which the feed makes its data, of what it has made so far; 0: it is made already.
  virtual double tokens_per_second() const { return 0; }
  /// Conversations that were made and are not trained on: too long, without an answer, or what the run is judged by.
  virtual int64_t left_out() const { return 0; }
};

/// Steps of stored conversations: in an order of its own every epoch, the next one being read while the trainer works on one.
class FolderFeed : public StepFeed {
 public:
  FolderFeed(const Dataset& data, const FeedOptions& options);
  ~FolderFeed() override;

  int64_t steps() const override { return steps_; }
  double tokens() const override { return tokens_; }
  double tokens_of_epoch() const override { return static_cast<double>(data_.training_tokens()); }
  double progress(int64_t step, const Place&) const override { return static_cast<double>(step) / static_cast<double>(steps_); }
  void go_to(const Place& place) override;
  Expected<LoadedStep> next() override;

 private:
  Status start_loading();

  const Dataset& data_;
  FeedOptions options_;
  int64_t steps_ = 0;
  double tokens_ = 0;
  Place place_;  // of the step that is being loaded, or would be
  int64_t planned_ = -1;
  std::vector<std::vector<uint32_t>> plan_;  // of that epoch
  std::future<Expected<std::vector<PackedBatch>>> loading_;
};

}  // namespace aerie::train
