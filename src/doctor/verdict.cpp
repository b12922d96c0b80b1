#include "doctor/verdict.h"

#include <algorithm>
#include <cmath>

#include "doctor/breakdown.h"
#include "eagle3/engines/as_served.h"

namespace aerie {
namespace {

/// Below this share of matches of the first draft a drafter is of no use on the text.
constexpr double kPoorFirst = 0.25;

std::string code_of(const std::string& axis) {
  std::string out = "wrong-" + axis;
  for (char& c : out) c = c == '_' ? '-' : c;
  return out;
}

/// The stand-ins that are still in use in a round.
std::vector<StandIn> in_use(const SearchResult& result, const SearchRound& round) {
  std::vector<StandIn> out;
  const std::vector<SlotUse>&now = round.base.hypothesis.reading.feature, &declared = result.rounds.front().base.hypothesis.reading.feature;
  for (const StandIn& s : result.stand_ins) {
    if (s.tap < now.size() && s.tap < declared.size() && now[s.tap] == declared[s.tap]) out.push_back(s);
  }
  return out;
}

/// Whether two features differ nowhere but in taps that a neighbour stands for.
bool differ_in_stand_ins_only(const Reading& a, const Reading& b, const std::vector<StandIn>& stand_ins) {
  for (size_t i = 0; i < a.feature.size() && i < b.feature.size(); ++i) {
    const bool stand_in = std::any_of(stand_ins.begin(), stand_ins.end(), [&](const StandIn& s) { return s.tap == i; });
    if (!stand_in && a.feature[i] != b.feature[i]) return false;
  }
  return a.feature.size() == b.feature.size();
}

/// Whether the reading that cannot be told from the named one leaves no doubt of what is wrong: it is of the same kind, or leaves out a
/// tensor that the named one uses.
bool is_settled(const SearchRound& round) {
  if (!round.winner || !round.tie) return true;
  const Hypothesis &winner = round.finalists[*round.winner].hypothesis, &tie = round.finalists[*round.tie].hypothesis;
  return tie.axis == winner.axis || (tie.discards && !winner.discards);
}

Finding fault(const SearchResult& result, size_t number, int k) {
  const SearchRound& round = result.rounds[number];
  const Judged& winner = round.finalists[*round.winner];
  const std::vector<StandIn> stand_ins = in_use(result, round);
  if (winner.hypothesis.axis == "taps" && !stand_ins.empty() &&
      differ_in_stand_ins_only(winner.hypothesis.reading, round.base.hypothesis.reading, stand_ins)) {
    return {Severity::kNote, "tap-cannot-be-judged",
            fmt::format("{} does better than {} ({} against {}), but what was declared is not in the trace and may do better still",
                        winner.hypothesis.name, stand_in_text(stand_ins), winner.length.text(), round.base.length.text()),
            "capture the declared boundaries too"};
  }
  const Judged* tie = round.tie ? &round.finalists[*round.tie] : nullptr;
  Finding out{Severity::kError, code_of(winner.hypothesis.axis), "", winner.hypothesis.mend};
  out.text = fmt::format(
      "{}the drafter works with {}, not {}, which costs {:.2f} tokens per verify: acceptance length {} against {} at k = {}, first "
      "draft right {} against {}",
      number == 0 ? "" : "after that, ", winner.hypothesis.name, number == 0 ? "as declared" : "as it stands then",
      winner.length.value - round.base.length.value, winner.length.text(), round.base.length.text(), k, winner.first.percent(),
      round.base.first.percent());
  const std::string cost = reported_cost(winner.hypothesis.axis);
  if (!cost.empty()) out.text += fmt::format(" (elsewhere such a difference has cost {})", cost);
  if (!stand_ins.empty()) {
    const bool near = std::all_of(stand_ins.begin(), stand_ins.end(), [](const StandIn& s) { return s.near(); });
    out.text += fmt::format("; {}, which the trace does not hold", stand_in_text(stand_ins));
    if (!near) {
      out.severity = Severity::kWarning;
      out.text += ", and is too far from it to be sure";
    }
  }
  if (tie == nullptr) return out;
  if (tie->hypothesis.axis == winner.hypothesis.axis) {
    out.text += fmt::format("; {} ({}) cannot be told from it on this trace{}", tie->hypothesis.name, tie->length.text(),
                            winner.hypothesis.usual ? ", and is the less usual choice" : "");
    return out;
  }
  if (is_settled(round)) {
    out.text += fmt::format("; {} ({}) explains it as well, but leaves out a trained tensor of the files", tie->hypothesis.name,
                            tie->length.text());
    return out;
  }
  out.severity = Severity::kWarning;
  out.text +=
      fmt::format("; but {} explains it as well ({}), and this trace cannot tell the two apart", tie->hypothesis.name, tie->length.text());
  out.fix = fmt::format("one of these: {}; or: {}. A longer trace may tell", winner.hypothesis.mend, tie->hypothesis.mend);
  return out;
}

/// A finalist whose gain would be worth naming but may be chance.
const Judged* perhaps(const SearchRound& round) {
  const Judged* out = nullptr;
  for (const Judged& judged : round.finalists) {
    const double needed = std::max(kLeastGain, kLeastShare * (round.base.length.value - 1.0));
    const bool likely = judged.gain.value >= needed && judged.gain.value > judged.gain.half_width() / 2;
    if (!judged.beats && likely && judged.length.value > round.base.length.value && out == nullptr) out = &judged;
  }
  return out;
}

/// How many would bring a difference like this one beyond its interval.
double conversations_that_would_tell(const SearchResult& result, const Interval& difference) {
  constexpr double kSpare = 1.2;
  return static_cast<double>(result.searched + result.judging) * std::pow(difference.half_width() / difference.value, 2.0) * kSpare;
}

}  // namespace

std::optional<int64_t> tokens_that_would_tell(const SearchResult& result) {
  const Interval* open = nullptr;
  for (const SearchRound& round : result.rounds) {
    if (open == nullptr && !is_settled(round)) open = &round.apart;
  }
  if (open == nullptr && !result.rounds.empty() && !result.rounds.back().winner) {
    const Judged* maybe = perhaps(result.rounds.back());
    if (maybe != nullptr) open = &maybe->gain;
  }
  if (open == nullptr || open->value == 0) return std::nullopt;
  const double conversations = conversations_that_would_tell(result, *open);
  if (conversations > static_cast<double>(result.available)) return std::nullopt;
  constexpr double kRound = 1024;
  return static_cast<int64_t>(
      std::ceil(static_cast<double>(result.tokens) * conversations / static_cast<double>(result.searched + result.judging) / kRound) *
      kRound);
}

std::vector<Finding> verdict(const SearchResult& result, int k) {
  std::vector<Finding> out;
  if (!result.too_little.empty()) {
    out.push_back({Severity::kNote, "too-little", result.too_little, "give a longer trace"});
    return out;
  }
  for (size_t r = 0; r < result.rounds.size(); ++r) {
    if (result.rounds[r].winner) out.push_back(fault(result, r, k));
  }
  const SearchRound& last = result.rounds.back();
  if (last.winner) return out;
  if (const Judged* maybe = perhaps(last)) {
    const std::optional<int64_t> tokens = out.empty() ? tokens_that_would_tell(result) : std::nullopt;
    out.push_back(
        {Severity::kNote, "perhaps-" + code_of(maybe->hypothesis.axis).substr(6),
         fmt::format("{} does better on this trace by {} tokens per verify, which may be chance: about {:.0f} conversations would tell",
                     maybe->hypothesis.name, maybe->gain.text(), std::ceil(conversations_that_would_tell(result, maybe->gain) / 10) * 10),
         tokens ? fmt::format("look at more of this trace before changing anything: --sample-tokens {}", *tokens)
                : std::string("give a longer trace before changing anything")});
  }
  if (out.empty() || out.front().severity == Severity::kNote) {
    const std::vector<StandIn> stand_ins = in_use(result, last);
    const std::string how =
        stand_ins.empty() ? "as declared" : fmt::format("as declared ({}, which the trace does not hold)", stand_in_text(stand_ins));
    const bool poor = last.base.first.high < kPoorFirst;
    out.insert(
        out.begin(),
        poor ? Finding{Severity::kWarning, "poor-in-every-reading",
                       fmt::format("no reading of these files makes the drafter work on these states: {} its first draft is right {} of "
                                   "the time, acceptance length {} at k = {}",
                                   how, last.base.first.percent(), last.base.length.text(), k),
                       "look at the weights, the training, and whether these states are of the target that it was trained for"}
             : Finding{Severity::kNote, "no-fault-found",
                       fmt::format(
                           "no fault found in how the drafter is read: {} its acceptance length is {} at k = {}, and none of {} "
                           "other readings does better; one that costs less than {:.3f} tokens per verify could not be seen in this trace",
                           how, last.base.length.text(), k, last.tried,
                           std::max({result.visible, kLeastGain, kLeastShare * (last.base.length.value - 1)})),
                       ""});
  }
  return out;
}

const Reading* certain_reading(const SearchResult& result, int k) {
  const Reading* out = nullptr;
  for (size_t r = 0; r < result.rounds.size(); ++r) {
    const SearchRound& round = result.rounds[r];
    if (!round.winner || fault(result, r, k).severity != Severity::kError) break;
    out = &round.finalists[*round.winner].hypothesis.reading;
  }
  return out;
}

std::vector<Finding> judge_coverage(const SearchResult& result) {
  constexpr double kLittle = 0.9;
  if (result.rounds.empty()) return {};
  const double coverage = result.rounds.back().base.score.summary.coverage();
  if (coverage >= kLittle) return {};
  return {{Severity::kWarning, "draft-vocab-covers-little",
           fmt::format("{:.1f} % of the tokens that the target wrote are outside the draft vocabulary and can never be drafted",
                       100 * (1 - coverage)),
           "choose the draft vocabulary from the target's own answers on this kind of prompt, or a larger one"}};
}

namespace {

nlohmann::json to_json(const Judged& judged) {
  nlohmann::json steps = nlohmann::json::array();
  for (const StepAcceptance& step : judged.score.summary.steps) {
    steps.push_back({{"unconditional", step.unconditional()}, {"conditional", step.conditional()}});
  }
  return {{"axis", judged.hypothesis.axis},
          {"name", judged.hypothesis.name},
          {"mend", judged.hypothesis.mend},
          {"first_draft", interval_json(judged.first)},
          {"acceptance_length", interval_json(judged.length)},
          {"gain", interval_json(judged.gain)},
          {"beats", judged.beats},
          {"steps", steps}};
}

}  // namespace

ReportSection describe(const SearchResult& result, const Sample& sample, int k, std::span<const double> validated) {
  ReportSection out{
      "hypotheses", fmt::format("how the drafter does on stored states, reading by reading (k = {})", k), {}, nlohmann::json::object()};
  out.lines.push_back(sample.how);
  out.lines.push_back(fmt::format("states: {}", fmt::join(sample.slot_names(), ", ")));
  nlohmann::json rounds = nlohmann::json::array();
  for (const SearchRound& round : result.rounds) {
    if (&round != &result.rounds.front()) out.lines.push_back("");
    out.lines.push_back(
        fmt::format("{:<44} {:<24} {:<24} {}", "reading", "acceptance length", "first draft right", "gain on the judging half"));
    out.lines.push_back(
        fmt::format("{:<44} {:<24} {:<24}", round.base.hypothesis.name, round.base.length.text(), round.base.first.percent()));
    nlohmann::json finalists = nlohmann::json::array();
    for (size_t i = 0; i < round.finalists.size(); ++i) {
      const Judged& judged = round.finalists[i];
      out.lines.push_back(fmt::format("{:<44} {:<24} {:<24} {}{}", judged.hypothesis.name, judged.length.text(), judged.first.percent(),
                                      judged.gain.text(), round.winner == i ? "  <- named" : ""));
      finalists.push_back(to_json(judged));
    }
    out.lines.push_back(
        fmt::format("{} readings tried ({} of {} choices of taps on {} rows); {} change no draft here; shown are those that came closest",
                    round.tried, round.taps.tried, round.taps.possible, round.taps.rows, round.without_effect));
    rounds.push_back({{"base", to_json(round.base)},
                      {"finalists", finalists},
                      {"tried", round.tried},
                      {"without_effect", round.without_effect},
                      {"tap_choices", round.taps.tried},
                      {"tap_choices_possible", round.taps.possible},
                      {"winner", round.winner ? nlohmann::json(*round.winner) : nlohmann::json()},
                      {"tie", round.tie ? nlohmann::json(*round.tie) : nlohmann::json()}});
  }
  if (!result.rounds.empty()) {
    out.lines.push_back(
        fmt::format("{} conversations were searched and the other {} judged; acceptance length: tokens per verify, the target's own "
                    "included; 95 % intervals over conversations, those of the gains wide enough for one false alarm in {:.0f} diagnoses",
                    result.searched, result.judging, 1 / kFalseAlarms));
  }
  out.data = {{"k", k},
              {"conversations", sample.conversations.size()},
              {"tokens", sample.tokens},
              {"rows", sample.rows},
              {"states", sample.slot_names()},
              {"too_little", result.too_little},
              {"visible", result.visible},
              {"rounds", rounds}};
  out.charts = breakdown(result, sample, validated);
  for (const Chart& chart : out.charts) {
    if (chart.name == "readings" || chart.name == "length_histogram") continue;  // one stands above, the other is for the eye
    out.lines.push_back("");
    out.lines.push_back(chart.title + ":");
    for (std::string& line : chart_lines(chart)) out.lines.push_back(std::move(line));
  }
  return out;
}

}  // namespace aerie
