#include "doctor/served_check.h"

#include <algorithm>

#include "eagle3/engines/as_served.h"

namespace aerie {
namespace {

/// An engine's reading beside the declared one.
Finding judge_served(const std::string& engine, const Judged& served, const Judged& declared, const std::vector<std::string>& differences,
                     int k) {
  const std::string what = fmt::format("{}", fmt::join(differences, "; "));
  if (served.gain.high < 0 && -served.gain.value >= kLeastGain) {
    return {Severity::kError, "served-otherwise",
            fmt::format("{} runs another forward than the files declare ({}), which costs {:.3f} tokens per verify: acceptance length {} "
                        "against {} at k = {}",
                        engine, what, -served.gain.value, served.length.text(), declared.length.text(), k),
            "write the files so that this engine reads them as declared (aerie inspect --served-by says what it reads), or use an engine "
            "that does"};
  }
  if (served.beats) {
    return {Severity::kError, "declared-otherwise",
            fmt::format("the drafter does better as {} reads it ({}) than as declared: acceptance length {} against {} at k = {}", engine,
                        what, served.length.text(), declared.length.text(), k),
            "the files declare another forward than the drafter was trained with; see the other findings"};
  }
  return {
      Severity::kNote, "served-alike",
      fmt::format("what {} reads otherwise ({}) makes no difference that shows on this trace: acceptance length {} against {} at k = {}",
                  engine, what, served.length.text(), declared.length.text(), k),
      ""};
}

}  // namespace

std::vector<Finding> replay_served(const RawCheckpoint& raw, const EngineVersion& engine, const std::string& target_architecture,
                                   const Reading& declared, const HypothesisFacts& facts, ReadingScorer& scorer, const Judged& base,
                                   int k) {
  std::vector<Finding> out;
  for (const ServedReading& served : read_as_served(drafter_files(raw), engine, {target_architecture, facts.blocks}, &declared.spec)) {
    const auto cannot = [&](const std::string& why) {
      out.push_back({Severity::kNote, "served-not-replayed", fmt::format("what {} runs cannot be replayed: {}", served.engine, why), ""});
    };
    out.insert(out.end(), served.refusals.begin(), served.refusals.end());
    out.insert(out.end(), served.misreadings.begin(), served.misreadings.end());
    if (!served.unknown.empty()) cannot(served.unknown);
    if (!served.spec || served.refuses()) continue;
    if (served.differences.empty()) {
      out.push_back({Severity::kNote, "served-as-declared", fmt::format("{} runs the forward that the files declare", served.engine), ""});
      continue;
    }
    Hypothesis hypothesis{"served", "as " + served.engine + " reads it", "", declared};
    hypothesis.reading.spec = *served.spec;
    hypothesis.reading.norms.clear();
    auto feature = nearest_feature(*served.spec, facts.slots, facts.blocks);
    if (!feature.ok()) {
      cannot(feature.status().message());
      continue;
    }
    const std::vector<StandIn>& stand_ins = feature->stand_ins;
    if (std::any_of(stand_ins.begin(), stand_ins.end(), [](const StandIn& s) { return !s.near(); })) {
      cannot(fmt::format("the trace does not hold the states that it reads, nor any near them ({})", stand_in_text(stand_ins)));
      continue;
    }
    hypothesis.reading.feature = std::move(feature->feature);
    auto judged = judge_reading(scorer, hypothesis, base, k);
    if (!judged.ok()) {
      cannot(judged.status().message());
      continue;
    }
    std::vector<std::string> differences;
    for (const ServedDifference& d : served.differences)
      differences.push_back(fmt::format("{} {} in place of {}", d.field, d.served, d.trained));
    if (!stand_ins.empty()) differences.push_back(stand_in_text(stand_ins) + ", which the trace does not hold");
    Finding finding = judge_served(served.engine, *judged, base, differences, k);
    // Nothing is certain where a neighbour stands for a state, on either side.
    if (finding.severity == Severity::kError && (!stand_ins.empty() || !facts.stand_ins.empty())) finding.severity = Severity::kWarning;
    out.push_back(std::move(finding));
  }
  return out;
}

}  // namespace aerie
