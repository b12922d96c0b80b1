#include "doctor/hypothesis_search.h"

#include <algorithm>
#include <numeric>

namespace aerie {
namespace {

constexpr size_t kFinalists = 5;

struct Candidate {
  Hypothesis hypothesis;
  Score searched;  // over the searching half, as far as it was replayed
  double length() const { return searched.summary.acceptance_length(); }
};

/// The conversations that are searched, and those that judge.
std::pair<std::vector<size_t>, std::vector<size_t>> halves(const Sample& sample) {
  std::vector<size_t> searching, judging;
  for (size_t c = 0; c < sample.conversations.size(); ++c) (c % 2 == 0 ? searching : judging).push_back(c);
  return {searching, judging};
}

bool same_outcome(std::span<const RatioPart> a, std::span<const RatioPart> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const RatioPart& x, const RatioPart& y) { return x.sum == y.sum && x.count == y.count; });
}

std::span<const RatioPart> head(const std::vector<RatioPart>& parts, size_t count) {
  return std::span(parts).first(std::min(count, parts.size()));
}

void rank(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.length() > b.length(); });
}

class Round {
 public:
  Round(ReadingScorer& scorer, const Reading& base, const HypothesisFacts& facts, const SearchOptions& options,
        std::span<const size_t> searching, std::span<const size_t> judging)
      : scorer_(scorer), facts_(facts), options_(options), searching_(searching), judging_(judging) {
    out_.base.hypothesis = {"", "as declared", "", base};
  }

  Expected<SearchRound> run() {
    const Reading& base = out_.base.hypothesis.reading;
    say("replaying the drafter as declared");
    AERIE_ASSIGN(base_searched_, scorer_.score(base, searching_, options_.k));
    AERIE_TRY(propose());
    AERIE_TRY(race());
    AERIE_TRY(judge());
    return std::move(out_);
  }

 private:
  void say(const std::string& doing) const {
    if (options_.on_progress) options_.on_progress(doing);
  }

  Status propose() {
    const Reading& base = out_.base.hypothesis.reading;
    std::vector<SlotUse> states;
    for (size_t s = 0; s < facts_.slots.size(); ++s) states.push_back({static_cast<int>(s), false});
    if (scorer_.knows_final_norm()) {
      // The last boundary, or the final state where it is not normed yet, through the norm.
      const StateSlot& last = facts_.slots.back();
      if (last.kind == StateSlot::Kind::kBoundary || last.norm != StateSlot::Norm::kNormed)
        states.push_back({static_cast<int>(states.size()) - 1, true});
    }
    say(fmt::format("ranking choices of {} among {} stored states", base.feature.size(), states.size()));
    AERIE_ASSIGN(out_.taps, search_taps(scorer_, base, states, searching_, options_.taps));
    AERIE_TRY(propose_taps());
    if (scorer_.knows_final_norm()) {
      std::vector<SlotUse> normed = base.feature;
      for (SlotUse& use : normed) use.final_normed = true;
      Hypothesis all{"feature_norm", "every tap through the target's final norm", "feed the drafter its taps after the target's final norm",
                     base};
      all.reading.feature = normed;
      candidates_.push_back({std::move(all), {}});
    }
    for (Hypothesis& hypothesis : other_hypotheses(base, scorer_.checkpoint(), facts_)) candidates_.push_back({std::move(hypothesis), {}});
    out_.tried = candidates_.size() + (out_.taps.tried > out_.taps.best.size() ? out_.taps.tried - out_.taps.best.size() : 0);
    return {};
  }

  /// Of the choices that did best on short pieces, those whose first drafts match best in whole conversations.
  Status propose_taps() {
    const Reading& base = out_.base.hypothesis.reading;
    std::vector<Candidate> choices;
    for (const TapChoice& choice : out_.taps.best) {
      if (choice.feature == base.feature) continue;
      Candidate candidate{tap_hypothesis(base, choice.feature, facts_), {}};
      AERIE_ASSIGN(candidate.searched, scorer_.score(candidate.hypothesis.reading, searching_.first(third()), 1));
      choices.push_back(std::move(candidate));
    }
    rank(choices);
    if (choices.size() > kFinalists) choices.resize(kFinalists);
    for (Candidate& candidate : choices) candidates_.push_back({std::move(candidate.hypothesis), {}});
    for (const std::vector<SlotUse>& feature : usual_features(base, facts_)) {
      const auto same =
          std::find_if(candidates_.begin(), candidates_.end(), [&](const Candidate& c) { return c.hypothesis.reading.feature == feature; });
      Candidate& candidate =
          same != candidates_.end() ? *same : candidates_.emplace_back(Candidate{tap_hypothesis(base, feature, facts_), {}});
      candidate.hypothesis.usual = true;
    }
    return {};
  }

