#include "engine/generate.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

namespace aerie {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostPaused = 16;  // features that are kept while nothing is drafted

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The state of one sequence. Its tokens are x_0 .. x_n; x_n, the newest, has not been through the target yet.
///
/// The drafter's row i reads the target's feature of position i and the token i+1. The row of the newest feature therefore waits
/// until its token is known: features_ holds those of the positions draft_begin_ + draft_kv.length() .. n-1, in order.
class Generation {
 public:
  Generation(Runtime& runtime, const GenerateOptions& options)
      : runtime_(runtime),
        target_(runtime.target()),
        drafter_(options.draft_tokens != 0 ? runtime.drafter() : nullptr),
        options_(options),
        kv_(target_.make_cache()),
        record_(drafter_ != nullptr ? options.record : nullptr) {
    if (drafter_ != nullptr) draft_kv_.emplace(drafter_->new_kv());
  }

  Expected<GenerateResult> run(std::span<const int32_t> prompt);

 private:
  Status prefill();
  Status cycle();
  Status forward(std::span<const int32_t> tokens, int position, int first_logit_row);
  Expected<int32_t> best(int logit_row) const;
  void feed_features();
  void forget_old_features();
  void draft(int count);
  void record_step(int step, const DraftRow& row, const float* head_input);
  bool emit(int32_t token);

  Runtime& runtime_;
  Target& target_;
  const Drafter* drafter_;
  const GenerateOptions& options_;

  KvCache kv_;
  std::optional<DraftKv> draft_kv_;
  int draft_begin_ = 0;             // the position of draft_kv_'s first row
  DraftLength* length_ = nullptr;   // where the engine chooses K
  std::vector<int32_t> tokens_;     // x_0 .. x_n
  std::vector<uint16_t> features_;  // bf16, see above
  std::vector<int32_t> drafts_;
  std::vector<int32_t> verify_;  // x_n and the drafts
  GenerateResult result_;
  bool finished_ = false;

