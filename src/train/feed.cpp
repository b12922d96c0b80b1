#include "train/feed.h"

namespace aerie::train {

FolderFeed::FolderFeed(const Dataset& data, const FeedOptions& options) : data_(data), options_(options) {
  double of_all = 0;  // steps, were there no limit to them
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    if (options.max_steps == 0 || steps_ < options.max_steps) {
      steps_ += static_cast<int64_t>(plan_epoch(data.training(), options.tokens_per_step, options.draws.seed, epoch).size());
      of_all = static_cast<double>(steps_) / static_cast<double>(epoch + 1) * static_cast<double>(options.epochs);
    }
  }
  if (options.max_steps > 0) steps_ = std::min(steps_, options.max_steps);
  tokens_ = static_cast<double>(data.training_tokens()) * static_cast<double>(options.epochs) * static_cast<double>(steps_) / of_all;
}

FolderFeed::~FolderFeed() {
  if (loading_.valid()) loading_.wait();
}

void FolderFeed::go_to(const Place& place) {
  if (loading_.valid()) loading_.wait();
  loading_ = {};
  place_ = place;
}

Status FolderFeed::start_loading() {
  if (planned_ != place_.epoch) {
    plan_ = plan_epoch(data_.training(), options_.tokens_per_step, options_.draws.seed, place_.epoch);
    planned_ = place_.epoch;
  }
  if (place_.in_epoch < 0 || static_cast<size_t>(place_.in_epoch) >= plan_.size()) {
    return corrupt("the run stands at step {} of an epoch, and the data has {}: it was started on other data", place_.in_epoch,
                   plan_.size());
  }
  Draws draws = options_.draws;
  draws.epoch = place_.epoch;
  loading_ = std::async(std::launch::async, [this, draws, chosen = plan_[static_cast<size_t>(place_.in_epoch)]] {
    return load_step(data_, chosen, options_.row_length, options_.ttt_steps, options_.to_draft, draws, options_.share);
  });
  return {};
}

Expected<LoadedStep> FolderFeed::next() {
  if (!loading_.valid()) AERIE_TRY(start_loading());
  LoadedStep step;
  AERIE_ASSIGN(step.batches, loading_.get());
  if (static_cast<size_t>(++place_.in_epoch) == plan_.size()) place_ = {place_.epoch + 1, 0};
  step.next = place_;
  if (place_.epoch < options_.epochs) AERIE_TRY(start_loading());
  return step;
}

}  // namespace aerie::train
