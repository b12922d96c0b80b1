#include "doctor/engine_features.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace aerie {
namespace {

constexpr size_t kRowsOfARequest = 48;  // spread over it
constexpr int kFarthest = 2;            // positions to either side that are tried
/// Squared distances, relative to the state's own square. Another engine's rounding (bf16, other kernels) stays below the first; the
/// states of neighbouring blocks lie above the second.
constexpr double kSame = 4e-3, kOther = 0.02;
constexpr double kRowsThatAgree = 0.98;

struct Place {
  SlotUse use;
  int shift = 0;
};

/// A state that one tap may hold, and how far the tap is from it.
struct Candidate {
  Place place;
  double distance = 0;  // median over the rows, so that a few broken ones do not hide what the others hold
  double scale = 0;     // by which the state would have to be multiplied, median
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool finite(uint16_t value) { return (value & 0x7f80) != 0x7f80; }

class Matcher {
 public:
  Matcher(const std::vector<EngineCase>& cases, const ReadingScorer& scorer, const Reading& reading, const HypothesisFacts& facts)
      : cases_(cases), scorer_(scorer), reading_(reading), facts_(facts), width_(static_cast<size_t>(reading.spec.target_hidden)) {}

  FeatureMatch run() {
    out_.stage.name = "features";
    out_.stage.what = "rows whose features are the stored states";
    if (!look_at_values()) return std::move(out_);
    choose_rows();
    if (rows_.empty()) {
      out_.stage.what = "rows that are finite and not empty; which states they are cannot be said, none are stored";
      return std::move(out_);
    }
    std::vector<Candidate> best;
    for (size_t tap = 0; tap < reading_.feature.size(); ++tap) best.push_back(best_for(tap));
    judge(best);
    return std::move(out_);
  }

 private:
  struct Row {
    const EngineCase* from;
    size_t number;
  };

  /// NaN, infinity and nothing but zeros need no stored states.
  bool look_at_values() {
    int64_t rows = 0, broken = 0, empty = 0;
    std::vector<int64_t> empty_taps(reading_.feature.size(), 0);
    for (const EngineCase& c : cases_) {
      for (size_t r = 0; r < c.request.rows.size(); ++r, ++rows) {
        const std::span<const uint16_t> row = feature(c, r);
        broken += std::all_of(row.begin(), row.end(), finite) ? 0 : 1;
        size_t taps = 0;
        for (size_t tap = 0; tap < empty_taps.size(); ++tap) {
          const auto part = row.subspan(tap * width_, width_);
          const bool is_empty = std::all_of(part.begin(), part.end(), [](uint16_t v) { return (v & 0x7fff) == 0; });
          empty_taps[tap] += is_empty ? 1 : 0;
          taps += is_empty ? 1 : 0;
        }
        empty += taps == empty_taps.size() ? 1 : 0;
      }
    }
    out_.stage.compared = rows;
    if (broken > 0) {
      out_.stage.agreed = rows - broken;
      return say("engine-feature-not-finite",
                 fmt::format("{} of {} rows that the engine feeds its drafter hold NaN or infinity", broken, rows),
                 "look at what the engine captures: uninitialised memory, an overflow in half precision, or a row that nobody wrote");
    }
    if (rows > 0 && empty * 2 > rows) {
      out_.stage.agreed = rows - empty;
      return say("engine-feature-empty", fmt::format("{} of {} rows that the engine feeds its drafter are all zeros", empty, rows),
                 "the engine does not capture the target's states: its model class has no such hook, or it was not switched on");
    }
    for (size_t tap = 0; tap < empty_taps.size(); ++tap) {
      if (rows == 0 || empty_taps[tap] * 2 <= rows) continue;
      out_.stage.agreed = rows - empty_taps[tap];
      return say(
          "engine-feature-empty",
          fmt::format("tap {} of the features that the engine feeds its drafter is all zeros in {} of {} rows", tap, empty_taps[tap], rows),
          "the engine does not capture this state: its id lies outside what its model class hands out");
    }
    out_.stage.agreed = rows;
    return true;
  }