  size_t third() const { return std::max<size_t>(2, searching_.size() / 3); }

  /// Replays candidates on the first third of the searching half, then those that may still win on the rest.
  Status race() {
    const size_t third = this->third();
    say(fmt::format("replaying {} hypotheses", candidates_.size()));
    std::vector<Candidate> left;
    for (Candidate& candidate : candidates_) {
      auto score = scorer_.score(candidate.hypothesis.reading, searching_.first(third), options_.k);
      // A reading whose weights are not there is none.
      if (!score.ok() && score.status().code() == StatusCode::kInvalidArgument) continue;
      if (!score.ok()) return score.status();
      candidate.searched = *std::move(score);
      if (same_outcome(candidate.searched.length, head(base_searched_.length, third)) &&
          same_outcome(candidate.searched.first, head(base_searched_.first, third))) {
        ++out_.without_effect;
        continue;
      }
      left.push_back(std::move(candidate));
    }
    rank(left);
    candidates_.clear();
    for (Candidate& candidate : left) {
      const Interval behind = difference_interval(candidate.searched.length, head(base_searched_.length, third), 0.95);
      // Some stay in any case: what comes closest is worth showing.
      const bool late = candidates_.size() >= 2 * kFinalists && !candidate.hypothesis.usual;
      if (candidates_.size() >= 3 && (behind.high < 0 || late)) continue;
      candidates_.push_back(std::move(candidate));
    }
    for (Candidate& candidate : candidates_) {
      AERIE_ASSIGN(const Score rest, scorer_.score(candidate.hypothesis.reading, searching_.subspan(third), options_.k));
      candidate.searched.append(rest);
    }
    rank(candidates_);
    // A usual reading that is not behind the best beyond chance is judged with the first few.
    size_t kept = 0;
    std::erase_if(candidates_, [&, best = candidates_.empty() ? Score() : candidates_.front().searched](const Candidate& candidate) {
      const bool usual = candidate.hypothesis.usual && difference_interval(best.length, candidate.searched.length, 0.95).low <= 0;
      return ++kept > kFinalists && !usual;
    });
    return {};
  }

  Status judge() {
    say(fmt::format("judging {} of them on the other {} conversations", candidates_.size(), judging_.size()));
    AERIE_ASSIGN(const Score base, scorer_.score(out_.base.hypothesis.reading, judging_, options_.k));
    const double level = 1.0 - kFalseAlarms / static_cast<double>(std::max<size_t>(1, candidates_.size()));
    const double needed = std::max(kLeastGain, kLeastShare * (base.summary.acceptance_length() - 1.0));
    for (Candidate& candidate : candidates_) {
      Judged judged;
      judged.hypothesis = std::move(candidate.hypothesis);
      AERIE_ASSIGN(const Score score, scorer_.score(judged.hypothesis.reading, judging_, options_.k));
      judged.gain = difference_interval(score.length, base.length, level);
      judged.beats = judged.gain.low > 0 && judged.gain.value >= needed && candidate.length() > base_searched_.summary.acceptance_length();
      judged.score = std::move(candidate.searched);
      finish(judged, score);
      out_.finalists.push_back(std::move(judged));
    }
    out_.base.score = std::move(base_searched_);
    finish(out_.base, base);
    std::stable_sort(out_.finalists.begin(), out_.finalists.end(),
                     [](const Judged& a, const Judged& b) { return a.length.value > b.length.value; });
    const auto first = std::find_if(out_.finalists.begin(), out_.finalists.end(), [](const Judged& judged) { return judged.beats; });
    if (first == out_.finalists.end()) return {};
    out_.winner = static_cast<size_t>(first - out_.finalists.begin());
    // That the base is beaten is certain now. By which reading is not, where others do as well as the winner on all conversations: of
    // these the usual one of its kind is the likeliest, and one that uses every tensor of the files before one that does not.
    for (size_t i = 0; i < out_.finalists.size(); ++i) {
      const Judged& judged = out_.finalists[i];
      const Interval apart = difference_interval(first->score.length, judged.score.length, 0.95);
      if (i == *out_.winner || apart.low > 0 || apart.high < 0 || judged.gain.value < needed) continue;
      const bool usual = judged.hypothesis.usual && !first->hypothesis.usual && judged.hypothesis.axis == first->hypothesis.axis;
      const bool complete = judged.beats && first->hypothesis.discards && !judged.hypothesis.discards;
      if (usual || complete) {
        out_.tie = out_.winner;
        out_.winner = i;
        break;
      }
      if (judged.beats && !out_.tie) out_.tie = i;
    }
    if (out_.tie) out_.apart = difference_interval(out_.finalists[*out_.winner].score.length, out_.finalists[*out_.tie].score.length, 0.95);
    return {};
  }