  // Buffers that keep their memory from cycle to cycle.
  std::vector<TargetRow> rows_;
  std::vector<int> logit_rows_;
  std::vector<int32_t> best_;  // by logit row
  std::vector<uint16_t> taps_;
  std::vector<DraftRow> draft_rows_;
  DraftStates states_;
  size_t newest_row_ = 0;  // of states_: the row of the newest feature
  EngineRequest* record_;
  DraftRow newest_fed_;              // where there is a record
  std::vector<float> draft_logits_;  // [Vd]
};

Expected<GenerateResult> Generation::run(std::span<const int32_t> prompt) {
  tokens_.assign(prompt.begin(), prompt.end());
  const int room = target_.config().context - static_cast<int>(prompt.size());
  if (prompt.empty()) return invalid_argument("the prompt has no tokens");
  if (room < 1) {
    return resource_error("the prompt has {} tokens but the model's context is {}: shorten the prompt", prompt.size(),
                          target_.config().context);
  }
  if (options_.max_new_tokens < 1)
    return invalid_argument("the number of tokens to generate must be at least 1, found {}", options_.max_new_tokens);
  AERIE_TRY(kv_.reserve(static_cast<int>(prompt.size()) + std::min(room, options_.max_new_tokens)));
  result_.draft.k = options_.draft_tokens;
  if (record_ != nullptr) {
    *record_ = {};
    record_->prompt = static_cast<int32_t>(prompt.size());
    record_->width = drafter_->spec().feature_width();
    record_->top = std::min(kRecordedTop, drafter_->spec().draft_vocab);
  }
  const bool automatic = options_.draft_tokens == kAutoDraftTokens;
  result_.draft.accepted_per_position.assign(static_cast<size_t>(automatic ? kMostAutoDrafts : options_.draft_tokens), 0);
  if (automatic && options_.draft_length != nullptr) {
    length_ = options_.draft_length;
  } else if (automatic) {
    AERIE_ASSIGN(length_, runtime_.draft_length());
  }

  const auto start = Clock::now();
  AERIE_TRY(prefill());
  result_.prefill_seconds = seconds_since(start);
  const auto decode_start = Clock::now();
  while (!finished_) {
    if (static_cast<int>(result_.tokens.size()) >= std::min(room, options_.max_new_tokens)) {
      result_.finish_reason = "length";
      break;
    }
    AERIE_TRY(cycle());
  }
  result_.decode_seconds = seconds_since(decode_start);
  if (record_ != nullptr) record_->tokens = tokens_;
  return std::move(result_);
}

Status Generation::prefill() {
  const size_t count = tokens_.size();
  const size_t chunk = static_cast<size_t>(std::clamp(options_.prompt_chunk, 1, target_.max_rows()));
  for (size_t begin = 0; begin < count; begin += chunk) {
    if (options_.cancel != nullptr && options_.cancel->load()) return cancelled("interrupted while reading the prompt");
    const size_t end = std::min(begin + chunk, count);
    const int rows = static_cast<int>(end - begin);
    AERIE_TRY(forward({tokens_.data() + begin, end - begin}, static_cast<int>(begin), end == count ? rows - 1 : rows));
    features_.insert(features_.end(), taps_.begin(), taps_.end());
    if (drafter_ != nullptr && end < count) feed_features();
  }
  AERIE_ASSIGN(const int32_t first, best(0));
  if (emit(first) && drafter_ != nullptr) feed_features();
  return {};
}

/// Draft, verify, accept, and take back what was not accepted.
Status Generation::cycle() {
  const auto start = Clock::now();
  const int newest = static_cast<int>(tokens_.size()) - 1;
  const int room = std::min(options_.max_new_tokens - static_cast<int>(result_.tokens.size()), target_.config().context - newest);
  drafts_.clear();
  // The target adds a token of its own to the accepted drafts, so the last token of the answer is never worth a draft.
  if (drafter_ != nullptr && room > 1) draft(std::min(length_ != nullptr ? length_->choose() : options_.draft_tokens, room - 1));

  verify_.assign(1, tokens_.back());
  verify_.insert(verify_.end(), drafts_.begin(), drafts_.end());
  AERIE_TRY(forward(verify_, newest, 0));
  const double seconds = seconds_since(start);  // what follows is the caller's: he may print slowly

  int emitted = 0;
  for (;; ++emitted) {
    AERIE_ASSIGN(const int32_t next, best(emitted));
    const bool go_on = emit(next);
    if (!go_on || emitted == static_cast<int>(drafts_.size()) || drafts_[static_cast<size_t>(emitted)] != next) {
      ++emitted;
      break;
    }
  }
  const int accepted = emitted - 1;  // what was emitted beyond the target's own token
  kv_.truncate(newest + emitted);
  features_.insert(features_.end(), taps_.begin(), taps_.begin() + static_cast<ptrdiff_t>(taps_.size() / verify_.size()) * emitted);

  if (drafter_ != nullptr) {
    DraftStats& stats = result_.draft;
    ++stats.cycles;
    stats.drafted += static_cast<int64_t>(drafts_.size());
    stats.accepted += accepted;
    stats.accepted_per_cycle.push_back(accepted);
    if (record_ != nullptr) record_->cycles.push_back({newest, accepted, drafts_});
    for (int i = 0; i < accepted; ++i) ++stats.accepted_per_position[static_cast<size_t>(i)];
    if (length_ != nullptr && !finished_) length_->observe(static_cast<int>(drafts_.size()), accepted, seconds);
  }
  return {};
}

/// Runs tokens at `position`.. through the target, reading taps of all rows and logits of rows from `first_logit_row` on.
Status Generation::forward(std::span<const int32_t> tokens, int position, int first_logit_row) {
  rows_.clear();
  logit_rows_.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    rows_.push_back({tokens[i], position + static_cast<int>(i), &kv_});
    if (static_cast<int>(i) >= first_logit_row) logit_rows_.push_back(static_cast<int>(i));
  }
  TargetBatch batch;
  batch.rows = rows_;
  batch.logit_rows = logit_rows_;
  best_.resize(logit_rows_.size());
  batch.best = best_.data();
  if (drafter_ != nullptr) {
    batch.taps = drafter_->spec().taps;
    taps_.resize(tokens.size() * static_cast<size_t>(drafter_->spec().feature_width()));
    batch.features = taps_.data();
  }
  return target_.forward(runtime_.pool(), batch);
}

Expected<int32_t> Generation::best(int logit_row) const {
  const int32_t id = best_[static_cast<size_t>(logit_row)];
  if (id < 0) return internal_error("the model's output is not finite after {} tokens", tokens_.size());
  return id;
}

/// Step 0 of the drafter for every position whose feature and next token are both known. Leaves the newest row's states in
/// states_, at newest_row_.
void Generation::feed_features() {
  draft_rows_.clear();
  const int known = static_cast<int>(features_.size() / static_cast<size_t>(drafter_->spec().feature_width()));
  const int first = draft_begin_ + draft_kv_->length();
  for (int i = first; i < first + known; ++i) draft_rows_.push_back({tokens_[static_cast<size_t>(i) + 1], i, &*draft_kv_});
  drafter_->step0(runtime_.draft_ops(), draft_rows_, features_.data(), states_);
  if (record_ != nullptr) {
    for (const DraftRow& row : draft_rows_) record_->rows.push_back({row.token, row.position, static_cast<int32_t>(result_.draft.cycles)});
    record_->features.insert(record_->features.end(), features_.begin(), features_.end());
    newest_fed_ = draft_rows_.back();
  }
  features_.clear();
  newest_row_ = draft_rows_.size() - 1;
}

