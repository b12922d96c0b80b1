#include "doctor/sample.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "base/file_io.h"
#include "eagle3/replay.h"
#include "formats/json_text.h"
#include "formats/printable.h"

namespace aerie {
namespace {

constexpr int64_t kShortest = 64;         // tokens that another conversation must still be allowed to have
constexpr size_t kMostLookedAt = 10'000;  // conversations: a trace without answers is not read to its end

/// Numbers 0..n-1 so that every beginning of the list spreads evenly: multiples of n / golden ratio, or of the next number that
/// shares no factor with n.
class Spread {
 public:
  explicit Spread(size_t n) : n_(n), stride_(std::max<size_t>(1, static_cast<size_t>(static_cast<double>(n) * 0.6180339887))) {
    while (gcd(stride_, n_) != 1) ++stride_;
  }
  size_t operator[](size_t i) const { return static_cast<size_t>((static_cast<unsigned __int128>(i) * stride_) % n_); }

 private:
  static size_t gcd(size_t a, size_t b) { return b == 0 ? a : gcd(b, a % b); }
  size_t n_, stride_;
};

/// Keeps the first `length` tokens.
void cut(Trace& trace, size_t length) {
  if (trace.length() <= length) return;
  trace.tokens.resize(length);
  trace.mask.resize(length);
  trace.states.resize(length * static_cast<size_t>(trace.slots) * static_cast<size_t>(trace.hidden));
  trace.states.shrink_to_fit();
}

/// The last number in a conversation's id: "12" of "data_12.ckpt".
std::optional<uint64_t> row_of(const std::string& id) {
  const size_t end = id.find_last_of("0123456789");
  if (end == std::string::npos) return std::nullopt;
  const size_t before = id.find_last_not_of("0123456789", end);
  uint64_t out = 0;
  const char* first = id.data() + (before == std::string::npos ? 0 : before + 1);
  const auto [stop, error] = std::from_chars(first, id.data() + end + 1, out);
  return error == std::errc() ? std::optional(out) : std::nullopt;
}

}  // namespace

std::vector<std::string> Sample::slot_names() const {
  std::vector<std::string> out;
  for (const StateSlot& slot : slots) out.push_back(slot.name());
  return out;
}

Status name_domains(const std::string& path, Sample& sample) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  constexpr size_t kMostDomains = 12;
  AERIE_ASSIGN(const std::string text, read_file(path, kMaxBytes));
  std::map<uint64_t, std::string> wanted;  // by row
  for (const Conversation& c : sample.conversations) {
    if (const auto row = row_of(c.id)) wanted[*row];
  }
  uint64_t number = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (const auto row = wanted.find(number); row != wanted.end()) {
      const auto line = parse_json(std::string_view(text).substr(begin, end - begin));
      if (!line.ok()) return line.status().with_context(fmt::format("{}: line {}", path, number + 1));
      for (const char* key : {"domain", "category", "source"}) {
        if (row->second.empty() && line->is_object() && line->contains(key) && (*line)[key].is_string())
          row->second = printable_bare((*line)[key].get<std::string>());
      }
    }
    begin = end + 1;
  }
  std::map<std::string, size_t> counts;
  for (const Conversation& c : sample.conversations) {
    const auto row = row_of(c.id);
    const std::string& domain = sample.domains.emplace_back(row ? wanted[*row] : "");
    if (domain.empty())
      return invalid_argument("{}: it has no domain, category or source for the conversation {}: expected a line for each row of the trace",
                              path, c.id);
    ++counts[domain];
  }
  std::vector<std::pair<size_t, std::string>> order;
  for (const auto& [domain, count] : counts) order.emplace_back(count, domain);
  std::sort(order.rbegin(), order.rend());
  for (std::string& domain : sample.domains) {
    const auto at = std::find_if(order.begin(), order.end(), [&](const auto& entry) { return entry.second == domain; });
    if (order.size() > kMostDomains && at - order.begin() >= static_cast<std::ptrdiff_t>(kMostDomains) - 1) domain = "other";
  }
  return {};
}

std::vector<Finding> judge_sizes(const Sample& sample, const DraftSpec& spec, std::span<const int> slots) {
  constexpr double kUnlike = 30;
  if (spec.feature_norm != FeatureNorm::kNone || slots.empty()) return {};
  std::vector<double> sizes;
  for (const int slot : slots) {
    double squares = 0, count = 0;
    for (const Conversation& conversation : sample.conversations) {
      for (size_t t = 0; t < conversation.trace.length(); ++t) {
        for (const uint16_t value : conversation.trace.state(t, slot)) {
          const double x = bf16_to_f32(value);
          squares += x * x;
          count += 1;
        }
      }
    }
    sizes.push_back(count > 0 ? std::sqrt(squares / count) : 0);
  }
  const auto [low, high] = std::minmax_element(sizes.begin(), sizes.end());
  if (*low <= 0 || *high / *low < kUnlike) return {};
  std::vector<std::string> text;
  for (size_t i = 0; i < sizes.size(); ++i)
    text.push_back(fmt::format("{} {:.3g}", sample.slots[static_cast<size_t>(slots[i])].name(), sizes[i]));
  return {{Severity::kWarning, "states-of-unlike-size",
           fmt::format("the states that this drafter reads without a norm are of very unlike size (root mean square: {}): the largest "
                       "drowns the others",
                       fmt::join(text, ", ")),
           "train with a norm before fc (aerie train --feature-norm per-tap), and serve it with an engine that applies it"}};
}

