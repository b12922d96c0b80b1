#include "doctor/data_check.h"

#include <algorithm>
#include <span>

#include "eagle3/replay.h"
#include "eagle3/walk_figures.h"

namespace aerie {
namespace {

constexpr double kMostRepeated = 0.2, kMostDuplicates = 0.05;

uint64_t hash_of(std::span<const int32_t> tokens, uint64_t seed) {
  uint64_t hash = seed;  // FNV-1a over the tokens' bytes
  for (const int32_t token : tokens) {
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((static_cast<uint32_t>(token) >> shift) & 0xff)) * 0x100000001b3u;
  }
  return hash;
}

std::string share_of(int64_t part, int64_t whole) {
  return fmt::format("{:.1f} %", whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

double ratio(int64_t part, int64_t whole) { return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole); }

}  // namespace

void DataCheck::add(const Conversation& conversation) {
  const Trace& trace = conversation.trace;
  ++conversations_;
  tokens_ += static_cast<int64_t>(trace.length());
  longest_ = std::max(longest_, trace.length());
  without_mask_ += conversation.has_mask ? 0 : 1;
  all_ones_ += conversation.has_mask && marks_everything(trace.mask) ? 1 : 0;
  if (vocab_ > 0)
    outside_ += std::any_of(trace.tokens.begin(), trace.tokens.end(), [&](int32_t t) { return t < 0 || t >= vocab_; }) ? 1 : 0;
  constexpr uint64_t kSeeds[] = {0xcbf29ce484222325u, 0x9e3779b97f4a7c15u};
  if (!seen_.emplace(hash_of(trace.tokens, kSeeds[0]), hash_of(trace.tokens, kSeeds[1])).second) ++duplicates_;
  mask_.add(conversation);
  supervised_ += static_cast<int64_t>(find_starts(trace.mask, 1).size());
  bool any = false;
  for (const Answer& answer : find_answers(trace.mask)) {
    const std::span<const int32_t> words(trace.tokens.data() + answer.first, static_cast<size_t>(answer.last - answer.first + 1));
    answer_tokens_ += static_cast<int64_t>(words.size());
    any = any || words.size() > 1;
    for (const int32_t word : words) ++counts_[word];
    const std::vector<uint8_t> repeats = ends_of_repeats(words);
    grams_ += static_cast<int64_t>(words.size() - std::min(words.size(), kRepeatedGram - 1));
    repeated_grams_ += std::count(repeats.begin(), repeats.end(), uint8_t{1});
  }
  without_answer_ += any ? 0 : 1;
}

void DataCheck::add_unreadable(const Status& why) {
  if (unreadable_++ == 0) first_unreadable_ = why.message();
}

double DataCheck::repeated() const { return ratio(repeated_grams_, grams_); }

std::vector<int64_t> DataCheck::descending_counts() const {
  std::vector<int64_t> counts;
  for (const auto& [token, count] : counts_) counts.push_back(count);
  std::sort(counts.rbegin(), counts.rend());
  return counts;
}

double DataCheck::coverage(size_t size) const {
  const std::vector<int64_t> counts = descending_counts();
  int64_t covered = 0;
  for (size_t i = 0; i < std::min(size, counts.size()); ++i) covered += counts[i];
  return ratio(covered, answer_tokens_);
}

size_t DataCheck::vocab_for(double share) const {
  const std::vector<int64_t> counts = descending_counts();
  int64_t covered = 0;
  size_t size = 0;
  while (size < counts.size() && static_cast<double>(covered) < share * static_cast<double>(answer_tokens_)) covered += counts[size++];
  return size;
}

std::vector<Finding> DataCheck::findings() const {
  std::vector<Finding> out;
  const auto add = [&](Severity severity, const char* code, const std::string& text, const std::string& fix) {
    out.push_back({severity, code, text, fix});
  };
  const int64_t all = conversations_ + unreadable_;
  if (unreadable_ > 0) {
    add(ratio(unreadable_, all) > kMostUnreadable ? Severity::kError : Severity::kWarning, "data-unreadable",
        fmt::format("{} of {} conversations cannot be read, the first: {}", unreadable_, all, first_unreadable_),
        "record these again; above 1 % a training stops");
  }
  if (outside_ > 0) {
    add(Severity::kError, "tokens-of-another-target",
        fmt::format("{} of {} conversations have tokens outside the target's vocabulary of {}", outside_, conversations_, vocab_),
        "these traces are of another target");
  }
  if (conversations_ == 0) return out;
  if (without_mask_ > 0) {
    add(Severity::kError, "trace-without-mask",
        fmt::format("{} of {} conversations do not say which tokens the target wrote", without_mask_, conversations_),
        "give the rows with their loss_mask (--trace-rows)");
  } else if (all_ones_ == conversations_) {
    add(Severity::kError, "mask-is-all-ones",
        "the mask says that the target wrote every token, prompts included: a drafter would learn to continue prompts",
        "write the mask by the chat template: one without generation tags marks nothing, or everything");
  } else if (ratio(supervised_, tokens_) < kLeastSupervised) {
    add(Severity::kError, "mask-is-empty",
        fmt::format("{} of {} tokens are the target's own ({}): there is next to nothing to learn", answer_tokens_, tokens_,
                    share_of(answer_tokens_, tokens_)),
        "write the mask by the chat template: one without generation tags marks nothing");
  } else if (without_answer_ > 0) {
    add(Severity::kNote, "conversations-without-answer",
        fmt::format("{} of {} conversations have no answer of two tokens and are left out", without_answer_, conversations_), "");
  }
  const std::vector<Finding> frames = mask_.findings();
  out.insert(out.end(), frames.begin(), frames.end());
  if (ratio(duplicates_, conversations_) > kMostDuplicates) {
    add(Severity::kWarning, "data-duplicates", fmt::format("{} of {} conversations are there more than once", duplicates_, conversations_),
        "leave the copies out: they count for nothing but epochs, and what is held out is trained on");
  }
  if (repeated() > kMostRepeated) {
    add(Severity::kWarning, "data-repeats-itself",
        fmt::format("{:.1f} % of the answers' pieces of {} tokens stand earlier in the same answer: loops are easy to draft, and "
                    "acceptance measured on them promises too much",
                    100 * repeated(), kRepeatedGram),
        "cut answers off where they begin to loop, or sample with a repetition penalty");
  }
  return out;
}

ReportSection DataCheck::section() const {
  ReportSection out{"data", "what the data holds", {}, nlohmann::json::object()};
  out.lines.push_back(fmt::format("{} conversations, {} tokens, {} of them answers ({}); the longest has {} tokens", conversations_,
                                  tokens_, answer_tokens_, share_of(answer_tokens_, tokens_), longest_));
  out.lines.push_back(
      fmt::format("{} different tokens in the answers; {:.1f} % of their pieces of {} tokens are repeated within an answer; {} duplicates",
                  counts_.size(), 100 * repeated(), kRepeatedGram, duplicates_));
  nlohmann::json vocabularies = nlohmann::json::array();
  for (const double share : {0.90, 0.95, 0.99}) {
    const size_t size = vocab_for(share);
    vocabularies.push_back({{"share", share}, {"draft_vocab", size}});
    out.lines.push_back(fmt::format("a draft vocabulary of {:<6} covers {:.0f} % of these answers", size, 100 * share));
  }
  nlohmann::json coverage_of = nlohmann::json::array();
  for (const size_t size : {size_t{4096}, size_t{8192}, size_t{16384}, size_t{32768}})
    coverage_of.push_back({{"draft_vocab", size}, {"coverage", coverage(size)}});
  out.data = {{"conversations", conversations_},
              {"unreadable", unreadable_},
              {"tokens", tokens_},
              {"answer_tokens", answer_tokens_},
              {"longest", longest_},
              {"duplicates", duplicates_},
              {"repeated_share", repeated()},
              {"different_tokens", counts_.size()},
              {"draft_vocab_for", vocabularies},
              {"coverage", coverage_of}};
  return out;
}

}  // namespace aerie
