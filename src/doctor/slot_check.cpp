#include "doctor/slot_check.h"

#include <algorithm>

namespace aerie {
namespace {

/// The final state gives back nearly all of what the target wrote greedily; less is another state, or sampled text.
constexpr double kGreedyShare = 0.9;
/// Below this share a state is no candidate for the final one: something of the next word shows in every state.
constexpr double kCandidate = 0.5;

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

/// The target's best token over one stored state, position by position.
std::vector<int32_t> head_words(const Sample& sample, ReadingScorer& scorer, const TargetTables& target, const SlotUse& use,
                                std::span<const Position> positions) {
  const size_t width = static_cast<size_t>(sample.hidden), vocab = static_cast<size_t>(target.vocab);
  constexpr size_t kBatch = 32;
  std::vector<uint16_t> state(width);
  std::vector<float> rows(kBatch * width), logits(kBatch * vocab);
  std::vector<int32_t> out;
  for (size_t begin = 0; begin < positions.size(); begin += kBatch) {
    const size_t count = std::min(kBatch, positions.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      const Position& p = positions[begin + i];
      scorer.state(sample.conversations[p.conversation].trace, p.at, use, state.data());
      std::transform(state.begin(), state.end(), rows.begin() + static_cast<std::ptrdiff_t>(i * width), bf16_to_f32);
    }
    target.head(rows.data(), static_cast<int>(count), logits.data());
    for (size_t i = 0; i < count; ++i) out.push_back(scorer.ops().kernels().argmax(logits.data() + i * vocab, target.vocab));
  }
  return out;
}

}  // namespace

Expected<std::vector<SlotAgreement>> next_token_agreement(const Sample& sample, ReadingScorer& scorer, const TargetTables& target,
                                                          int most_rows) {
  const std::vector<Position> positions = find_positions(sample, static_cast<size_t>(std::max(1, most_rows)));
  std::vector<SlotAgreement> out;
  for (size_t s = 0; s < sample.slots.size(); ++s) {
    for (const bool normed : {false, true}) {
      const SlotUse use{static_cast<int>(s), normed};
      const bool normed_already = sample.slots[s].norm == StateSlot::Norm::kNormed;
      if (normed && (normed_already || !scorer.knows_final_norm())) continue;
      const std::vector<int32_t> words = head_words(sample, scorer, target, use, positions);
      std::vector<RatioPart> parts(sample.conversations.size());
      for (size_t i = 0; i < positions.size(); ++i) {
        const Position& p = positions[i];
        parts[p.conversation].sum += words[i] == sample.conversations[p.conversation].trace.tokens[p.at + 1] ? 1 : 0;
        parts[p.conversation].count += 1;
      }
      out.push_back({use, sample.slots[s].name() + (normed ? " through the final norm" : ""), ratio_interval(parts, 0.95)});
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const SlotAgreement& a, const SlotAgreement& b) { return a.agreement.value > b.agreement.value; });
  return out;
}

Expected<TeacherCost> teacher_cost(const Sample& sample, ReadingScorer& scorer, const TargetTables& target, const Reading& reading,
                                   const SlotUse& teacher, int k, int most_rows) {
  const size_t share = static_cast<size_t>(std::max(1, most_rows)) / sample.conversations.size() + 1;
  AERIE_ASSIGN(const Drafter drafter, scorer.drafter(reading));
  ReplayOptions options = replay_options(reading, 1);
  options.keep_drafts = true;
  TeacherCost out;
  std::vector<RatioPart> length, to_it, right;
  for (const Conversation& conversation : sample.conversations) {
    // The beginning of the first answer: a walk needs positions that follow each other.
    Trace trace = conversation.trace;
    const Answer answer = find_answers(trace.mask).front();
    const size_t end = std::min(static_cast<size_t>(answer.last) + 1, static_cast<size_t>(answer.first) + share);
    trace.tokens.resize(end);
    trace.mask.resize(end);
    std::fill(trace.mask.begin(), trace.mask.begin() + answer.first, uint8_t{0});
    trace.states.resize(end * static_cast<size_t>(trace.slots) * static_cast<size_t>(trace.hidden));
    std::vector<ReplayStart> starts = find_starts(trace.mask, k);
    if (starts.empty()) continue;
    std::vector<Position> positions;  // position row + 1 holds the teacher's word for token row + 2
    for (const ReplayStart& start : starts) positions.push_back({0, static_cast<size_t>(start.row) + 1});
    Sample one;
    one.hidden = sample.hidden;
    one.conversations.push_back({conversation.id, trace, conversation.has_mask});
    const std::vector<int32_t> words = head_words(one, scorer, target, teacher, positions);
    for (size_t i = 0; i < starts.size(); ++i) {
      for (int s = 0; s < starts[i].available; ++s) {
        const size_t at = i + static_cast<size_t>(s);
        if (words[at] == trace.tokens[positions[at].at + 1]) starts[i].matches |= 1u << s;
      }
      starts[i].accepted = accepted_at(starts[i]);
    }
    RatioPart walk;
    for (const Answer& a : find_answers(trace.mask)) {
      for (const int accepted : walk_answer(a, starts).accepted) {
        walk.sum += accepted + 1;
        walk.count += 1;
      }
    }
    const std::vector<uint16_t> features = scorer.features(reading, trace);
    AERIE_ASSIGN(const TraceReplay replay, replay_trace(drafter, scorer.ops(), {trace.tokens, trace.mask, features}, options));
    RatioPart matched, agreed;
    for (size_t i = 0; i < starts.size(); ++i) {
      matched.sum += replay.drafts[i] == trace.tokens[positions[i].at + 1] ? 1 : 0;
      agreed.sum += replay.drafts[i] == words[i] ? 1 : 0;
    }
    matched.count = agreed.count = static_cast<double>(starts.size());
    length.push_back(walk);
    to_it.push_back(agreed);
    right.push_back(matched);
    out.rows += static_cast<int>(starts.size());
  }
  out.ceiling = ratio_interval(length, 0.95);
  out.right_to_it = ratio_interval(to_it, 0.95);
  out.right = ratio_interval(right, 0.95);
  return out;
}

void add_cost(Finding& finding, const TeacherCost& cost, int k) {
  finding.text += fmt::format(
      "; drafts that were that teacher's words would have an acceptance length of {} at k = {}, where the target's own would have {}; "
      "counted against that teacher, as its trainer's validation counts, this drafter's first draft is right {}, against the "
      "target {} ({} rows)",
      cost.ceiling.text(), k, k + 1, cost.right_to_it.percent(), cost.right.percent(), cost.rows);
}

const SlotAgreement* best_of_slot(const std::vector<SlotAgreement>& slots, int slot) {
  const auto it = std::find_if(slots.begin(), slots.end(), [&](const SlotAgreement& agreement) { return agreement.use.slot == slot; });
  return it == slots.end() ? nullptr : &*it;
}

std::vector<Finding> judge_slots(const std::vector<SlotAgreement>& slots, int final_slot, bool sampled) {
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  const SlotAgreement* it = best_of_slot(slots, final_slot);
  if (it == nullptr || it->agreement.high >= kGreedyShare) return {};
  const std::string text = fmt::format("the target's head over the state that was taken for the final one ({}) gives {} of the next tokens",
                                       it->name, percent(it->agreement.value));
  const SlotAgreement& best = slots.front();
  if (best.use.slot != final_slot && best.agreement.value >= kCandidate && best.agreement.low > it->agreement.high) {
    return {{Severity::kError, "final-state-is-not-final", fmt::format("{}, over {} {}", text, best.name, percent(best.agreement.value)),
             "a drafter trained with that state as its teacher learned another model's words, and its validation accuracy is not against "
             "the target: "
             "train with " +
                 best.name}};
  }
  if (sampled) return {};
  return {{Severity::kWarning, "final-state-is-not-final",
           text + ", where text that the target wrote greedily gives nearly all: it is an earlier block, another target's, or the text was "
                  "sampled or "
                  "written by another model",
           "capture the state after the last block, and answers that the target wrote"}};
}

ReportSection describe(const std::vector<SlotAgreement>& slots) {
  ReportSection out{"final_state", "which stored state gives the next tokens (the target's head over each)", {}, nlohmann::json::array()};
  for (const SlotAgreement& slot : slots) {
    out.lines.push_back(fmt::format("{:<48} {:5.1f} % [{:.1f}, {:.1f}]", slot.name, 100 * slot.agreement.value, 100 * slot.agreement.low,
                                    100 * slot.agreement.high));
    out.data.push_back(
        {{"state", slot.name}, {"agreement", slot.agreement.value}, {"low", slot.agreement.low}, {"high", slot.agreement.high}});
  }
  return out;
}

}  // namespace aerie
