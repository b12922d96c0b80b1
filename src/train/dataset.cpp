#include "train/dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/file_io.h"
#include "base/random.h"
#include "eagle3/replay.h"
#include "train/row_ops.h"

namespace aerie::train {
namespace {

constexpr uint64_t kHoldoutSeed = 0x61657269;

/// How often each token of the target occurs in the training answers [vocab].
std::vector<int64_t> count_answers(std::span<const Conversation> conversations, int vocab) {
  std::vector<int64_t> counts(static_cast<size_t>(vocab), 0);
  for (const Conversation& conversation : conversations) {
    for (size_t i = 0; i < conversation.tokens.size(); ++i) {
      if (conversation.mask[i] != 0) ++counts[static_cast<size_t>(conversation.tokens[i])];
    }
  }
  return counts;
}

/// The tokens, the most frequent first, the lowest id among equals.
std::vector<int32_t> by_frequency(const std::vector<int64_t>& counts) {
  std::vector<int32_t> ids(counts.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return counts[static_cast<size_t>(a)] > counts[static_cast<size_t>(b)]; });
  return ids;
}

int64_t sum_of(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

}  // namespace

std::vector<uint32_t> shuffled(uint32_t count, uint64_t seed) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  uint64_t state = seed;
  for (uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[next_random(state) % i]);
  return order;
}

Status Dataset::choose_states(const DatasetOptions& options) {
  const std::vector<int>& captured = manifest().taps;
  const int blocks = manifest().target.blocks;
  taps_ = options.taps.empty() ? captured : options.taps;
  teacher_ = options.teacher.value_or(blocks);
  const auto slot_of = [&](const char* what, int boundary) -> Expected<int> {
    if (const std::optional<int> slot = manifest().slot_of(boundary)) return *slot;
    return invalid_argument("{} {} was not captured; the traces hold the boundaries {} and {}", what, boundary_name(boundary),
                            fmt::join(captured, ","), blocks);
  };
  for (const int tap : taps_) {
    AERIE_ASSIGN(slots_.emplace_back(), slot_of("the tap", tap));
  }
  AERIE_ASSIGN(slots_.emplace_back(), slot_of("the teacher's", teacher_));
  as_captured_ = taps_ == captured && slots_.back() == static_cast<int>(captured.size());
  return {};
}

Expected<Trace> Dataset::read(const Conversation& conversation) const {
  AERIE_ASSIGN(aerie::Conversation stored, sources_[conversation.folder]->read(conversation.row));
  Trace trace = std::move(stored.trace);
  if (as_captured_) return trace;
  Trace chosen;
  chosen.slots = static_cast<int>(slots_.size());
  chosen.hidden = trace.hidden;
  chosen.states = trace.states_of(slots_);
  chosen.tokens = std::move(trace.tokens);
  chosen.mask = std::move(trace.mask);
  return chosen;
}

/// Folders of other makers hold nothing but states: where they come from is what the options say.
Status Dataset::add_source(const std::string& folder, const DatasetOptions& options) {
  TraceSource::Options reading;
  reading.rows = options.token_rows;
  AERIE_ASSIGN(std::unique_ptr<TraceSource> source, TraceSource::open(folder, reading));
  if (!options.token_rows.empty() && source->format() != "speculators")
    return invalid_argument("--trace-rows belongs to a folder of speculators, and {} is of {}", folder, source->format());
  TraceManifest manifest;
  if (source->manifest() != nullptr) {
    manifest = *source->manifest();
  } else {
    const std::string whose = fmt::format("{}: it is a folder of {}", folder, source->format());
    if (options.target == nullptr) return invalid_argument("{}; which target wrote it has to be given", whose);
    if (source->hidden() != options.target->hidden) {
      return invalid_argument("{} with states of {} values, and the target's have {}", whose, source->hidden(), options.target->hidden);
    }
    const size_t stored = source->slots().size() - 1;
    if (stored == 0) return unsupported("{}, which holds no taps, only the final state", whose);
    if (options.states.size() != stored) {
      return invalid_argument(
          "{}, which does not say from which layers its {} states a position come: say it with --taps, in their order, as boundaries "
          "(boundary b: after b blocks, 0: the embedding; ids of speculators are boundaries, those of SpecForge and Model-Optimizer are "
          "one "
          "less). {}",
          whose, stored, options.states.empty() ? "None were given" : fmt::format("{} were given", options.states.size()));
    }
    manifest.target = *options.target;
    manifest.taps = options.states;
    manifest.template_sha256 = std::string(64, '0');  // not known
    manifest.precision = "of " + source->format();
    AERIE_TRY(manifest.check().with_context(folder));
  }
  if (sources_.empty()) {
    manifest_ = std::move(manifest);
  } else {
    const auto refused = [&](const Status& status) {
      return status.with_context("cannot train on " + first_folder_ + " and " + folder + " together");
    };
    if (source->format() != format()) return refused(invalid_argument("one is of {}, the other of {}", format(), source->format()));
    AERIE_TRY(refused(manifest_.check_same_source(manifest)));
  }
  if (sources_.empty()) first_folder_ = folder;
  sources_.push_back(std::move(source));
  return {};
}

