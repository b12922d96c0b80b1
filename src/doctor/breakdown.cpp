#include "doctor/breakdown.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

namespace aerie {
namespace {

constexpr double kLevel = 0.95;

/// The interval over the conversations that have anything to say.
std::optional<Interval> interval_of(const std::vector<RatioPart>& parts) {
  std::vector<RatioPart> kept;
  std::copy_if(parts.begin(), parts.end(), std::back_inserter(kept), [](const RatioPart& p) { return p.count > 0; });
  if (kept.empty()) return std::nullopt;
  return ratio_interval(kept, kLevel);
}

struct NamedScore {
  std::string name;
  const Score* score;
};

/// As declared, and as mended where a fault was named.
std::vector<NamedScore> scores_of(const SearchResult& result) {
  std::vector<NamedScore> out;
  if (result.rounds.empty()) return out;
  out.push_back({"as declared", &result.rounds.front().base.score});
  const Score& mended = last_judged(result).score;
  if (&mended != out.front().score) out.push_back({"as mended", &mended});
  return out;
}

/// One point: the part that `pick` takes of every conversation. Nothing where none has it.
std::optional<Interval> point(const Score& score, const std::function<const RatioPart*(size_t)>& pick) {
  std::vector<RatioPart> parts;
  for (size_t c = 0; c < score.detail.size(); ++c) {
    if (const RatioPart* part = pick(c)) parts.push_back(*part);
  }
  return interval_of(parts);
}

size_t steps_of(const Score& score) { return score.detail.empty() ? 0 : score.detail.front().right.size(); }

std::vector<std::string> step_names(size_t count) {
  std::vector<std::string> out;
  for (size_t s = 1; s <= count; ++s) out.push_back(std::to_string(s));
  return out;
}

Chart right_by_step(const std::vector<NamedScore>& scores, std::span<const double> validated) {
  Chart out{
      "right_by_step", "drafts right by step, fed with the target's own words, over all positions (as a validation counts)", {}, {}, true};
  out.labels = step_names(std::max(steps_of(*scores.front().score), validated.size()));
  for (const NamedScore& s : scores) {
    ChartSeries& series = out.series.emplace_back(ChartSeries{s.name, {}});
    for (size_t step = 0; step < steps_of(*s.score); ++step)
      series.points.push_back(point(*s.score, [&](size_t c) { return &s.score->detail[c].right[step]; }));
  }
  if (!validated.empty()) out.series.push_back(exact_series("as its training reported", validated));
  return out;
}

Chart right_by_position(const std::vector<NamedScore>& scores) {
  Chart out{"right_by_position", "first drafts right by position in the conversation", {}, {}, true};
  for (size_t b = 0; b < kPositionBuckets; ++b) out.labels.push_back(position_bucket_name(b));
  for (const NamedScore& s : scores) {
    ChartSeries& series = out.series.emplace_back(ChartSeries{s.name, {}});
    for (size_t b = 0; b < kPositionBuckets; ++b)
      series.points.push_back(point(*s.score, [&](size_t c) { return &s.score->detail[c].by_position[b]; }));
  }
  while (!out.labels.empty() &&
         std::none_of(out.series.begin(), out.series.end(), [&](const ChartSeries& s) { return s.points.back().has_value(); })) {
    out.labels.pop_back();
    for (ChartSeries& series : out.series) series.points.pop_back();
  }
  return out;
}

Chart length_by_domain(const std::vector<NamedScore>& scores, const Sample& sample) {
  const std::vector<size_t> order = judged_order(sample);
  std::map<std::string, int> domains;
  for (const std::string& domain : sample.domains) ++domains[domain];
  Chart out{"length_by_domain", "acceptance length by domain", {}, {}};
  out.sideways = true;
  for (const auto& [domain, count] : domains) out.labels.push_back(fmt::format("{} ({})", domain, count));
  for (const NamedScore& s : scores) {
    ChartSeries& series = out.series.emplace_back(ChartSeries{s.name, {}});
    for (const auto& [domain, count] : domains) {
      series.points.push_back(
          point(*s.score, [&, &domain = domain](size_t c) { return sample.domains[order[c]] == domain ? &s.score->length[c] : nullptr; }));
    }
  }
  return out;
}

Chart readings(const SearchRound& round, size_t number) {
  Chart out{"readings", fmt::format("acceptance length by reading{}", number == 0 ? "" : fmt::format(", after {} mended", number)), {}, {}};
  out.sideways = true;
  ChartSeries& series = out.series.emplace_back(ChartSeries{"", {}});
  const auto add = [&](const std::string& name, const Judged& judged) {
    out.labels.push_back(name);
    series.points.push_back(judged.length);
  };
  for (size_t i = 0; i < round.finalists.size(); ++i)
    add(round.finalists[i].hypothesis.name + (round.winner == i ? " (named)" : ""), round.finalists[i]);
  add(round.base.hypothesis.name, round.base);
  return out;
}

}  // namespace

std::vector<ChartSeries> accepted_by_step(const SearchResult& result) {
  std::vector<ChartSeries> out;
  for (const NamedScore& s : scores_of(result)) {
    std::vector<std::vector<RatioPart>> parts(steps_of(*s.score));
    for (size_t step = 0; step < parts.size(); ++step) {
      for (const ScoreDetail& detail : s.score->detail) parts[step].push_back(detail.accepted[step]);
    }
    out.push_back(accepted_by_step("replayed " + s.name, parts));
  }
  return out;
}

ChartSeries accepted_by_step(const std::string& name, const std::vector<std::vector<RatioPart>>& parts) {
  ChartSeries out{name, {}};
  for (const auto& step : parts) out.points.push_back(interval_of(step));
  return out;
}

Chart length_histogram(const std::string& title, const std::vector<NamedParts>& lengths) {
  constexpr double kBin = 0.25;
  Chart out{"length_histogram", title, {}, {}};
  size_t bins = 0;
  for (const auto& [name, parts] : lengths) {
    std::vector<double> counts;
    for (const RatioPart& part : parts) {
      if (part.count <= 0) continue;
      const auto bin = static_cast<size_t>(std::max(0.0, std::floor((part.sum / part.count - 1) / kBin)));
      if (counts.size() <= bin) counts.resize(bin + 1);
      ++counts[bin];
    }
    out.series.push_back(exact_series(name, counts));
    bins = std::max(bins, counts.size());
  }
  for (size_t b = 0; b < bins; ++b) out.labels.push_back(fmt::format("{:.2f}-", 1 + kBin * static_cast<double>(b)));
  return out;
}

std::vector<Chart> breakdown(const SearchResult& result, const Sample& sample, std::span<const double> validated) {
  const std::vector<NamedScore> scores = scores_of(result);
  if (scores.empty()) return {};
  std::vector<Chart> out = {right_by_step(scores, validated), right_by_position(scores)};
  if (!sample.domains.empty()) out.push_back(length_by_domain(scores, sample));
  std::vector<NamedParts> lengths;
  for (const NamedScore& s : scores) lengths.emplace_back(s.name, s.score->length);
  out.push_back(length_histogram("conversations by acceptance length", lengths));
  for (size_t r = 0; r < result.rounds.size(); ++r) out.push_back(readings(result.rounds[r], r));
  return out;
}

std::vector<Finding> judge_validation(const SearchResult& result, std::span<const double> validated) {
  if (validated.empty() || result.rounds.empty()) return {};
  const Score& score = *scores_of(result).back().score;
  const Interval first = ratio_interval(score.first, kLevel);
  if (validated.front() > first.high) {
    return {{Severity::kWarning, "validation-not-reproduced",
             fmt::format("its training reported {:.1f} % of first drafts right, on this trace it is {} in the reading that works best",
                         100 * validated.front(), first.percent()),
             "compare what was counted: on text that it was trained on, on tokens of the draft vocabulary alone, or against a teacher that "
             "is not the target "
             "(--teacher)? Or these weights are not those that were validated"}};
  }
  if (validated.front() < first.low) {
    return {{Severity::kNote, "validation-exceeded",
             fmt::format("its training reported {:.1f} % of first drafts right, on this trace it is {}: easier text, another count, or not "
                         "the weights that were "
                         "validated",
                         100 * validated.front(), first.percent()),
             ""}};
  }
  return {{Severity::kNote, "validation-reproduced",
           fmt::format("its training reported {:.1f} % of first drafts right, and the replay bears it out: {}", 100 * validated.front(),
                       first.percent()),
           ""}};
}

}  // namespace aerie
