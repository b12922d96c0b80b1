// Measures what speculation stands on: the machine's ceilings, the cost of verifying n rows, the cost of a draft step.
#pragma once

#include <map>
#include <vector>

#include "base/status.h"
#include "engine/generate.h"
#include "engine/roofline.h"

namespace aerie {

struct BenchOptions {
  int repetitions = 5;                        // alternating; medians are reported
  int tokens = 128;                           // generated per run
  int depth = 256;                            // context at which verify_cost is measured
  int draft_tokens = kAutoDraftTokens;        // K of the speculative runs
  std::vector<std::vector<int32_t>> prompts;  // of the plain and speculative runs
};

struct BenchReport {
  Ceilings ceilings;
  double plain_tokens_per_second = 0;    // decode, without drafter, over all prompts
  double plain_gb_s = 0;                 // weights read per second at that speed
  double prefill_tokens_per_second = 0;  // 512 tokens
  // The time that the roofline (roofline.h) gives, relative to the time measured: 1 is the machine's limit, 0 not known.
  double plain_roofline = 0, prefill_roofline = 0;
  std::map<int, double> verify_roofline, batched_roofline;
  std::map<int, double> verify_roofline_cost;       // verify_cost at the roofline, units at three quarters of their ceilings
  double step_seconds = 0;                          // one row at `depth`
  std::map<int, double> verify_cost;                // rows -> time of one forward relative to one row
  std::map<int, double> batched_tokens_per_second;  // sequences decoded together, from the beginning -> tokens of all a second
  // With a drafter:
  double draft_step_cost = 0;        // one draft step relative to one target row, each by itself
  std::map<int, double> cycle_cost;  // K -> time of drafting K tokens and verifying them, relative to a plain step
  double speculative_tokens_per_second = 0, speedup = 0, acceptance_length = 0;
  bool identical_output = false;
};

Expected<BenchReport> run_bench(Runtime& runtime, const BenchOptions& options);

}  // namespace aerie