Expected<Dataset> Dataset::open(const std::vector<std::string>& folders, const DatasetOptions& options) {
  if (folders.empty()) return invalid_argument("no trace folder was given");
  if (!options.token_rows.empty() && folders.size() > 1)
    return invalid_argument("--trace-rows belongs to one folder, {} were given", folders.size());
  Dataset data;
  std::vector<Conversation> usable;
  int64_t rows = 0, tokens = 0, supervised = 0;
  for (size_t folder = 0; folder < folders.size(); ++folder) {
    AERIE_TRY(data.add_source(folders[folder], options));
    const TraceSource& source = *data.sources_.back();
    if (const std::string at = source.manifest() != nullptr ? source.manifest()->sampled_at() : ""; !at.empty()) {
      data.report_.sampled.push_back(fmt::format("{} (temperature {})", folders[folder], at));
    }
    for (size_t row = 0; row < source.size(); ++row) {
      ++rows;
      Expected<aerie::Conversation> stored = source.read(row);
      if (!stored.ok()) {
        if (stored.status().code() != StatusCode::kCorrupt) return stored.status();
        data.report_.unreadable.push_back(stored.status().message());
        continue;
      }
      if (!stored->has_mask) {
        return invalid_argument(
            "{}: conversation {} does not say which tokens the target wrote (no loss_mask): a drafter that is trained on prompts too is "
            "another "
            "one; store a mask, of ones where that is meant",
            folders[folder], stored->id);
      }
      Trace* trace = &stored->trace;
      if (const auto largest = std::max_element(trace->tokens.begin(), trace->tokens.end());
          largest != trace->tokens.end() && *largest >= data.manifest().target.vocab) {
        data.report_.unreadable.push_back(fmt::format("{}: conversation {}: token {} is outside the target's vocabulary of {}",
                                                      folders[folder], stored->id, *largest, data.manifest().target.vocab));
        continue;
      }
      if (trace->length() > static_cast<size_t>(options.max_tokens)) {
        ++data.report_.too_long;
        continue;
      }
      tokens += static_cast<int64_t>(trace->length());
      const int64_t starts = static_cast<int64_t>(find_starts(trace->mask, 1).size());
      supervised += starts;
      if (starts == 0) {
        ++data.report_.nothing_supervised;
        continue;
      }
      usable.push_back({folder, row, std::move(trace->tokens), std::move(trace->mask)});
    }
  }
  AERIE_TRY(data.choose_states(options));
  const size_t unreadable = data.report_.unreadable.size();
  if (static_cast<double>(unreadable) > kMostUnreadable * static_cast<double>(rows)) {
    return corrupt("{} of {} rows cannot be used, more than 1 %; capture them again. The first: {}", unreadable, rows,
                   data.report_.unreadable[0]);
  }
  if (supervised == 0) {
    return invalid_argument(
        "nothing to train on: in none of {} rows ({} longer than {} tokens) did the target generate two tokens "
        "(loss_mask 1); were these traces captured with answers?",
        rows, data.report_.too_long, options.max_tokens);
  }
  if (static_cast<double>(supervised) < kLeastSupervised * static_cast<double>(tokens)) {
    return invalid_argument("only {} of {} tokens are supervised, less than 1 %: the loss mask looks wrong", supervised, tokens);
  }

  if (options.judge_only) {
    data.held_out_ = std::move(usable);
    data.contents_id_ = data.identify();
    return data;
  }
  const double wanted = options.holdout < 1.0 ? options.holdout * static_cast<double>(usable.size()) : options.holdout;
  const size_t held = static_cast<size_t>(std::lround(std::max(0.0, wanted)));
  if (held >= usable.size()) {
    return invalid_argument("holding out {} conversations leaves nothing of {} to train on", held, usable.size());
  }
  const std::vector<uint32_t> order = shuffled(static_cast<uint32_t>(usable.size()), kHoldoutSeed);
  std::vector<bool> is_held(usable.size(), false);
  for (size_t i = 0; i < held; ++i) is_held[order[i]] = true;
  for (size_t i = 0; i < usable.size(); ++i) (is_held[i] ? data.held_out_ : data.training_).push_back(std::move(usable[i]));
  data.contents_id_ = data.identify();
  return data;
}