/// While nothing is drafted the features pile up. A drafter that is tried again after a long pause starts from the latest of them:
/// to read them all would cost more than the trial can show.
void Generation::forget_old_features() {
  const size_t width = static_cast<size_t>(drafter_->spec().feature_width());
  const size_t known = features_.size() / width;
  if (known < 2 * kMostPaused) return;
  features_.erase(features_.begin(), features_.end() - static_cast<ptrdiff_t>(kMostPaused * width));
  draft_begin_ += draft_kv_->length() + static_cast<int>(known - kMostPaused);
  draft_kv_->truncate(0);
}

/// Fills drafts_ with up to `count` guesses for the tokens after the newest. The keys that are written while drafting come from
/// the drafter's own states; they are dropped, and written again from the target's features once those are known.
void Generation::draft(int count) {
  if (count == 0) return forget_old_features();
  if (!features_.empty()) feed_features();
  const size_t hidden = static_cast<size_t>(drafter_->spec().hidden);
  const int kept = draft_kv_->length();
  size_t row = newest_row_;
  for (int step = 0; step < count; ++step) {
    if (step > 0) {
      draft_rows_.assign(1, {drafts_.back(), draft_begin_ + kept - 1 + step, &*draft_kv_});
      drafter_->step(runtime_.draft_ops(), draft_rows_, states_.feedback.data() + row * hidden, states_);
      row = 0;
    }
    int32_t id = -1;
    drafter_->argmax(runtime_.draft_ops(), states_.head_input.data() + row * hidden, 1, &id);
    if (record_ != nullptr) record_step(step, step == 0 ? newest_fed_ : draft_rows_.front(), states_.head_input.data() + row * hidden);
    if (id < 0) break;  // a drafter that is not finite simply has nothing to say
    drafts_.push_back(id);
  }
  draft_kv_->truncate(kept);
}

void Generation::record_step(int step, const DraftRow& row, const float* head_input) {
  const DraftSpec& spec = drafter_->spec();
  const size_t kept = static_cast<size_t>(record_->top);
  draft_logits_.resize(static_cast<size_t>(spec.draft_vocab));
  drafter_->logits(runtime_.draft_ops(), head_input, 1, draft_logits_.data());
  std::vector<int32_t> order(draft_logits_.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(kept), order.end(), [this](int32_t a, int32_t b) {
    const float x = draft_logits_[static_cast<size_t>(a)], y = draft_logits_[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  record_->steps.push_back({static_cast<int32_t>(result_.draft.cycles), step, row.token, row.position});
  for (size_t i = 0; i < kept; ++i) {
    record_->top_tokens.push_back(spec.to_target(order[i]));
    record_->top_logits.push_back(draft_logits_[static_cast<size_t>(order[i])]);
  }
}

/// Takes a token into the output; false when it is the last one.
bool Generation::emit(int32_t token) {
  tokens_.push_back(token);
  result_.tokens.push_back(token);
  const bool wanted = !options_.on_token || options_.on_token(token);
  if (!options_.ignore_end && runtime_.tokenizer().is_end_of_generation(token)) {
    result_.finish_reason = "stop";
    finished_ = true;
  } else if (!wanted || (options_.cancel != nullptr && options_.cancel->load())) {
    result_.finish_reason = "cancelled";
    finished_ = true;
  }
  return !finished_;
}

}  // namespace

Expected<GenerateResult> generate(Runtime& runtime, std::span<const int32_t> prompt, const GenerateOptions& options) {
  if (options.draft_tokens != kAutoDraftTokens && (options.draft_tokens < 0 || options.draft_tokens > kMaxDraftTokens)) {
    return invalid_argument("the number of drafts must be 0 to {}, found {}", kMaxDraftTokens, options.draft_tokens);
  }
  if (options.record != nullptr && (options.draft_tokens == 0 || runtime.drafter() == nullptr)) {
    return invalid_argument("a trace of what a drafter is handed was asked for, but nothing is drafted: give a drafter and drafts");
  }
  if (options.draft_tokens == kAutoDraftTokens && runtime.drafter() == nullptr) {
    return invalid_argument("the number of drafts is to be chosen, but no drafter is loaded");
  }
  if (options.draft_tokens > 0 && runtime.drafter() == nullptr)
    return invalid_argument("{} drafts were asked for, but no drafter is loaded", options.draft_tokens);
  return Generation(runtime, options).run(prompt);
}

}  // namespace aerie
