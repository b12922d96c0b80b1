#include "engine/draft_length.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "engine/runtime.h"
#include "models/kv_cache.h"

namespace aerie {
namespace {

// A trial costs about five plain steps where nothing of it is accepted: two for its drafts, three for the drafter to read some 250
// tokens that it missed. The first comes after 256 of them, later ones after 512, 1024, ...: 2 % at most. In simulations shorter
// trials, and fewer drafts remembered, left a drafter that pays unused after a run of bad luck.
constexpr int kFirstPatience = 256, kMostPatience = 4096, kTrialCycles = 4;
constexpr double kFade = 1.0 - 1.0 / 60;
// The first depth starts from hope, so that a drafter is tried at once where a draft costs less than a step; the hope fades as the
// drafts do. Each later depth starts from the one before it. Both weigh as much as this many drafts.
constexpr double kPriorWeight = 3.0, kFirstHope = 0.8;

// Share of a cycle's deviation from its expected time that is believed at once; a cycle that was interrupted counts as twice as long.
constexpr double kBelief = 0.1;

constexpr int kDepth = 64;   // context of the measurement
constexpr int kCycles = 7;   // measured for each K, after one that is not
constexpr int kWarmUp = 10;  // plain cycles before all: many rows at once lower the clock of some machines for a while

using Clock = std::chrono::steady_clock;

/// Cycles of generation on made-up tokens.
class CycleTimer {
 public:
  explicit CycleTimer(Runtime& runtime)
      : runtime_(runtime),
        target_(runtime.target()),
        drafter_(*runtime.drafter()),
        kv_(target_.make_cache()),
        draft_kv_(drafter_.new_kv()),
        depth_(std::min(kDepth, target_.config().context - kMostAutoDrafts - 1)),
        feature_(static_cast<size_t>(drafter_.spec().feature_width()), f32_to_bf16(0.5f)) {}

  Status prepare() {
    if (depth_ < 1) return resource_error("the context of {} tokens is too small to measure drafting in", target_.config().context);
    AERIE_TRY(kv_.reserve(depth_ + kMostAutoDrafts + 1));
    for (int i = 0; i < depth_; ++i) {
      const DraftRow row{token(i), i, &draft_kv_};
      drafter_.step0(runtime_.draft_ops(), {&row, 1}, feature_.data(), states_);
    }
    return verify(0, depth_);
  }

  Expected<double> cycle(int k) {
    const auto start = Clock::now();
    for (int step = 0; step < k; ++step) {
      const DraftRow row{token(step), depth_ + step, &draft_kv_};
      if (step == 0) {
        drafter_.step0(runtime_.draft_ops(), {&row, 1}, feature_.data(), states_);
      } else {
        drafter_.step(runtime_.draft_ops(), {&row, 1}, states_.feedback.data(), states_);
      }
      int32_t id = 0;
      drafter_.argmax(runtime_.draft_ops(), states_.head_input.data(), 1, &id);
    }
    draft_kv_.truncate(depth_);
    AERIE_TRY(verify(depth_, k + 1));
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  int32_t token(int i) const { return i * 37 % target_.config().vocab; }

  Status verify(int position, int rows) {
    rows_.clear();
    logit_rows_.clear();
    for (int i = 0; i < rows; ++i) {
      rows_.push_back({token(i), position + i, &kv_});
      if (position > 0) logit_rows_.push_back(i);
    }
    TargetBatch batch;
    batch.rows = rows_;
    batch.logit_rows = logit_rows_;
    best_.resize(logit_rows_.size());
    batch.best = best_.data();
    return target_.forward(runtime_.pool(), batch);
  }

  Runtime& runtime_;
  Target& target_;
  const Drafter& drafter_;
  KvCache kv_;
  DraftKv draft_kv_;
  int depth_;
  std::vector<uint16_t> feature_;
  std::vector<TargetRow> rows_;
  std::vector<int> logit_rows_;
  std::vector<int32_t> best_;
  DraftStates states_;
};

}  // namespace

Expected<CycleCosts> measure_cycle_costs(Runtime& runtime) {
  if (runtime.drafter() == nullptr) return invalid_argument("no drafter is loaded, so that drafting has no cost");
  CycleTimer timer(runtime);
  AERIE_TRY(timer.prepare());
  for (int i = 0; i < kWarmUp; ++i) AERIE_TRY(timer.cycle(0).status());
  CycleCosts costs;
  for (int k = 0; k <= kMostAutoDrafts; ++k) {
    std::vector<double> times;
    for (int i = 0; i <= kCycles; ++i) {
      AERIE_ASSIGN(const double seconds, timer.cycle(k));
      if (i > 0) times.push_back(seconds);
    }
    std::nth_element(times.begin(), times.begin() + kCycles / 2, times.end());
    const double median = times[kCycles / 2];
    // More rows never cost less; a measurement that says so was disturbed.
    costs.seconds[static_cast<size_t>(k)] = k == 0 ? median : std::max(median, costs.seconds[static_cast<size_t>(k) - 1]);
  }
  return costs;
}

DraftLength::DraftLength(const CycleCosts& costs) : costs_(costs), plain_(costs.seconds[0]) {
  tried_[0] = kPriorWeight;
  accepted_[0] = kPriorWeight * kFirstHope;
}

double DraftLength::acceptance(int depth) const {
  double estimate = accepted_[0] / tried_[0];
  for (size_t j = 1; j < static_cast<size_t>(depth); ++j) {
    estimate = (accepted_[j] + kPriorWeight * estimate) / (tried_[j] + kPriorWeight);
  }
  return estimate;
}

double DraftLength::cycle_seconds(int k) const {
  return plain_ * (1 + steepness_ * (costs_.seconds[static_cast<size_t>(k)] / costs_.seconds[0] - 1));
}

int DraftLength::best() const {
  int best = 0;
  double expected = 1, reached = 1, best_rate = 1 / cycle_seconds(0);
  for (int k = 1; k <= kMostAutoDrafts; ++k) {
    reached *= acceptance(k);
    expected += reached;
    const double rate = expected / cycle_seconds(k);
    if (rate > best_rate) {
      best_rate = rate;
      best = k;
    }
  }
  return best;
}

int DraftLength::choose() {
  if (const int k = best(); k > 0) {
    patience_ = plain_cycles_ = trial_left_ = 0;
    return k;
  }
  if (trial_left_ > 0) {
    --trial_left_;
    return 1;
  }
  if (patience_ == 0) patience_ = kFirstPatience;
  if (++plain_cycles_ <= patience_) return 0;
  plain_cycles_ = 0;
  patience_ = std::min(2 * patience_, kMostPatience);
  trial_left_ = kTrialCycles - 1;
  return 1;
}

void DraftLength::observe(int drafted, int accepted, double seconds) {
  const auto learn = [](double& value, double seen) { value *= std::pow(std::clamp(seen / value, 0.5, 2.0), kBelief); };
  if (drafted == 0) {
    learn(plain_, seconds);
  } else if (const double rise = costs_.seconds[static_cast<size_t>(std::min(drafted, kMostAutoDrafts))] / costs_.seconds[0] - 1;
             rise > 0) {
    learn(steepness_, (seconds / plain_ - 1) / rise);
  }
  for (int j = 0; j < std::min(drafted, kMostAutoDrafts) && j <= accepted; ++j) {
    const size_t at = static_cast<size_t>(j);
    tried_[at] = tried_[at] * kFade + 1;
    accepted_[at] = accepted_[at] * kFade + (j < accepted ? 1 : 0);
  }
}

}  // namespace aerie