  bool say(const std::string& code, const std::string& text, const std::string& fix, Severity severity = Severity::kError) {
    out_.findings.push_back({severity, code, text, fix});
    return false;
  }

  /// Rows of requests whose states are stored, kFarthest away from where the stored ones end.
  void choose_rows() {
    for (const EngineCase& c : cases_) {
      if (!c.stored) continue;
      std::vector<size_t> usable;
      for (size_t r = 0; r < c.request.rows.size(); ++r) {
        const int64_t at = c.request.rows[r].position;
        if (at >= kFarthest && at + kFarthest < static_cast<int64_t>(std::min(c.common, c.stored->trace.length()))) usable.push_back(r);
      }
      const size_t count = std::min(usable.size(), kRowsOfARequest);
      for (size_t i = 0; i < count; ++i) rows_.push_back({&c, usable[i * usable.size() / count]});
    }
  }

  std::span<const uint16_t> feature(const EngineCase& c, size_t row) const {
    const size_t all = static_cast<size_t>(c.request.width);
    return {c.request.features.data() + row * all, all};
  }

  /// Of what a row feeds as x and a state y: |x - y|^2, |x|^2, |y|^2, x.y.
  struct Sums {
    double apart = 0, xx = 0, yy = 0, xy = 0;
  };
  Sums sums(const Row& row, size_t tap, const Place& place) const {
    const auto part = feature(*row.from, row.number).subspan(tap * width_, width_);
    const int at = row.from->request.rows[row.number].position + place.shift;
    std::vector<uint16_t> state(width_);
    scorer_.state(row.from->stored->trace, static_cast<size_t>(at), place.use, state.data());
    Sums out;
    for (size_t c = 0; c < width_; ++c) {
      const double x = bf16_to_f32(part[c]), y = bf16_to_f32(state[c]);
      out.apart += (x - y) * (x - y);
      out.xx += x * x;
      out.yy += y * y;
      out.xy += x * y;
    }
    return out;
  }

  /// The distance of each row's tap from a state, and the scale that would bring them closest.
  Candidate measure(size_t tap, const Place& place, std::vector<double>* of_rows = nullptr) const {
    std::vector<double> distances, scales;
    for (const Row& row : rows_) {
      const Sums s = sums(row, tap, place);
      distances.push_back(s.yy > 0 ? s.apart / s.yy : (s.apart > 0 ? 1.0 : 0.0));
      scales.push_back(s.yy > 0 ? s.xy / s.yy : 0);
    }
    if (of_rows != nullptr) *of_rows = distances;
    return {place, median(distances), median(scales)};
  }

  Candidate best_for(size_t tap) const {
    Candidate best = measure(tap, {reading_.feature[tap], 0});
    if (best.distance <= kSame) return best;
    for (size_t slot = 0; slot < facts_.slots.size(); ++slot) {
      for (const bool normed : {false, true}) {
        if (normed && (!scorer_.knows_final_norm() || facts_.slots[slot].norm == StateSlot::Norm::kNormed)) continue;
        for (int shift = -kFarthest; shift <= kFarthest; ++shift) {
          const Candidate candidate = measure(tap, {{static_cast<int>(slot), normed}, shift});
          if (candidate.distance < best.distance) best = candidate;
        }
      }
    }
    return best;
  }

  std::string name(const SlotUse& use) const { return feature_text({use}, facts_.slots); }