Expected<Sample> take_sample(const TraceSource& source, const DraftSpec& spec, const SampleOptions& options) {
  if (source.hidden() != spec.target_hidden) {
    return invalid_argument("the drafter reads states of width {}, the trace holds states of width {}: it is of another target",
                            spec.target_hidden, source.hidden());
  }
  Sample out;
  out.slots = source.slots();
  out.hidden = source.hidden();
  if (source.manifest() != nullptr) {
    const TraceTarget& target = source.manifest()->target;
    out.blocks = target.blocks;
    out.sampled_at = source.manifest()->sampled_at();
    if (target.vocab != spec.vocab) {
      return invalid_argument("the drafter was made for a vocabulary of {} tokens, the trace's target has {}: it is of another target",
                              spec.vocab, target.vocab);
    }
  }
  const uint64_t token_bytes = std::max<uint64_t>(1, out.slots.size() * static_cast<uint64_t>(out.hidden) * sizeof(uint16_t));
  const int64_t most = std::min(options.max_tokens, static_cast<int64_t>(options.max_bytes / token_bytes));
  size_t looked_at = 0, damaged = 0, cut_off = 0;
  size_t longest = 0;
  bool without_mask = false;
  Status first_error;
  const Spread order(std::max<size_t>(1, source.size()));
  const size_t most_looked_at = std::min(source.size(), kMostLookedAt);
  out.available = source.size();
  const auto share =
      most / static_cast<int64_t>(std::clamp<size_t>(source.size(), 1, static_cast<size_t>(std::max(1, options.wanted_conversations))));
  for (; looked_at < most_looked_at && out.tokens + kShortest <= most; ++looked_at) {
    auto conversation = source.read(order[looked_at]);
    if (!conversation.ok()) {
      if (damaged++ == 0) first_error = conversation.status();
      continue;
    }
    Trace& trace = conversation->trace;
    const auto beyond = std::find_if(trace.tokens.begin(), trace.tokens.end(), [&](int32_t t) { return t < 0 || t >= spec.vocab; });
    if (beyond != trace.tokens.end()) {
      return invalid_argument("{}: the trace holds the token {}, the drafter's target has {} tokens: it is of another target",
                              conversation->id, *beyond, spec.vocab);
    }
    const auto begin = std::find(trace.mask.begin(), trace.mask.end(), 1) - trace.mask.begin();
    const int64_t fair = begin + std::max<int64_t>(kLeastAnswer, share - begin);
    const size_t length = static_cast<size_t>(std::min({int64_t{options.max_length}, most - out.tokens, fair}));
    const bool too_long = trace.length() > length;
    longest = std::max(longest, trace.length());
    cut(trace, length);
    const size_t starts = find_starts(trace.mask, 1).size();
    if (starts == 0) continue;
    cut_off += too_long ? 1 : 0;
    without_mask = without_mask || !conversation->has_mask;
    out.tokens += static_cast<int64_t>(trace.length());
    out.rows += static_cast<int64_t>(starts);
    out.conversations.push_back(*std::move(conversation));
  }
  if (damaged != 0) {
    out.findings.push_back({Severity::kWarning, "trace-damaged",
                            fmt::format("{} of {} conversations cannot be read, the first: {}", damaged, looked_at, first_error.message()),
                            "record these again; the others were used"});
  }
  if (without_mask) {
    out.findings.push_back(
        {Severity::kWarning, "trace-without-mask",
         "the trace does not say which tokens the target wrote, so that prompts count as answers and every figure is too low",
         "give the rows with their loss_mask"});
  }
  const auto all_ones = [](const Conversation& c) { return marks_everything(c.trace.mask); };
  if (!without_mask && !out.conversations.empty() && std::all_of(out.conversations.begin(), out.conversations.end(), all_ones)) {
    out.findings.push_back({Severity::kWarning, "mask-is-all-ones",
                            "the mask says that the target wrote every token, prompts included: a drafter trained with it learned to "
                            "continue prompts, and every figure is too low",
                            "write the mask by the chat template: one without generation tags marks nothing, or everything"});
  }
  if (spec.max_positions > 0 && longest > static_cast<size_t>(spec.max_positions)) {
    out.findings.push_back(
        {Severity::kWarning, "beyond-trained-positions",
         fmt::format(
             "conversations of up to {} tokens are served, the drafter was made for {} positions: beyond them it has learned nothing",
             longest, spec.max_positions),
         "train on longer conversations, or serve it with a sliding window"});
  }
  if (out.conversations.empty()) {
    if (damaged != 0) return first_error;
    return invalid_argument(
        "none of the {} conversations looked at has an answer of two tokens or more (the mask is empty), so there is nothing to replay",
        looked_at);
  }
  out.how = fmt::format("{} of {} conversations{}: {} tokens, {} rows at which a draft can be judged", out.conversations.size(),
                        source.size(), cut_off == 0 ? "" : fmt::format(" ({} cut off)", cut_off), out.tokens, out.rows);
  if (!out.sampled_at.empty()) {
    out.how += fmt::format("; the answers were drawn at temperature {}, and a draft is right where it is the token drawn", out.sampled_at);
  }
  return out;
}

}  // namespace aerie
