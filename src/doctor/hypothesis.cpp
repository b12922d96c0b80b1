#include "doctor/hypothesis.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "eagle3/spec_fields.h"

namespace aerie {
namespace {

/// "it was 2,15,27, from eagle_aux_hidden_state_layer_ids".
std::string origin(const DraftSpec& spec, const std::string& field) {
  const auto it = spec.provenance.find(field);
  if (it == spec.provenance.end() || it->second.why.empty()) return "";
  switch (it->second.source) {
    case Source::kRead: return fmt::format(" (read from {})", it->second.why);
    case Source::kInferred: return fmt::format(" (inferred: {})", it->second.why);
    case Source::kDefaulted: break;
  }
  return fmt::format(" (not in the files: {})", it->second.why);
}

std::string field_text(const DraftSpec& spec, const std::string& field) {
  for (const SpecField& f : spec_fields(spec)) {
    if (f.name == field) return f.text();
  }
  return "";
}

class List {
 public:
  explicit List(const Reading& base) : base_(base) {}

  /// A field of the spec.
  void field(const std::string& field, const std::function<void(Reading&)>& change) {
    Reading reading = base_;
    change(reading);
    const std::string was = field_text(base_.spec, field), is = field_text(reading.spec, field);
    if (was == is) return;
    add(field, fmt::format("{} {}", field, is), fmt::format("set {} to {}, in place of {}{}", field, is, was, origin(base_.spec, field)),
        std::move(reading));
  }

  void other(const std::string& axis, const std::string& name, const std::string& mend, const std::function<void(Reading&)>& change) {
    Reading reading = base_;
    change(reading);
    add(axis, name, mend, std::move(reading));
  }

  /// One that leaves out a tensor of the files.
  void without(const std::string& axis, const std::string& name, const std::string& mend, const std::function<void(Reading&)>& change) {
    const size_t before = list_.size();
    other(axis, name, mend, change);
    if (list_.size() > before) list_.back().discards = true;
  }

  std::vector<Hypothesis> take() { return std::move(list_); }

 private:
  void add(const std::string& axis, const std::string& name, const std::string& mend, Reading reading) {
    if (!reading.spec.validate().ok()) return;
    list_.push_back({axis, name, mend, std::move(reading), false, false});
  }

  const Reading& base_;
  std::vector<Hypothesis> list_;
};

std::vector<float> norm_of(const Reading& base, const DraftCheckpoint& checkpoint, const std::string& name, size_t width) {
  if (const auto it = base.norms.find(name); it != base.norms.end()) return it->second;
  if (const auto it = checkpoint.tensors.find(name); it != checkpoint.tensors.end()) {
    auto values = to_float(it->second);
    if (values.ok() && values->size() == width) return *std::move(values);
  }
  return std::vector<float>(width, 1.0f);
}

void feature_norms(const Reading& base, const DraftCheckpoint& checkpoint, List& list) {
  const size_t taps = base.spec.taps.size(), width = static_cast<size_t>(base.spec.target_hidden);
  std::vector<float> all;  // the weights in the order of the taps, 1 where there are none
  if (base.spec.feature_norm == FeatureNorm::kPerTap) {
    for (size_t i = 0; i < taps; ++i) {
      const std::vector<float> part = norm_of(base, checkpoint, "fc_norm." + std::to_string(i), width);
      all.insert(all.end(), part.begin(), part.end());
    }
  } else {
    all = norm_of(base, checkpoint, "input_norm", taps * width);
  }
  list.field("feature_norm", [](Reading& r) { r.spec.feature_norm = FeatureNorm::kNone; });
  list.field("feature_norm", [&](Reading& r) {
    r.spec.feature_norm = FeatureNorm::kConcat;
    r.norms["input_norm"] = all;
  });
  list.field("feature_norm", [&](Reading& r) {
    r.spec.feature_norm = FeatureNorm::kPerTap;
    for (size_t i = 0; i < taps; ++i) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i * width);
      r.norms["fc_norm." + std::to_string(i)].assign(begin, begin + static_cast<std::ptrdiff_t>(width));
    }
  });
}

