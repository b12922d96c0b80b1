#include "train/stream.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "base/random.h"
#include "eagle3/replay.h"

namespace aerie::train {
namespace {

using Clock = std::chrono::steady_clock;

int64_t bytes_of(const Trace& trace) {
  return static_cast<int64_t>(trace.states.size() * sizeof trace.states[0] + trace.tokens.size() * sizeof trace.tokens[0]);
}

std::vector<int32_t> prompt_of(const std::vector<int32_t>& tokens, const std::vector<uint8_t>& mask) {
  return {tokens.begin(), tokens.begin() + (std::ranges::find(mask, uint8_t{1}) - mask.begin())};
}

}  // namespace

Expected<std::unique_ptr<StreamFeed>> StreamFeed::open(const Dataset& judged, const FeedOptions& options, const StreamOptions& stream) {
  std::unique_ptr<StreamFeed> feed(new StreamFeed(judged, options, stream));
  AERIE_ASSIGN(feed->prompts_, read_prompts(stream.prompts));
  RuntimeOptions load;
  load.target = stream.target;
  load.threads = stream.threads;
  AERIE_ASSIGN(feed->runtime_, Runtime::load(load));
  AERIE_ASSIGN(feed->capture_, options_of(*feed->runtime_, judged.manifest()));
  double& tokens = feed->tokens_of_epoch_;
  for (const Conversation& conversation : judged.held_out()) {
    feed->judged_prompts_.insert(prompt_of(conversation.tokens, conversation.mask));
    tokens += static_cast<double>(conversation.tokens.size());
  }
  // Answers are taken to be as long as those of the folder.
  tokens *= static_cast<double>(feed->prompts_.size()) / static_cast<double>(judged.held_out().size());
  const double epochs = static_cast<double>(options.epochs);
  feed->steps_ = std::max<int64_t>(1, static_cast<int64_t>(tokens * epochs / static_cast<double>(options.tokens_per_step)));
  if (options.max_steps > 0) feed->steps_ = std::min(feed->steps_, options.max_steps);
  feed->tokens_ = std::min(tokens * epochs, static_cast<double>(feed->steps_ * options.tokens_per_step));
  return feed;
}

double StreamFeed::progress(int64_t step, const Place& place) const {
  const double prompts = static_cast<double>(prompts_.size());
  const double by_prompts =
      (static_cast<double>(place.epoch) * prompts + static_cast<double>(place.in_epoch)) / (prompts * static_cast<double>(options_.epochs));
  const double by_steps = options_.max_steps > 0 ? static_cast<double>(step) / static_cast<double>(options_.max_steps) : 0.0;
  return std::max(by_prompts, by_steps);
}

void StreamFeed::go_to(const Place& place) {
  place_ = place;
  generator_.reset();
  waiting_.clear();
  waiting_bytes_ = 0;
}

/// Answers the epoch's prompts from place_ on.
Status StreamFeed::begin_epoch() {
  if (place_.in_epoch < 0 || static_cast<size_t>(place_.in_epoch) >= prompts_.size()) {
    return corrupt("the run stands at prompt {} of an epoch, and there are {}: it was started on others", place_.in_epoch, prompts_.size());
  }
  order_ = shuffled(static_cast<uint32_t>(prompts_.size()), random_stream({options_.draws.seed, static_cast<uint64_t>(place_.epoch)}));
  place_of_.assign(order_.size(), 0);
  for (size_t i = 0; i < order_.size(); ++i) place_of_[order_[i]] = static_cast<int64_t>(i);
  AERIE_ASSIGN(generator_, TraceGenerator::create(*runtime_, prompts_, capture_, {order_.begin() + place_.in_epoch, order_.end()}));
  generated_all_ = false;
  return {};
}

/// Whether there is something to train on: a conversation of its own that fits a row.
bool StreamFeed::trained_on(const Trace& trace) const {
  return trace.length() > 0 && trace.length() <= static_cast<size_t>(options_.row_length) && !find_starts(trace.mask, 1).empty() &&
         judged_prompts_.count(prompt_of(trace.tokens, trace.mask)) == 0;
}

/// Whether the conversations that come next have all ended, as far as a step goes.
bool StreamFeed::step_is_ready() const {
  int64_t tokens = 0, place = place_.in_epoch;
  for (const auto& [at, trace] : waiting_) {
    if (at != place++) return false;
    tokens += static_cast<int64_t>(trace.length());
    if (tokens >= options_.tokens_per_step) return true;
  }
  return generated_all_;
}

/// Lets the target answer until the buffer is full and a step can be made of it.
Status StreamFeed::fill() {
  const Clock::time_point start = Clock::now();
  std::vector<CapturedRow> ended;
  while (!generated_all_ && (waiting_bytes_ < stream_.buffer_bytes || !step_is_ready())) {
    if (stream_.cancel != nullptr && stream_.cancel->load()) return cancelled("interrupted while the target answered");
    ended.clear();
    AERIE_ASSIGN(const bool more, generator_->step(ended));
    generated_all_ = !more;
    for (CapturedRow& row : ended) {
      generated_ += static_cast<double>(row.trace.length());
      if (!trained_on(row.trace)) {
        row.trace = Trace();
        ++left_out_;
      }
      waiting_bytes_ += bytes_of(row.trace);
      waiting_.emplace(place_of_[static_cast<size_t>(row.row)], std::move(row.trace));
    }
  }
  generating_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  return {};
}

Expected<LoadedStep> StreamFeed::next() {
  std::vector<Trace> documents;
  std::vector<uint32_t> numbers;
  Draws draws = options_.draws;
  // The last prompts of an epoch may all be left out: then the step is of the next one.
  while (documents.empty() && place_.epoch < options_.epochs) {
    if (!generator_) AERIE_TRY(begin_epoch());
    if (!step_is_ready()) AERIE_TRY(fill());
    draws.epoch = place_.epoch;
    for (int64_t tokens = 0; tokens < options_.tokens_per_step && !waiting_.empty();) {
      Trace trace = std::move(waiting_.extract(waiting_.begin()).mapped());
      waiting_bytes_ -= bytes_of(trace);
      tokens += static_cast<int64_t>(trace.length());
      const uint32_t number = order_[static_cast<size_t>(place_.in_epoch++)];
      if (trace.tokens.empty()) continue;
      documents.push_back(std::move(trace));
      numbers.push_back(number);
    }
    if (static_cast<size_t>(place_.in_epoch) < order_.size()) continue;
    place_ = {place_.epoch + 1, 0};
    generator_.reset();
  }
  LoadedStep step;
  step.batches = lay_out_step(std::move(documents), numbers, options_.row_length, options_.ttt_steps, options_.to_draft, draws);
  step.next = place_;
  step.end = step.batches.empty();
  return step;
}

}  // namespace aerie::train
