#include "doctor/acceptance_signs.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "formats/printable.h"

namespace aerie {
namespace {

// Below these nothing is said: 20 verifies with a true acceptance length of 1.2 would all accept nothing about once in a hundred times.
constexpr uint64_t kLeastVerifies = 20;
constexpr size_t kLeastWindows = 3;
// For a comparison within one log.
constexpr size_t kLeastGroup = 4;
// What public regressions cost is above this share of the accepted drafts; what engines differ by from run to run is below.
constexpr double kFall = 0.10;
constexpr double kErrors = 3.0;
// A first draft that a working drafter hardly ever goes below (published ones: 0.65 to 0.81), and one that shows its first step works.
constexpr double kPoorFirst = 0.25, kGoodFirst = 0.40;
// Conditional acceptance of working drafters falls to no less than about 0.8 of the first from step to step (.73, .71, .68; .65, .61, .51).
constexpr double kCliff = 0.60;
constexpr double kNearAll = 0.97;

struct Mean {
  double value = 0, error = 0;
};

/// Mean length and its standard error over windows, weighted by what is in them.
std::optional<Mean> mean_of(const std::vector<MetricWindow>& windows) {
  if (windows.size() < 2) return std::nullopt;
  double sum = 0, weight = 0, square = 0;
  const auto w = [](const MetricWindow& x) { return x.verifies > 0 ? x.verifies : std::max(x.running, 1); };
  for (const MetricWindow& x : windows) sum += w(x) * x.length, weight += w(x);
  const double mean = sum / weight;
  for (const MetricWindow& x : windows) square += w(x) * (x.length - mean) * (x.length - mean);
  const double n = static_cast<double>(windows.size());
  return Mean{mean, std::sqrt(square / weight / (n - 1.0))};
}

std::optional<Mean> mean_of(const MetricsReading& reading) {
  if (!reading.acceptance.length) return std::nullopt;
  if (const auto error = reading.acceptance.length_error()) return Mean{*reading.acceptance.length, *error};
  if (reading.windows.size() >= kLeastGroup) return mean_of(reading.windows);
  return std::nullopt;
}

/// `later` accepts clearly fewer drafts than `before`.
bool falls(const Mean& before, const Mean& later) {
  const double difference = before.value - later.value;
  return difference > kFall * (before.value - 1.0) && difference > kErrors * std::hypot(before.error, later.error);
}

std::string fall_text(const std::string& from, const Mean& before, const std::string& to, const Mean& later) {
  return fmt::format("the acceptance length is {:.2f} (+-{:.2f}) {} and {:.2f} (+-{:.2f}) {}", before.value, before.error, from,
                     later.value, later.error, to);
}

bool enough(const MetricsReading& reading) {
  if (reading.acceptance.verifies) return *reading.acceptance.verifies >= kLeastVerifies;
  return reading.windows.size() >= kLeastWindows || reading.acceptance.drafted.value_or(0) >= kLeastVerifies;
}

bool all_equal(const std::vector<MetricWindow>& windows) {
  return windows.size() >= kLeastWindows && std::all_of(windows.begin(), windows.end(), [&](const MetricWindow& w) {
           return std::abs(w.length - windows.front().length) < 0.005;
         });
}

/// Every verify accepts the same number of drafts, which is above none.
bool constant_above_one(const MetricsReading& reading, double length) {
  if (std::abs(length - std::round(length)) > 0.004) return false;
  const std::vector<uint64_t>& h = reading.acceptance.histogram;
  if (!h.empty()) return std::count_if(h.begin(), h.end(), [](uint64_t n) { return n != 0; }) == 1;
  return all_equal(reading.windows);
}

void judge_steps(const Acceptance& a, std::vector<Finding>& out) {
  if (a.unconditional.empty() && !a.length) return;
  // Without figures by step: no more first drafts than drafts in all can have been accepted.
  const double first = a.unconditional.empty() ? *a.length - 1.0 : a.unconditional[0];
  if (first < kPoorFirst) {
    out.push_back({Severity::kError, "first-draft-poor",
                   fmt::format("{} {:.1f} % of first drafts are accepted (working drafters: 65 to 80 %)",
                               a.unconditional.empty() ? "at most" : "only", 100 * first),
                   "replay stored states: if they are accepted there, look at the layers captured, the norm before capture, the embedding, "
                   "the pairing of tokens and "
                   "RoPE; if not, at data, chat template and the quantised target"});
  } else if (first >= kGoodFirst && a.conditional.size() > 1 && a.conditional[1] < kCliff * first) {
    out.push_back(
        {Severity::kError, "cliff-after-first",
         fmt::format("{:.1f} % of first drafts are accepted, and of second ones after an accepted first only {:.1f} % (conditional)",
                     100 * first, 100 * a.conditional[1]),
         "look at what is fed back (before or after the final norm), whether fc is applied to it again, the drafter's KV and the positions "
         "while drafting"});
  }
}

void judge_time(const std::vector<MetricWindow>& windows, std::vector<Finding>& out) {
  if (windows.size() < 3 * kLeastGroup) return;
  const auto third = static_cast<std::ptrdiff_t>(windows.size() / 3);
  const auto first = mean_of(std::vector<MetricWindow>(windows.begin(), windows.begin() + third));
  const auto last = mean_of(std::vector<MetricWindow>(windows.end() - third, windows.end()));
  if (first && last && falls(*first, *last)) {
    out.push_back({Severity::kWarning, "decays-with-time", fall_text("in the first third of the log", *first, "in its last third", *last),
                   "if the prompts are alike: a prefix cache that is committed before the drafter's KV is written does this; restart and "
                   "compare, or switch the prefix cache off"});
  }
}

void judge_batch(const std::vector<MetricWindow>& windows, std::vector<Finding>& out) {
  std::vector<MetricWindow> alone, many;
  for (const MetricWindow& w : windows) {
    if (w.running == 1) alone.push_back(w);
    if (w.running >= 4) many.push_back(w);
  }
  if (alone.size() < kLeastGroup || many.size() < kLeastGroup) return;
  const auto single = mean_of(alone), batched = mean_of(many);
  if (single && batched && falls(*single, *batched)) {
    out.push_back({Severity::kWarning, "falls-with-batch", fall_text("with one sequence at a time", *single, "with four or more", *batched),
                   "the acceptance of a sequence must not depend on its neighbours: look at scheduling, padding and tree slots"});
  }
}

}  // namespace

std::vector<Finding> judge_acceptance(const MetricsReading& reading, std::optional<int> depth) {
  std::vector<Finding> out;
  const Acceptance& a = reading.acceptance;
  if (!enough(reading)) {
    out.push_back(
        {Severity::kNote, "too-little",
         fmt::format("too little to judge ({}): {} verifies or {} log lines are needed", reading.source, kLeastVerifies, kLeastWindows),
         ""});
    return out;
  }
  const bool none = (a.accepted && *a.accepted == 0 && a.drafted.value_or(1) != 0) || (a.length && !a.accepted && *a.length < 1.005);
  if (none) {
    out.push_back({Severity::kError, "nothing-accepted",
                   fmt::format("no draft is ever accepted: the acceptance length is exactly 1{}",
                               a.k ? fmt::format(" (a rate of exactly 1/{} where the bonus token is counted)", *a.k + 1) : std::string()),
                   "look first at the algorithm flag (EAGLE instead of EAGLE3 skips fc), a head that is missing and left random, d2t, NaN "
                   "in the states, features that are zero"});
    return out;
  }
  if (!depth) depth = a.k;
  if (a.length && depth && *depth >= 1 && *a.length > 1.0 + kNearAll * *depth) {
    out.push_back(
        {Severity::kWarning, "nearly-all-accepted",
         fmt::format("the acceptance length is {:.2f} of at most {}: more than drafters reach on real text", *a.length, *depth + 1),
         "look at the text: a loop of few tokens, NaN logits, or the target as its own drafter do this"});
  } else if (a.length && *a.length > 1.5 && constant_above_one(reading, *a.length)) {
    out.push_back({Severity::kWarning, "constant-length",
                   fmt::format("every verify accepts the same number of drafts, {:.0f}", *a.length - 1.0),
                   "simulated acceptance, NaN logits and loops of few tokens do this"});
  }
  judge_steps(a, out);
  judge_time(reading.windows, out);
  judge_batch(reading.windows, out);
  return out;
}

Expected<std::pair<LabelledReading::Kind, int>> parse_condition(const std::string& text) {
  using Kind = LabelledReading::Kind;
  if (text == "cold") return std::pair{Kind::kCold, 0};
  if (text == "warm") return std::pair{Kind::kWarm, 0};
  for (const auto& [word, kind] : {std::pair{std::string("batch:"), Kind::kBatch}, {std::string("context:"), Kind::kContext}}) {
    if (!text.starts_with(word)) continue;
    int value = 0;
    const char* begin = text.data() + word.size();
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= 1) return std::pair{kind, value};
  }
  return invalid_argument("the condition {} is not known: expected cold, warm, batch:N or context:N", printable(text));
}

