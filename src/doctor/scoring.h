// How well a drafter drafts under one reading, on the conversations of a sample.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "doctor/hypothesis.h"
#include "doctor/sample.h"
#include "doctor/statistics.h"
#include "eagle3/drafter.h"

namespace aerie {

/// The target's final norm, where the target was given.
struct FinalNorm {
  std::vector<float> weight;  // [Ht], empty: not known
  float eps = 1e-5f;
};

/// Positions of a conversation that are looked at together: below 64, 128, 256, 512, 1024, and the rest.
inline constexpr size_t kPositionBuckets = 6;
/// The bucket of a position, and its name ("64-127").
size_t position_bucket(int position);
std::string position_bucket_name(size_t bucket);

/// One conversation, step by step.
struct ScoreDetail {
  std::vector<RatioPart> right;  // [K] drafts of step s that match, over rows, fed with the target's own tokens: what a validation counts
  std::vector<RatioPart> accepted;  // [K] cycles of the walk that accept more than s drafts, over cycles: what an engine counts
  std::array<RatioPart, kPositionBuckets> by_position;  // first drafts that match, over rows, by position of the row
};

/// Over some conversations, in the order asked for.
struct Score {
  std::vector<RatioPart> first;   // drafts of step 0 that match, over rows: step-0 acceptance, fed with the target's own tokens
  std::vector<RatioPart> length;  // tokens emitted over cycles of the walk: acceptance length, the target's own token included
  std::vector<ScoreDetail> detail;
  ReplaySummary summary;

  void append(const Score& more);
};

/// How a reading is replayed, with k drafts per cycle.
ReplayOptions replay_options(const Reading& reading, int k);

/// Replays a sample under readings of one checkpoint. Not thread-safe.
class ReadingScorer {
 public:
  /// The checkpoint, sample, kernels and pool must outlive the scorer. `declared` is the reading that the weights are opened with.
  static Expected<ReadingScorer> create(const DraftCheckpoint& checkpoint, const Reading& declared, TargetTables target, FinalNorm norm,
                                        const Sample& sample, const kernels::Kernels& kernels, ThreadPool& pool);

  /// The numbers of the conversations to replay, with k drafts per cycle. Refused: readings whose weights the checkpoint has not.
  Expected<Score> score(const Reading& reading, std::span<const size_t> conversations, int k);

  /// The drafter's input bf16 [T, k*Ht] of a conversation.
  std::vector<uint16_t> features(const Reading& reading, const Trace& trace) const;
  /// One stored state as the reading takes it, rounded to bf16. [Ht]
  void state(const Trace& trace, size_t position, const SlotUse& use, uint16_t* out) const;

  Expected<Drafter> drafter(const Reading& reading) const;
  const DraftCheckpoint& checkpoint() const { return *checkpoint_; }
  const Sample& sample() const { return *sample_; }
  bool knows_final_norm() const { return !norm_.weight.empty(); }
  CpuOps& ops() { return ops_; }

 private:
  ReadingScorer(const DraftCheckpoint& checkpoint, TargetTables target, FinalNorm norm, const Sample& sample,
                const kernels::Kernels& kernels, ThreadPool& pool)
      : checkpoint_(&checkpoint), target_(std::move(target)), norm_(std::move(norm)), sample_(&sample), ops_(kernels, pool) {}
  Expected<Drafter> open(const Reading& reading) const;

  const DraftCheckpoint* checkpoint_;
  TargetTables target_;
  FinalNorm norm_;
  const Sample* sample_;
  CpuOps ops_;
  std::optional<Drafter> declared_;
  std::map<std::string, std::vector<float>> declared_norms_;
};

}  // namespace aerie