std::string Dataset::identify() const {
  std::string all;
  for (const auto& [key, value] : manifest_.generation) all += key + " " + value + "\n";
  for (const auto* conversations : {&training_, &held_out_}) {
    for (const Conversation& c : *conversations) {
      all.append(reinterpret_cast<const char*>(c.tokens.data()), c.tokens.size() * sizeof(int32_t));
      all.append(c.mask.begin(), c.mask.end());
      all += "\n";
    }
  }
  return sha256_hex({reinterpret_cast<const uint8_t*>(all.data()), all.size()});
}

int64_t Dataset::training_tokens() const {
  int64_t tokens = 0;
  for (const Conversation& conversation : training_) tokens += static_cast<int64_t>(conversation.tokens.size());
  return tokens;
}

Expected<std::vector<int32_t>> choose_draft_vocab(std::span<const Conversation> conversations, int size, int vocab,
                                                  std::span<const int32_t> always) {
  if (size <= 0 || size > vocab) return invalid_argument("a draft vocabulary of {} is not between 1 and the target's {}", size, vocab);
  std::set<int32_t> chosen(always.begin(), always.end());
  if (chosen.size() > static_cast<size_t>(size)) {
    return invalid_argument("a draft vocabulary of {} cannot hold the {} end tokens", size, chosen.size());
  }
  for (const int32_t id : by_frequency(count_answers(conversations, vocab))) {
    if (chosen.size() == static_cast<size_t>(size)) break;
    chosen.insert(id);
  }
  return std::vector<int32_t>(chosen.begin(), chosen.end());
}

int draft_vocab_for(std::span<const Conversation> conversations, double share, int vocab, std::span<const int32_t> always) {
  const std::vector<int64_t> counts = count_answers(conversations, vocab);
  const double wanted = share * static_cast<double>(sum_of(counts));
  std::set<int32_t> chosen(always.begin(), always.end());
  int64_t covered = 0;
  for (const int32_t id : chosen) covered += counts[static_cast<size_t>(id)];
  for (const int32_t id : by_frequency(counts)) {
    if (static_cast<double>(covered) >= wanted) break;
    if (chosen.insert(id).second) covered += counts[static_cast<size_t>(id)];
  }
  const auto size = static_cast<int64_t>(std::max<size_t>(chosen.size(), 1));
  return static_cast<int>(std::min<int64_t>(rounded_up(size, kVocabStep), vocab));
}

double coverage_of(std::span<const int32_t> ids, std::span<const Conversation> conversations, int vocab) {
  const std::vector<int64_t> counts = count_answers(conversations, vocab);
  int64_t covered = 0;
  for (const int32_t id : ids) covered += counts[static_cast<size_t>(id)];
  return static_cast<double>(covered) / static_cast<double>(sum_of(counts));
}

std::vector<std::vector<uint32_t>> plan_epoch(std::span<const Conversation> conversations, int64_t tokens_per_step, uint64_t seed,
                                              int64_t epoch) {
  uint64_t state = seed;
  const uint64_t base = next_random(state);  // so that seed s in epoch e and seed s+1 in epoch e-1 do not meet
  std::vector<std::vector<uint32_t>> steps;
  std::vector<uint32_t> step;
  int64_t tokens = 0;
  for (const uint32_t index : shuffled(static_cast<uint32_t>(conversations.size()), base + static_cast<uint64_t>(epoch))) {
    step.push_back(index);
    tokens += static_cast<int64_t>(conversations[index].tokens.size());
    if (tokens < tokens_per_step) continue;
    steps.push_back(std::move(step));
    step.clear();
    tokens = 0;
  }
  if (!step.empty()) {
    if (steps.empty() || 2 * tokens >= tokens_per_step) {
      steps.push_back(std::move(step));
    } else {
      steps.back().insert(steps.back().end(), step.begin(), step.end());
    }
  }
  return steps;
}

}  // namespace aerie::train
