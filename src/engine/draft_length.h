// How many tokens to draft: measured costs, running acceptance, and the choice that pays best. The choice never changes the output.
#pragma once

#include <array>

#include "base/status.h"

namespace aerie {

class Runtime;

inline constexpr int kMostAutoDrafts = 7;  // verifying nine rows or more costs more than chains of that length bring

/// Seconds of one cycle with K drafts: K draft steps and a forward of K + 1 rows, measured one after the other as they will run,
/// since each pushes the other's weights out of the caches.
struct CycleCosts {
  std::array<double, kMostAutoDrafts + 1> seconds{};  // [K]
};

/// Measures this machine with these models, some 0.3 s; needs a drafter.
Expected<CycleCosts> measure_cycle_costs(Runtime& runtime);

/// Chooses K before each cycle: the one with the most expected tokens a second. Expected tokens are 1 + a_1 + a_1 a_2 + ..., a_j being
/// the share of drafts at depth j that were accepted where the one before was, with the last sixty counting most; a depth that was
/// seldom tried is taken to do as well as the one before it, the first to do well until it was seen. K = 0 is one of the choices:
/// then a short trial with one draft is made now and then, ever more seldom while it fails, so that a drafter that never pays costs
/// next to nothing. The costs are those measured at first, corrected by what cycles take as they run: behind longer contexts, beside
/// other work. Not thread-safe.
class DraftLength {
 public:
  explicit DraftLength(const CycleCosts& costs);

  /// K of the next cycle.
  int choose();
  /// What came of a cycle: `accepted` of `drafted` tokens, in `seconds`.
  void observe(int drafted, int accepted, double seconds);
  /// The estimate of a_depth, depth from 1.
  double acceptance(int depth) const;
  /// The estimate of what a cycle with k drafts takes.
  double cycle_seconds(int k) const;

 private:
  int best() const;

  CycleCosts costs_;                                          // as measured at first
  double plain_;                                              // seconds of a cycle without drafts
  double steepness_ = 1;                                      // how much more drafts add to it than was measured
  std::array<double, kMostAutoDrafts> tried_{}, accepted_{};  // by depth, with older ones fading
  int plain_cycles_ = 0;                                      // since the last draft
  int patience_ = 0;                                          // plain cycles until the next trial
  int trial_left_ = 0;                                        // cycles of the running trial
};

}  // namespace aerie
