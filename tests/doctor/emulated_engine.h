// An engine in thirty lines that serves a drawn conversation, right or with a fault, and records what its drafter was handed.
#pragma once

#include <functional>

#include "doctor/engine_check.h"
#include "drawn_trace.h"

namespace aerie {

struct EmulatedEngine {
  Reading reading;  // what it feeds its drafter, and how it runs it
  int k = 3;
  int position_offset = 0;       // of every row
  bool keep_draft_keys = false;  // in the cache, after a verify
  bool skip_accepted = false;    // feeds the newest row alone after a verify
  bool skip_prompt = false;      // feeds the last row of the prompt alone
  int cached = 0;                // tokens of the prompt whose rows a prefix cache replaces
  int hand_over = 0;             // values of a row that are recorded, where they are not all
  int said_cached = 0;           // what it says of that, where it feeds them all the same
  std::function<void(std::span<uint16_t> feature, int position)> spoil = nullptr;  // or null
  std::function<int32_t(int32_t token, int position)> token = nullptr;             // or null: the token that a row consumes instead
  std::function<int(int accepted, int drafts)> count = nullptr;                    // or null: what it counts
  std::function<int32_t(int32_t draft, int position)> draft = nullptr;             // or null: what it proposes instead

  EngineRequest serve(ReadingScorer& scorer, const Conversation& conversation) const {
    const Trace& trace = conversation.trace;
    const Drafter drafter = scorer.drafter(reading).value();
    std::vector<uint16_t> features = scorer.features(reading, trace);
    const size_t width = features.size() / trace.length(), hidden = static_cast<size_t>(reading.spec.hidden);
    EngineRequest out;
    out.tokens = trace.tokens;
    out.prompt = static_cast<int32_t>(std::find(trace.mask.begin(), trace.mask.end(), uint8_t{1}) - trace.mask.begin());
    out.cached = std::max(cached, said_cached);
    out.width = static_cast<int>(width);
    out.top = 1;
    DraftKv kv = drafter.new_kv();
    DraftStates states;
    const int last = static_cast<int>(trace.length()) - 1;
    int fed = skip_prompt ? out.prompt - 1 : cached;
    for (int newest = out.prompt; newest < last;) {
      const auto cycle = static_cast<int32_t>(out.cycles.size());
      if (skip_accepted && cycle > 0) fed = newest - 1;
      for (; fed < newest; ++fed) {
        const std::span<uint16_t> feature(features.data() + static_cast<size_t>(fed) * width, width);
        if (spoil) spoil(feature, fed);
        int32_t consumed = trace.tokens[static_cast<size_t>(std::max(0, fed + 1 + reading.token_shift))];
        if (token) consumed = token(consumed, fed);
        const DraftRow row{consumed, fed + position_offset, &kv};
        drafter.step0(scorer.ops(), {&row, 1}, feature.data(), states);
        out.rows.push_back({consumed, row.position, cycle});
        out.features.insert(out.features.end(), feature.begin(), feature.end());
      }
      const int kept = kv.length(), room = std::min(k, last - newest - 1);
      EngineCycle& now = out.cycles.emplace_back();
      now.newest = newest;
      EngineStep step{cycle, 0, out.rows.back().token, out.rows.back().position};
      for (int s = 0; s < room; ++s) {
        if (s > 0) {
          step = {cycle, s, now.drafts.back(), std::max(0, out.rows.back().position + s * reading.step_stride + reading.step_offset)};
          const DraftRow row{step.token, step.position, &kv};
          const std::vector<float> h(states.feedback.begin(), states.feedback.begin() + static_cast<std::ptrdiff_t>(hidden));
          drafter.step(scorer.ops(), {&row, 1}, h.data(), states);
        }
        int32_t id = -1;
        drafter.argmax(scorer.ops(), states.head_input.data(), 1, &id);
        if (draft) id = draft(id, newest);
        if (id < 0) break;
        now.drafts.push_back(id);
        out.steps.push_back(step);
        out.top_tokens.push_back(id);
        out.top_logits.push_back(1);
      }
      if (!keep_draft_keys) kv.truncate(kept);
      while (now.accepted < static_cast<int>(now.drafts.size()) &&
             now.drafts[static_cast<size_t>(now.accepted)] == trace.tokens[static_cast<size_t>(newest + 1 + now.accepted)])
        ++now.accepted;
      newest += now.accepted + 1;
      if (count) now.accepted = count(now.accepted, static_cast<int>(now.drafts.size()));
    }
    if (hand_over == 0) return out;
    const std::vector<uint16_t> whole = std::move(out.features);
    out.features.clear();
    for (size_t r = 0; r < out.rows.size(); ++r) {
      const auto row = whole.begin() + static_cast<std::ptrdiff_t>(r * width);
      out.features.insert(out.features.end(), row, row + hand_over);
    }
    out.width = hand_over;
    return out;
  }
};

/// What the doctor says of an engine that serves conversations of `trace`, whose states are stored unless `with_states` is false.
inline std::vector<Finding> diagnose_engine(const DraftCheckpoint& checkpoint, const Reading& declared, const EmulatedEngine& engine,
                                            bool with_states = true, TargetTables tables = {}, EngineComparison* comparison = nullptr) {
  ThreadPool pool(1);
  DrawnOptions options;
  options.conversations = 12;
  if (tables.vocab == 0) tables = drawn_tables(declared.spec);
  const auto source = draw_trace(checkpoint, declared, options, pool, tables);
  Sample sample = take_sample(*source, declared.spec, {}).value();
  auto scorer = ReadingScorer::create(checkpoint, declared, tables, {}, sample, kernels::best_kernels(), pool).value();
  std::vector<EngineCase> cases;
  for (const Conversation& conversation : sample.conversations) {
    EngineCase& next = cases.emplace_back();
    next.request = engine.serve(scorer, conversation);
    EXPECT_TRUE(next.request.check().ok()) << next.request.check().message();
    if (!with_states) continue;
    next.stored = conversation;
    next.common = conversation.trace.length();
  }
  HypothesisFacts facts;
  facts.slots = sample.slots;
  facts.blocks = kDrawnBlocks;
  facts.has_target = static_cast<bool>(tables.embed);
  facts.longest = 44;
  auto out = compare_engine(cases, scorer, declared, facts);
  EXPECT_TRUE(out.ok()) << out.status().message();
  if (!out.ok()) return {};
  if (comparison != nullptr) *comparison = *out;
  return out->findings;
}

}  // namespace aerie