void rope(const Reading& base, const HypothesisFacts& facts, List& list) {
  std::vector<float> thetas = {1e4f, 1e5f, 5e5f, 1e6f};
  if (facts.target_rope_theta > 0) thetas.push_back(facts.target_rope_theta);
  std::sort(thetas.begin(), thetas.end());
  thetas.erase(std::unique(thetas.begin(), thetas.end()), thetas.end());
  for (const float theta : thetas) {
    list.field("rope_theta", [&](Reading& r) { r.spec.rope_theta = theta; });
  }
  list.field("rope_scaling", [](Reading& r) { r.spec.rope_scaling = {}; });
  if (base.spec.rope_scaling.kind == RopeScalingKind::kNone) {
    // Scalings that a drafter is likely to have lost and that change short contexts too: the linear one, and Llama 3.1's.
    for (const float factor : {4.0f, 8.0f}) {
      list.field("rope_scaling", [&](Reading& r) {
        r.spec.rope_scaling.kind = RopeScalingKind::kLinear;
        r.spec.rope_scaling.factor = factor;
      });
    }
    list.field("rope_scaling", [](Reading& r) {
      r.spec.rope_scaling.kind = RopeScalingKind::kLlama3;
      r.spec.rope_scaling.factor = 8;
      r.spec.rope_scaling.original_max_positions = 8192;
    });
  }
  list.field("rope_interleaved", [](Reading& r) { r.spec.rope_interleaved = !r.spec.rope_interleaved; });
}

void vocabulary(const Reading& base, List& list) {
  const DraftSpec& spec = base.spec;
  if (spec.d2t.empty()) return;
  const auto map = [&](const std::string& name, const std::string& mend, const std::function<int64_t(int64_t, int64_t)>& change) {
    std::vector<int32_t> out;
    for (size_t d = 0; d < spec.d2t.size(); ++d) {
      const int64_t target = change(static_cast<int64_t>(d), spec.d2t[d]);
      if (target < 0 || target >= spec.vocab) return;
      out.push_back(static_cast<int32_t>(target));
    }
    if (out == spec.d2t) return;
    list.other("d2t", name, mend, [&](Reading& r) { r.spec.d2t = out; });
  };
  const std::string from = origin(spec, "d2t");
  map("d2t holds offsets", fmt::format("d2t holds offsets (target id = d + d2t[d]), it was taken for absolute ids{}", from),
      [](int64_t d, int64_t target) { return target + d; });
  map("d2t holds absolute ids", fmt::format("d2t holds absolute ids, it was taken for offsets (target id = d + d2t[d]){}", from),
      [](int64_t d, int64_t target) { return target - d; });
  map("d2t off by one (-1)", "every entry of d2t is one too high", [](int64_t, int64_t target) { return target - 1; });
  map("d2t off by one (+1)", "every entry of d2t is one too low", [](int64_t, int64_t target) { return target + 1; });
  std::vector<int32_t> sorted = spec.d2t;
  std::sort(sorted.begin(), sorted.end());
  map("d2t ascending", "the draft vocabulary is in ascending order of target ids (as t2d has it): sort d2t",
      [&](int64_t d, int64_t) { return sorted[static_cast<size_t>(d)]; });
  map("d2t is the first ids", "the draft vocabulary is the target's first ids: d2t is 0 everywhere (as offsets)",
      [](int64_t d, int64_t) { return d; });
}

void alignment(List& list) {
  list.other("feature_shift", "states one position late",
             "pair token i+1 with the state after token i: the states in use are those of position i-1; if an engine did not feed them so, "
             "the trace's states are one row late",
             [](Reading& r) { r.feature_shift = 1; });
  list.other(
      "feature_shift", "states one position early",
      "the drafter was trained with token i+1 beside the state of position i-1: feed it so, or train it again with the usual pairing",
      [](Reading& r) { r.feature_shift = -1; });
  list.other("token_shift", "token i beside the state of position i",
             "the drafter was trained with token i beside the state of position i, where engines feed token i+1: train it again with the "
             "usual pairing",
             [](Reading& r) { r.token_shift = -1; });
  list.other(
      "positions", "every draft step at the position of the first",
      "the drafter was trained with the same RoPE position at every step: engines count up, so train it again with positions that do",
      [](Reading& r) { r.step_stride = 0; });
  list.other("positions", "later steps one position further", "the drafter expects the steps after the first one position further on",
             [](Reading& r) { r.step_offset = 1; });
}

}  // namespace

