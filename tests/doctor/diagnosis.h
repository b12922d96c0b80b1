// A whole diagnosis of a drawn trace: what the doctor says where it is known what was wrong.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "doctor/verdict.h"
#include "drawn_trace.h"

namespace aerie {

struct Case {
  SearchResult result;
  std::vector<Finding> findings;
  DraftCheckpoint given;  // with the spec that was declared
  HypothesisFacts facts;
  Sample sample;
  std::string text() const {
    std::string out;
    for (const Finding& f : findings) out += f.code + ": " + f.text + " -> " + f.fix + "\n";
    for (const SearchRound& round : result.rounds) {
      out += "  base " + round.base.length.text() + "\n";
      for (const Judged& j : round.finalists) out += "  " + j.hypothesis.name + " " + j.length.text() + " gain " + j.gain.text() + "\n";
    }
    return out;
  }
};

/// The trace is written by `truth`; the doctor is given a reading with a fault, and a trace without the boundaries that are missing.
/// `then`: what is asked of the same scorer afterwards.
inline Case diagnose(const DraftCheckpoint& checkpoint, const Reading& truth, const std::function<void(Reading&)>& fault,
                     const DrawnOptions& options, const std::vector<int>& missing = {}, TargetTables tables = {},
                     const std::function<void(ReadingScorer&, const Case&)>& then = {}) {
  ThreadPool pool(2);
  if (tables.vocab == 0) tables = drawn_tables(truth.spec);
  const auto source = without_boundaries(*draw_trace(checkpoint, truth, options, pool, tables), missing);
  Reading declared = truth;
  fault(declared);
  DraftCheckpoint given = checkpoint;
  given.spec = declared.spec;
  auto sample = take_sample(*source, declared.spec, {});
  EXPECT_TRUE(sample.ok()) << sample.status().message();
  auto scorer = ReadingScorer::create(given, declared, tables, {}, *sample, kernels::best_kernels(), pool);
  EXPECT_TRUE(scorer.ok()) << scorer.status().message();
  HypothesisFacts facts;
  facts.slots = sample->slots;
  facts.blocks = kDrawnBlocks;
  facts.has_target = static_cast<bool>(tables.embed);
  if (!missing.empty()) {
    auto nearest = nearest_feature(declared.spec, sample->slots, kDrawnBlocks);
    EXPECT_TRUE(nearest.ok()) << nearest.status().message();
    declared.feature = nearest->feature;
    facts.stand_ins = nearest->stand_ins;
  }
  facts.longest = options.prompt + options.answer;
  SearchOptions search;
  search.k = options.k;
  search.taps.pieces = 24;
  search.taps.rows_per_piece = 16;
  search.taps.context = options.prompt + options.answer;  // attention of random weights takes in everything
  auto result = search_hypotheses(*scorer, declared, facts, search);
  EXPECT_TRUE(result.ok()) << result.status().message();
  Case out{*std::move(result), {}, given, facts, {}};
  out.findings = verdict(out.result, options.k);
  if (then) then(*scorer, out);
  out.sample = *std::move(sample);
  return out;
}

inline Reading true_reading(const DraftSpec& spec) {
  Reading out;
  out.spec = spec;
  out.feature = declared_feature(spec, drawn_slots()).value();
  return out;
}

inline void set_taps(Reading& reading, const std::vector<int>& taps) {
  reading.spec.taps = taps;
  reading.feature = declared_feature(reading.spec, drawn_slots()).value();
}

}  // namespace aerie