std::vector<Finding> compare_conditions(const std::vector<LabelledReading>& readings) {
  using Kind = LabelledReading::Kind;
  std::vector<Finding> out;
  const auto compare = [&](const LabelledReading& base, const LabelledReading& other, const std::string& from, const std::string& to,
                           const char* code, const char* fix) {
    const auto before = mean_of(base.reading), later = mean_of(other.reading);
    if (!before || !later) {
      out.push_back(
          {Severity::kNote, "too-little",
           fmt::format("too little to compare {} with {}: the number of verifies or {} log lines each are needed", from, to, kLeastGroup),
           ""});
    } else if (falls(*before, *later)) {
      out.push_back({Severity::kError, code, fall_text(from, *before, to, *later), fix});
    }
  };
  std::vector<const LabelledReading*> batches, contexts;
  const LabelledReading *cold = nullptr, *warm = nullptr;
  for (const LabelledReading& r : readings) {
    if (r.kind == Kind::kCold) cold = &r;
    if (r.kind == Kind::kWarm) warm = &r;
    if (r.kind == Kind::kBatch) batches.push_back(&r);
    if (r.kind == Kind::kContext) contexts.push_back(&r);
  }
  const auto by_value = [](const LabelledReading* a, const LabelledReading* b) { return a->value < b->value; };
  std::sort(batches.begin(), batches.end(), by_value);
  std::sort(contexts.begin(), contexts.end(), by_value);
  if (cold != nullptr && warm != nullptr) {
    compare(*cold, *warm, "cold", "warm", "worse-when-warm",
            "a cached prefix lacks the drafter's KV, or holds one of an earlier round: drop the last cached block, or switch the prefix "
            "cache off");
  }
  for (size_t i = 1; i < batches.size(); ++i) {
    compare(*batches[0], *batches[i], fmt::format("at batch {}", batches[0]->value), fmt::format("at batch {}", batches[i]->value),
            "falls-with-batch",
            "the acceptance of a sequence must not depend on its neighbours: look at scheduling, padding and tree slots");
  }
  for (size_t i = 1; i < contexts.size(); ++i) {
    compare(*contexts[0], *contexts[i], fmt::format("up to {} tokens", contexts[0]->value),
            fmt::format("up to {} tokens", contexts[i]->value), "decays-with-position",
            "look at the drafter's RoPE scaling, the positions it was trained for, and a sliding window that the engine ignores");
  }
  return out;
}

}  // namespace aerie