  void finish(Judged& judged, const Score& judging) const {
    judged.score.append(judging);
    judged.first = ratio_interval(judged.score.first, 0.95);
    judged.length = ratio_interval(judged.score.length, 0.95);
  }

  ReadingScorer& scorer_;
  const HypothesisFacts& facts_;
  const SearchOptions& options_;
  std::span<const size_t> searching_, judging_;
  SearchRound out_;
  Score base_searched_;
  std::vector<Candidate> candidates_;
};

}  // namespace

Expected<SearchResult> search_hypotheses(ReadingScorer& scorer, const Reading& declared, const HypothesisFacts& facts,
                                         const SearchOptions& options) {
  if (options.k < 1 || options.k > kMaxReplaySteps)
    return invalid_argument("{} drafts per cycle were asked for, expected 1 to {}", options.k, kMaxReplaySteps);
  SearchResult out;
  out.stand_ins = facts.stand_ins;
  const Sample& sample = scorer.sample();
  out.available = sample.available;
  out.tokens = sample.tokens;
  if (sample.conversations.size() < kLeastConversations || sample.rows < kLeastRows) {
    out.too_little = fmt::format(
        "{} conversations with {} rows at which a draft can be judged are too few to tell a fault from chance: at least {} "
        "conversations with {} such rows are needed",
        sample.conversations.size(), sample.rows, kLeastConversations, kLeastRows);
    return out;
  }
  const auto [searching, judging] = halves(sample);
  out.searched = searching.size();
  out.judging = judging.size();
  Reading base = declared;
  while (true) {
    AERIE_ASSIGN(SearchRound round, Round(scorer, base, facts, options, searching, judging).run());
    const bool found = round.winner.has_value();
    if (found) base = round.finalists[*round.winner].hypothesis.reading;
    if (!out.rounds.empty()) round.base.hypothesis.name = "as mended so far";
    out.rounds.push_back(std::move(round));
    if (!found || out.rounds.size() >= static_cast<size_t>(options.most_faults)) break;
  }
  std::vector<double> widths;
  for (const Judged& judged : out.rounds.back().finalists) widths.push_back(judged.gain.half_width());
  std::sort(widths.begin(), widths.end());
  if (!widths.empty()) out.visible = widths[widths.size() / 2];
  return out;
}

std::vector<size_t> judged_order(const Sample& sample) {
  auto [out, judging] = halves(sample);
  out.insert(out.end(), judging.begin(), judging.end());
  return out;
}

const Judged& last_judged(const SearchResult& result) {
  const SearchRound& last = result.rounds.back();
  return last.winner ? last.finalists[*last.winner] : last.base;
}

const Reading& last_reading(const SearchResult& result) { return last_judged(result).hypothesis.reading; }

Expected<Judged> judge_reading(ReadingScorer& scorer, const Hypothesis& hypothesis, const Judged& base, int k) {
  Judged out;
  out.hypothesis = hypothesis;
  AERIE_ASSIGN(out.score, scorer.score(hypothesis.reading, judged_order(scorer.sample()), k));
  out.first = ratio_interval(out.score.first, 0.95);
  out.length = ratio_interval(out.score.length, 0.95);
  out.gain = difference_interval(out.score.length, base.score.length, 0.95);
  out.beats = out.gain.low > 0 && out.gain.value >= kLeastGain;
  return out;
}

}  // namespace aerie
