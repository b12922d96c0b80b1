// Ways to read a drafter's checkpoint and a trace: what the doctor varies, as data.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "eagle3/checkpoint.h"
#include "eagle3/replay.h"
#include "formats/trace_source.h"

namespace aerie {

/// A stored state that a feature is made of.
struct SlotUse {
  int slot = 0;
  bool final_normed = false;  // through the target's final norm first
  bool operator==(const SlotUse&) const = default;
};

/// One way to read a checkpoint and to feed it from a trace.
struct Reading {
  DraftSpec spec;
  /// Norms under their canonical names that take the place of the checkpoint's or that it has not, e.g. "input_norm".
  std::map<std::string, std::vector<float>> norms;
  std::vector<SlotUse> feature;  // one for each tap
  int feature_shift = 0;         // row i reads the states of position i + feature_shift
  int token_shift = 0;           // see ReplayOptions
  int step_stride = 1, step_offset = 0;
};

/// A reading that differs from another one in one respect.
struct Hypothesis {
  std::string axis;  // "taps", "feature_norm", "rope_theta", ...; readings of one axis exclude each other
  std::string name;  // for people: "rope_theta 1000000"
  std::string mend;  // what to change where it is right
  Reading reading;
  bool discards = false;  // a trained tensor of the files: as good a reading that uses it is the likelier one
  bool usual = false;     // what trainers do unless told otherwise: named where states beside each other cannot be told apart
};

/// A declared tap that was not captured, and the stored boundary that is fed in its place.
struct StandIn {
  size_t tap = 0;  // which of the feature
  int wanted = 0, used = 0;

  int distance() const { return wanted > used ? wanted - used : used - wanted; }
  /// The state of a block farther away says little about the one that it stands for.
  bool near() const { return distance() <= 2; }
};

/// The states that stand for the taps of a spec.
struct DeclaredFeature {
  std::vector<SlotUse> feature;  // one for each tap
  std::vector<StandIn> stand_ins;
};

/// What the hypotheses are drawn up for.
struct HypothesisFacts {
  std::vector<StateSlot> slots;
  int blocks = 0;                  // N, or 0
  int longest = 0;                 // tokens of the longest conversation
  bool has_target = false;         // its embedding and head can stand in
  float target_rope_theta = 0;     // 0: not known
  std::vector<StandIn> stand_ins;  // of the declared feature
};

/// Which stored states are the taps that the spec declares. Where the slots have boundaries, those are looked up; slots that have none
/// are taken in their order. kInvalidArgument names the boundaries to capture, or both numbers of states.
Expected<std::vector<SlotUse>> declared_feature(const DraftSpec& spec, const std::vector<StateSlot>& slots);

/// The same, except that a boundary that was not captured is stood for by the nearest one that was and is no other tap: states of
/// neighbouring blocks hardly differ, so that a search can begin there. `blocks` is N, or 0.
Expected<DeclaredFeature> nearest_feature(const DraftSpec& spec, const std::vector<StateSlot>& slots, int blocks);

/// "boundary 28 stands for boundary 27".
std::string stand_in_text(const std::vector<StandIn>& stand_ins);

/// The taps that a choice of slots amounts to; nothing where a slot's boundary is not known.
std::optional<std::vector<int>> taps_of(const std::vector<SlotUse>& feature, const std::vector<StateSlot>& slots, int blocks);

/// "boundary 2, boundary 15, boundary 27", "aux 1, aux 2, final (after the norm)".
std::string feature_text(const std::vector<SlotUse>& feature, const std::vector<StateSlot>& slots);

/// The hypothesis that `base` reads the wrong states and `feature` are the right ones.
Hypothesis tap_hypothesis(const Reading& base, const std::vector<SlotUse>& feature, const HypothesisFacts& facts);

/// The taps that are likely before any state is looked at: the default 2, N/2, N-3, and the declared ones counted one higher or lower.
/// Without those that were not captured, and without the declared ones.
std::vector<std::vector<SlotUse>> usual_features(const Reading& base, const HypothesisFacts& facts);

/// Every other hypothesis about `base`: norms, residual, feedback, RoPE, d2t, window, alignment of states, tokens and positions, shared
/// tables. Specs that cannot be valid are left out. `checkpoint` has the norms' weights.
std::vector<Hypothesis> other_hypotheses(const Reading& base, const DraftCheckpoint& checkpoint, const HypothesisFacts& facts);

}  // namespace aerie