Expected<std::vector<SlotUse>> declared_feature(const DraftSpec& spec, const std::vector<StateSlot>& slots) {
  std::vector<SlotUse> out;
  int aux = 0, final_slot = -1;
  bool boundaries = false;
  for (size_t s = 0; s < slots.size(); ++s) {
    aux += slots[s].kind == StateSlot::Kind::kAux ? 1 : 0;
    boundaries = boundaries || slots[s].kind == StateSlot::Kind::kBoundary;
    if (slots[s].kind == StateSlot::Kind::kFinal) final_slot = static_cast<int>(s);
  }
  if (!boundaries) {
    const bool with_final = !spec.taps.empty() && spec.taps.back() == kFinalNormed && final_slot >= 0;
    if (static_cast<size_t>(aux) + (with_final ? 1 : 0) != spec.taps.size()) {
      return invalid_argument("the drafter reads {} states a position, the trace holds {} beside the final one", spec.taps.size(), aux);
    }
    for (size_t s = 0; s < slots.size(); ++s) {
      if (slots[s].kind == StateSlot::Kind::kAux) out.push_back({static_cast<int>(s), false});
    }
    if (with_final) out.push_back({final_slot, slots[static_cast<size_t>(final_slot)].norm == StateSlot::Norm::kRaw});
    return out;
  }
  std::vector<std::string> missing;
  int highest = 0;  // the last boundary slot is N
  for (size_t s = 0; s < slots.size(); ++s) {
    if (slots[s].kind == StateSlot::Kind::kBoundary && slots[s].number >= slots[static_cast<size_t>(highest)].number)
      highest = static_cast<int>(s);
  }
  for (const int tap : spec.taps) {
    if (tap == kFinalNormed) {
      out.push_back({highest, true});
      continue;
    }
    const auto at = std::find_if(slots.begin(), slots.end(),
                                 [&](const StateSlot& slot) { return slot.kind == StateSlot::Kind::kBoundary && slot.number == tap; });
    if (at == slots.end()) {
      missing.push_back(boundary_name(tap));
    } else {
      out.push_back({static_cast<int>(at - slots.begin()), false});
    }
  }
  if (missing.empty()) return out;
  std::vector<std::string> there;
  for (const StateSlot& slot : slots) there.push_back(slot.name());
  return invalid_argument("the drafter reads {}, which the trace does not hold (it has {}): capture it too", fmt::join(missing, " and "),
                          fmt::join(there, ", "));
}

Expected<DeclaredFeature> nearest_feature(const DraftSpec& spec, const std::vector<StateSlot>& slots, int blocks) {
  std::vector<int> stored, left;  // boundaries; those that are no tap
  for (const StateSlot& slot : slots) {
    if (slot.kind == StateSlot::Kind::kBoundary) stored.push_back(slot.number);
  }
  const auto has = [](const std::vector<int>& list, int boundary) { return std::find(list.begin(), list.end(), boundary) != list.end(); };
  for (const int boundary : stored) {
    if (!has(spec.taps, boundary)) left.push_back(boundary);
  }
  DraftSpec known = spec;
  DeclaredFeature out;
  for (size_t i = 0; i < spec.taps.size() && !stored.empty(); ++i) {
    int& tap = known.taps[i];
    // The final norm is applied to the highest slot, which need not be N where a person said what the slots are.
    const bool final_there = tap == kFinalNormed && (blocks == 0 || has(stored, blocks));
    if (final_there || has(stored, tap)) continue;
    if (tap == kFinalNormed)
      return invalid_argument("the drafter reads the normed final state, but boundary {} was not captured: capture it too", blocks);
    if (left.empty()) return declared_feature(spec, slots).status();
    const auto nearest = std::min_element(left.begin(), left.end(), [&](int a, int b) { return std::abs(a - tap) < std::abs(b - tap); });
    out.stand_ins.push_back({i, tap, *nearest});
    tap = *nearest;
    left.erase(nearest);
  }
  AERIE_ASSIGN(out.feature, declared_feature(known, slots));
  return out;
}

std::string stand_in_text(const std::vector<StandIn>& stand_ins) {
  std::vector<std::string> out;
  for (const StandIn& s : stand_ins) out.push_back(fmt::format("{} stands for {}", boundary_name(s.used), boundary_name(s.wanted)));
  return fmt::format("{}", fmt::join(out, ", "));
}

std::optional<std::vector<int>> taps_of(const std::vector<SlotUse>& feature, const std::vector<StateSlot>& slots, int blocks) {
  std::vector<int> out;
  for (const SlotUse& use : feature) {
    const StateSlot& slot = slots[static_cast<size_t>(use.slot)];
    if (slot.kind == StateSlot::Kind::kAux) return std::nullopt;
    if (use.final_normed || (slot.kind == StateSlot::Kind::kFinal && slot.norm == StateSlot::Norm::kNormed)) {
      out.push_back(kFinalNormed);
    } else if (slot.kind == StateSlot::Kind::kBoundary) {
      out.push_back(slot.number);
    } else if (slot.norm == StateSlot::Norm::kRaw && blocks > 0) {
      out.push_back(blocks);
    } else {
      return std::nullopt;
    }
  }
  return out;
}

std::string feature_text(const std::vector<SlotUse>& feature, const std::vector<StateSlot>& slots) {
  std::vector<std::string> out;
  for (const SlotUse& use : feature) {
    const std::string name = slots[static_cast<size_t>(use.slot)].name();
    out.push_back(use.final_normed ? name + " through the final norm" : name);
  }
  return fmt::format("{}", fmt::join(out, ", "));
}

