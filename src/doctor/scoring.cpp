#include "doctor/scoring.h"

#include <algorithm>

namespace aerie {
namespace {

constexpr int kFirstBucket = 64;

ScoreDetail detail_of(const TraceReplay& replay, const ReplaySummary& sums, int k) {
  ScoreDetail out;
  for (const StepAcceptance& step : sums.steps) out.right.push_back({static_cast<double>(step.matched), static_cast<double>(step.starts)});
  out.accepted.resize(static_cast<size_t>(k));
  for (const AnswerWalk& walk : replay.walks) {
    for (const int accepted : walk.accepted) {
      for (int s = 0; s < k; ++s) {
        out.accepted[static_cast<size_t>(s)].count += 1;
        out.accepted[static_cast<size_t>(s)].sum += accepted > s ? 1 : 0;
      }
    }
  }
  for (const ReplayStart& start : replay.starts) {
    if (start.available == 0) continue;
    RatioPart& part = out.by_position[position_bucket(start.row)];
    part.count += 1;
    part.sum += start.matches & 1;
  }
  return out;
}

}  // namespace

size_t position_bucket(int position) {
  size_t out = 0;
  while (out + 1 < kPositionBuckets && position >= kFirstBucket << out) ++out;
  return out;
}

std::string position_bucket_name(size_t bucket) {
  const int from = bucket == 0 ? 0 : kFirstBucket << (bucket - 1);
  return bucket + 1 == kPositionBuckets ? fmt::format("{}-", from) : fmt::format("{}-{}", from, (kFirstBucket << bucket) - 1);
}

void Score::append(const Score& more) {
  first.insert(first.end(), more.first.begin(), more.first.end());
  length.insert(length.end(), more.length.begin(), more.length.end());
  detail.insert(detail.end(), more.detail.begin(), more.detail.end());
  summary.add(more.summary);
}

Expected<ReadingScorer> ReadingScorer::create(const DraftCheckpoint& checkpoint, const Reading& declared, TargetTables target,
                                              FinalNorm norm, const Sample& sample, const kernels::Kernels& kernels, ThreadPool& pool) {
  ReadingScorer out(checkpoint, std::move(target), std::move(norm), sample, kernels, pool);
  AERIE_ASSIGN(out.declared_, out.open(declared));
  out.declared_norms_ = declared.norms;
  return out;
}

Expected<Drafter> ReadingScorer::open(const Reading& reading) const {
  DraftCheckpoint read = *checkpoint_;
  read.spec = reading.spec;
  for (const auto& [name, values] : reading.norms) {
    TensorView& view = read.tensors[name];
    view.name = name;
    view.type = DType::kF32;
    view.shape = {values.size()};
    view.data = {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
  }
  return Drafter::create(read, target_, DraftPrecision::kServed);
}

Expected<Drafter> ReadingScorer::drafter(const Reading& reading) const {
  if (!knows_final_norm() &&
      std::any_of(reading.feature.begin(), reading.feature.end(), [](const SlotUse& use) { return use.final_normed; })) {
    return invalid_argument(
        "the drafter reads the final state after the target's norm, which the trace holds before it: give the target with -m");
  }
  const bool same_norms = reading.spec.feature_norm == declared_->spec().feature_norm && reading.norms == declared_norms_;
  return same_norms ? declared_->read_as(reading.spec) : open(reading);
}

void ReadingScorer::state(const Trace& trace, size_t position, const SlotUse& use, uint16_t* out) const {
  const std::span<const uint16_t> stored = trace.state(position, use.slot);
  if (!use.final_normed || norm_.weight.empty()) {
    std::copy(stored.begin(), stored.end(), out);
    return;
  }
  std::vector<float> row(stored.size());
  std::transform(stored.begin(), stored.end(), row.begin(), bf16_to_f32);
  ops_.kernels().rms_norm(row.data(), norm_.weight.data(), norm_.eps, static_cast<int>(row.size()), row.data());
  std::transform(row.begin(), row.end(), out, f32_to_bf16);
}

std::vector<uint16_t> ReadingScorer::features(const Reading& reading, const Trace& trace) const {
  const size_t width = static_cast<size_t>(trace.hidden), taps = reading.feature.size();
  std::vector<uint16_t> out(trace.length() * taps * width);
  for (size_t t = 0; t < trace.length(); ++t) {
    const int64_t from = std::clamp<int64_t>(static_cast<int64_t>(t) + reading.feature_shift, 0, static_cast<int64_t>(trace.length()) - 1);
    for (size_t i = 0; i < taps; ++i) state(trace, static_cast<size_t>(from), reading.feature[i], out.data() + (t * taps + i) * width);
  }
  return out;
}

ReplayOptions replay_options(const Reading& reading, int k) {
  ReplayOptions out;
  out.steps = k;
  out.batch_rows = 256;
  out.token_shift = reading.token_shift;
  out.step_stride = reading.step_stride;
  out.step_offset = reading.step_offset;
  return out;
}

Expected<Score> ReadingScorer::score(const Reading& reading, std::span<const size_t> conversations, int k) {
  AERIE_ASSIGN(const Drafter drafter, drafter(reading));
  const ReplayOptions options = replay_options(reading, k);
  Score out;
  for (const size_t c : conversations) {
    const Conversation& conversation = sample_->conversations[c];
    const std::vector<uint16_t> rows = features(reading, conversation.trace);
    auto replay = replay_trace(drafter, ops_, {conversation.trace.tokens, conversation.trace.mask, rows}, options);
    if (!replay.ok()) return replay.status().with_context(conversation.id);
    ReplaySummary own;
    own.add(*replay, k);
    out.summary.add(own);
    out.first.push_back({static_cast<double>(own.steps[0].matched), static_cast<double>(own.steps[0].starts)});
    out.length.push_back({static_cast<double>(own.accepted + own.cycles), static_cast<double>(own.cycles)});
    out.detail.push_back(detail_of(*replay, own, k));
  }
  return out;
}

}  // namespace aerie