  void judge(const std::vector<Candidate>& best) {
    // The rows as declared, by themselves: a fault may stand in some rows only.
    std::vector<bool> agree(rows_.size(), true);
    bool same_shift = true, known = true, same_states = true;
    for (size_t tap = 0; tap < best.size(); ++tap) {
      std::vector<double> distances;
      measure(tap, {reading_.feature[tap], best.front().place.shift}, &distances);
      for (size_t i = 0; i < distances.size(); ++i) agree[i] = agree[i] && distances[i] <= kOther;
      same_states = same_states && best[tap].place.use == reading_.feature[tap];
      same_shift = same_shift && best[tap].place.shift == best.front().place.shift;
      known = known && best[tap].distance <= kOther;
    }
    const bool as_declared = same_states && same_shift;
    const int64_t agreed = std::count(agree.begin(), agree.end(), true);
    std::set<const EngineCase*> requests, broken;
    for (size_t i = 0; i < rows_.size(); ++i) {
      requests.insert(rows_[i].from);
      if (!agree[i]) broken.insert(rows_[i].from);
    }
    out_.stage.compared = static_cast<int64_t>(rows_.size());
    out_.stage.agreed = as_declared ? agreed : 0;
    out_.shift = same_shift ? best.front().place.shift : 0;
    if (as_declared && known && out_.stage.share() >= kRowsThatAgree) return;
    std::vector<std::string> found;
    std::vector<SlotUse> feature;
    for (const Candidate& c : best) {
      feature.push_back(c.place.use);
      found.push_back(fmt::format("{}{} (distance {:.4f})", name(c.place.use),
                                  c.place.shift == 0 ? "" : fmt::format(" {:+d} position", c.place.shift), c.distance));
    }
    const std::string declared = feature_text(reading_.feature, facts_.slots);
    if (!known) {
      if (!scaled(best, declared)) unknown(found, declared);
      return;
    }
    if (as_declared) {
      say("engine-feature-rows",
          fmt::format("{} of {} rows that the engine feeds its drafter, in {} of {} requests, are not the stored states; the others are",
                      out_.stage.compared - agreed, out_.stage.compared, broken.size(), requests.size()),
          "look at which rows they are: after a cache hit, after a rejected draft, at the seams of prompt chunks");
      return;
    }
    if (same_shift && !same_states) {
      say("engine-wrong-taps", fmt::format("the engine feeds its drafter {}, where the files declare {}", fmt::join(found, ", "), declared),
          fmt::format("make the engine capture {}: its layer ids count otherwise, or it does not read those of the files", declared));
      return;
    }
    say("engine-feature-shift", fmt::format("the taps of one row are of different positions: {}", fmt::join(found, ", ")),
        "all taps of a row belong to one position");
  }

  void unknown(const std::vector<std::string>& found, const std::string& declared) {
    out_.stage.agreed = 0;
    say("engine-feature-unknown",
        fmt::format("what the engine feeds its drafter is none of the stored states: closest are {}, where the files declare {}",
                    fmt::join(found, ", "), declared),
        "capture more boundaries of these tokens, and make sure that both ran the same weights in the same precision: another "
        "quantisation, a "
        "rotation of the residual stream, another target",
        Severity::kWarning);
  }

  /// The right states, but multiplied: a norm that was applied before the drafter saw them, or left out.
  bool scaled(const std::vector<Candidate>& best, const std::string& declared) {
    for (size_t tap = 0; tap < best.size(); ++tap) {
      const double left = left_after_scaling(tap);
      if (left > kOther) return false;
    }
    out_.stage.agreed = 0;
    say("engine-feature-scaled",
        fmt::format("the engine feeds its drafter the declared states ({}) times {:.3f}: a norm was applied to them, or a scale", declared,
                    best.front().scale),
        "hand the drafter the residual stream as it is");
    return true;
  }

  /// What is left of the distance where every row may have its own scale.
  double left_after_scaling(size_t tap) const {
    std::vector<double> left;
    for (const Row& row : rows_) {
      const Sums s = sums(row, tap, {reading_.feature[tap], 0});
      left.push_back(s.xx > 0 && s.yy > 0 ? 1 - s.xy * s.xy / (s.xx * s.yy) : 1);
    }
    return median(left);
  }

  const std::vector<EngineCase>& cases_;
  const ReadingScorer& scorer_;
  const Reading& reading_;
  const HypothesisFacts& facts_;
  const size_t width_;
  std::vector<Row> rows_;
  FeatureMatch out_;
};

}  // namespace

FeatureMatch match_features(const std::vector<EngineCase>& cases, const ReadingScorer& scorer, const Reading& reading,
                            const HypothesisFacts& facts) {
  return Matcher(cases, scorer, reading, facts).run();
}

}  // namespace aerie