std::vector<std::vector<SlotUse>> usual_features(const Reading& base, const HypothesisFacts& facts) {
  std::vector<std::vector<int>> choices;
  const std::vector<int>& declared = base.spec.taps;
  if (declared.size() == 3 && facts.blocks >= 6) choices.push_back(default_taps(LayerIdRule::kBoundary, facts.blocks));
  for (const int shift : {1, -1}) {
    std::vector<int> shifted = declared;
    bool possible = true;
    for (int& tap : shifted) {
      if (tap == kFinalNormed) continue;
      tap += shift;
      possible = possible && tap >= 0;
    }
    if (possible) choices.push_back(shifted);
  }
  std::vector<std::vector<SlotUse>> out;
  for (const std::vector<int>& taps : choices) {
    DraftSpec spec = base.spec;
    spec.taps = taps;
    // A trace that does not say its boundaries gives the declared states for any taps.
    const auto feature = declared_feature(spec, facts.slots);
    if (feature.ok() && *feature != base.feature && std::find(out.begin(), out.end(), *feature) == out.end()) out.push_back(*feature);
  }
  return out;
}

Hypothesis tap_hypothesis(const Reading& base, const std::vector<SlotUse>& feature, const HypothesisFacts& facts) {
  Hypothesis out{"taps", "", "", base};
  out.reading.feature = feature;
  const std::string was = feature_text(base.feature, facts.slots), is = feature_text(feature, facts.slots);
  const auto taps = taps_of(feature, facts.slots, facts.blocks);
  out.name = "taps " + (taps ? fmt::format("{}", fmt::join(*taps, ",")) : is);
  if (!taps) {
    out.mend = fmt::format("feed the drafter {}, in place of {}", is, was);
    return out;
  }
  const std::vector<int> declared = base.spec.taps;
  out.reading.spec.taps = *taps;
  int shift = 0;
  if (taps->size() == declared.size() && !taps->empty() && std::find(taps->begin(), taps->end(), kFinalNormed) == taps->end()) {
    shift = (*taps)[0] - declared[0];
    for (size_t i = 0; i < declared.size(); ++i) shift = (*taps)[i] - declared[i] == shift ? shift : 0;
  }
  std::vector<int> a = *taps, b = declared;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  const std::string kind = a == b        ? "; they are the same states in another order"
                           : shift == 1  ? "; every one is one higher: the ids count block outputs (id k is boundary k + 1)"
                           : shift == -1 ? "; every one is one lower: the ids are boundaries already"
                                         : "";
  out.mend = fmt::format("let the taps be the boundaries {} in place of {}{}{}", fmt::join(*taps, ","), fmt::join(declared, ","),
                         origin(base.spec, "taps"), kind);
  return out;
}

std::vector<Hypothesis> other_hypotheses(const Reading& base, const DraftCheckpoint& checkpoint, const HypothesisFacts& facts) {
  const DraftSpec& spec = base.spec;
  List list(base);
  feature_norms(base, checkpoint, list);
  list.field("norm_before_residual", [](Reading& r) { r.spec.norm_before_residual = !r.spec.norm_before_residual; });
  list.field("feature_normed_twice", [](Reading& r) { r.spec.feature_normed_twice = !r.spec.feature_normed_twice; });
  list.field("feedback",
             [](Reading& r) { r.spec.feedback = r.spec.feedback == Feedback::kPreNorm ? Feedback::kPostNorm : Feedback::kPreNorm; });
  list.field("head_norm", [](Reading& r) { r.spec.head_norm = !r.spec.head_norm; });
  list.field("qk_norm", [](Reading& r) { r.spec.qk_norm = false; });
  rope(base, facts, list);
  vocabulary(base, list);
  list.field("sliding_window", [](Reading& r) { r.spec.sliding_window = 0; });
  for (const int window : {128, 512, 1024, 2048, 4096}) {
    if (spec.sliding_window == 0 && window < facts.longest / 2)
      list.field("sliding_window", [&](Reading& r) { r.spec.sliding_window = window; });
  }
  alignment(list);
  if (facts.has_target && spec.hidden == spec.target_hidden) {
    if (spec.own_embedding) {
      list.without("own_embedding", "the target's embedding",
                   "take the target's embedding: the files' embed_tokens is not what the drafter was trained with",
                   [](Reading& r) { r.spec.own_embedding = false; });
    }
    if (spec.own_head) {
      list.without("own_head", "the target's head", "take the target's head: the files' lm_head is not what the drafter was trained with",
                   [](Reading& r) {
                     r.spec.own_head = false;
                     r.spec.draft_vocab = r.spec.vocab;
                     r.spec.d2t.clear();
                   });
    }
  }
  return list.take();
}

}  // namespace aerie
