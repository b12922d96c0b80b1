#include "doctor/slot_check.h"

#include <algorithm>

namespace aerie {
namespace {

/// The final state gives back nearly all of what the target wrote greedily; less is another state, or sampled text.
constexpr double kGreedyShare = 0.9;

struct Position {
  size_t conversation = 0, at = 0;
};

std::vector<Position> find_positions(const Sample& sample, size_t most) {
  std::vector<Position> all;
  for (size_t c = 0; c < sample.conversations.size(); ++c) {
    const Trace& trace = sample.conversations[c].trace;
    for (size_t t = 0; t + 1 < trace.length(); ++t) {
      if (trace.mask[t + 1] != 0) all.push_back({c, t});
    }
  }
  if (all.size() <= most) return all;
  std::vector<Position> out;
  for (size_t i = 0; i < most; ++i) out.push_back(all[i * all.size() / most]);
  return out;
}

}  // namespace

Expected<std::vector<SlotAgreement>> next_token_agreement(const Sample& sample, ReadingScorer& scorer, const TargetTables& target, int most_rows) {
  const std::vector<Position> positions = find_positions(sample, static_cast<size_t>(std::max(1, most_rows)));
  const size_t width = static_cast<size_t>(sample.hidden), vocab = static_cast<size_t>(target.vocab);
  constexpr size_t kBatch = 32;
  std::vector<SlotAgreement> out;
  std::vector<uint16_t> state(width);
  std::vector<float> rows(kBatch * width), logits(kBatch * vocab);
  for (size_t s = 0; s < sample.slots.size(); ++s) {
    for (const bool normed : {false, true}) {
      const SlotUse use{static_cast<int>(s), normed};
      const bool normed_already = sample.slots[s].norm == StateSlot::Norm::kNormed;
      if (normed && (normed_already || !scorer.knows_final_norm())) continue;
      std::vector<RatioPart> parts(sample.conversations.size());
      for (size_t begin = 0; begin < positions.size(); begin += kBatch) {
        const size_t count = std::min(kBatch, positions.size() - begin);
        for (size_t i = 0; i < count; ++i) {
          const Position& p = positions[begin + i];
          scorer.state(sample.conversations[p.conversation].trace, p.at, use, state.data());
          std::transform(state.begin(), state.end(), rows.begin() + static_cast<std::ptrdiff_t>(i * width), bf16_to_f32);
        }
        target.head(rows.data(), static_cast<int>(count), logits.data());
        for (size_t i = 0; i < count; ++i) {
          const Position& p = positions[begin + i];
          const int best = scorer.ops().kernels().argmax(logits.data() + i * vocab, target.vocab);
          parts[p.conversation].sum += best == sample.conversations[p.conversation].trace.tokens[p.at + 1] ? 1 : 0;
          parts[p.conversation].count += 1;
        }
      }
      out.push_back({use, sample.slots[s].name() + (normed ? " through the final norm" : ""), ratio_interval(parts, 0.95)});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const SlotAgreement& a, const SlotAgreement& b) { return a.agreement.value > b.agreement.value; });
  return out;
}

std::vector<Finding> judge_slots(const std::vector<SlotAgreement>& slots, int final_slot) {
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  const auto it = std::find_if(slots.begin(), slots.end(), [&](const SlotAgreement& slot) { return slot.use.slot == final_slot; });
  if (it == slots.end() || it->agreement.high >= kGreedyShare) return {};
  const std::string text = fmt::format("the target's head over the state that the trace gives out as the final one ({}) gives {} of the next tokens", it->name,
                                       percent(it->agreement.value));
  const SlotAgreement& best = slots.front();
  if (best.use.slot != final_slot && best.agreement.low > it->agreement.high) {
    return {{Severity::kError, "final-state-is-not-final", fmt::format("{}, over {} {}", text, best.name, percent(best.agreement.value)),
             "a drafter trained with that state as its teacher learned another model's words, and its validation accuracy is not against the target: "
             "train with " + best.name}};
  }
  return {{Severity::kWarning, "final-state-is-not-final",
           text + ", where text that the target wrote greedily gives nearly all: it is an earlier block, another target's, or the text was sampled or "
                  "written by another model",
           "capture the state after the last block, and answers that the target wrote"}};
}

ReportSection describe(const std::vector<SlotAgreement>& slots) {
  ReportSection out{"final_state", "which stored state gives the next tokens (the target's head over each)", {}, nlohmann::json::array()};
  for (const SlotAgreement& slot : slots) {
    out.lines.push_back(fmt::format("{:<48} {:5.1f} % [{:.1f}, {:.1f}]", slot.name, 100 * slot.agreement.value, 100 * slot.agreement.low, 100 * slot.agreement.high));
    out.data.push_back({{"state", slot.name}, {"agreement", slot.agreement.value}, {"low", slot.agreement.low}, {"high", slot.agreement.high}});
  }
  return out;
}

}  // namespace aerie
