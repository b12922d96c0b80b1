#include "engine/bench.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "engine/batch_decoder.h"

namespace aerie {
namespace {

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Times forwards of `rows` rows behind a context of `depth` tokens.
class ForwardTimer {
 public:
  static Expected<ForwardTimer> create(Runtime& runtime, int depth, int most_rows) {
    ForwardTimer timer(runtime, depth);
    AERIE_TRY(timer.kv_.reserve(depth + most_rows));
    if (depth > 0) {
      AERIE_ASSIGN(const double ignored, timer.time(depth, 0));
      (void)ignored;
    }
    return timer;
  }

  Expected<double> time(int rows, int depth) {
    Target& target = runtime_->target();
    std::vector<TargetRow> batch_rows;
    std::vector<int> logit_rows;
    for (int i = 0; i < rows; ++i) {
      batch_rows.push_back({(depth + i) * 37 % target.config().vocab, depth + i, &kv_});
      // A prompt needs the last row's logits only, a verification needs all.
      if (depth > 0 || i + 1 == rows) logit_rows.push_back(i);
    }
    best_.resize(logit_rows.size());
    TargetBatch batch;
    batch.logit_rows = logit_rows;
    batch.best = best_.data();
    Status status;
    const double seconds = seconds_of([&] {
      const size_t chunk = static_cast<size_t>(target.max_rows());
      for (size_t begin = 0; begin < batch_rows.size() && status.ok(); begin += chunk) {
        batch.rows = std::span(batch_rows).subspan(begin, std::min(chunk, batch_rows.size() - begin));
        if (begin + chunk < batch_rows.size()) batch.logit_rows = {};
        status = target.forward(runtime_->pool(), batch);
      }
    });
    if (!status.ok()) return status;
    return seconds;
  }

 private:
  ForwardTimer(Runtime& runtime, int) : runtime_(&runtime), kv_(runtime.target().make_cache()) {}
  Runtime* runtime_;
  KvCache kv_;
  std::vector<int32_t> best_;
};

double draft_step_seconds(Runtime& runtime, int depth, int repetitions) {
  const Drafter& drafter = *runtime.drafter();
  DraftKv kv = drafter.new_kv();
  DraftStates states;
  const std::vector<uint16_t> feature(static_cast<size_t>(drafter.spec().feature_width()), f32_to_bf16(0.5f));
  std::vector<double> times;
  int32_t id = 0;
  for (int i = 0; i < depth; ++i) {
    const DraftRow row{i % drafter.spec().vocab, i, &kv};
    drafter.step0(runtime.draft_ops(), {&row, 1}, feature.data(), states);
  }
  for (int i = 0; i < repetitions * 8; ++i) {
    const DraftRow row{i % drafter.spec().vocab, depth, &kv};
    times.push_back(seconds_of([&] {
      drafter.step(runtime.draft_ops(), {&row, 1}, states.feedback.data(), states);
      drafter.argmax(runtime.draft_ops(), states.head_input.data(), 1, &id);
    }));
    kv.truncate(depth);
  }
  return median(times);
}

/// Decodes `sequences` made-up sequences together for `tokens` steps.
Expected<double> batched_rate(Runtime& runtime, int sequences, int tokens) {
  BatchDecoder decoder(runtime, sequences, sequences, {});
  std::vector<int32_t> last(static_cast<size_t>(sequences));
  for (int s = 0; s < sequences; ++s) {
    const int32_t first = (s * 101 + 7) % runtime.target().config().vocab;
    AERIE_TRY(decoder.start(s, {&first, 1}, tokens + 1));
  }
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < tokens; ++i) {
    AERIE_ASSIGN(const auto results, decoder.step());
    for (const BatchDecoder::Result& result : results) decoder.append(result.slot, {&result.next, 1});
  }
  return tokens * sequences / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Speed {
  double seconds = 0;
  int64_t tokens = 0, cycles = 0, accepted = 0;
  std::vector<std::vector<int32_t>> outputs;
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
};

Expected<Speed> generate_all(Runtime& runtime, const BenchOptions& options, int k) {
  Speed speed;
  for (const auto& prompt : options.prompts) {
    GenerateOptions generation;
    generation.max_new_tokens = options.tokens;
    generation.draft_tokens = k;
    generation.ignore_end = true;
    AERIE_ASSIGN(const GenerateResult result, generate(runtime, prompt, generation));
    speed.seconds += result.decode_seconds;
    speed.tokens += static_cast<int64_t>(result.tokens.size()) - 1;
    speed.cycles += result.draft.cycles;
    speed.accepted += result.draft.accepted;
    speed.outputs.push_back(result.tokens);
  }
  return speed;
}

}  // namespace

Expected<BenchReport> run_bench(Runtime& runtime, const BenchOptions& options) {
  if (options.repetitions < 1 || options.tokens < 2 || options.depth < 1 || options.prompts.empty()) {
    return invalid_argument("a benchmark needs at least one repetition, two tokens, a depth of one and a prompt");
  }
  constexpr int kBatchedTokens = 64, kSettle = 12;
  constexpr double kSustained = 0.75;  // of a unit's ceiling: what a good kernel reaches
  constexpr int kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
  BenchReport report;
  report.ceilings = measure_ceilings(runtime, options.repetitions);

  AERIE_ASSIGN(ForwardTimer prompt_timer, ForwardTimer::create(runtime, 0, 512));
  AERIE_ASSIGN(ForwardTimer verify_timer, ForwardTimer::create(runtime, options.depth, 16));
  std::vector<double> prefill;
  std::map<int, std::vector<double>> verify;
  for (int i = 0; i < options.repetitions; ++i) {
    AERIE_ASSIGN(const double seconds, prompt_timer.time(512, 0));
    prefill.push_back(seconds);
  }
  // Each number of rows a few times in a row, as an engine would run it, fewest first: many rows at once lower the clock of some
  // machines for a while.
  for (int i = 0; i < options.repetitions; ++i) {
    for (int j = 0; j < kSettle; ++j) AERIE_TRY(verify_timer.time(1, options.depth).status());
    for (const int rows : kRows) {
      for (int j = 0; j < 5; ++j) {
        AERIE_ASSIGN(const double seconds, verify_timer.time(rows, options.depth));
        if (j > 0) verify[rows].push_back(seconds);
      }
    }
  }
  const auto share = [&](double seconds, const ForwardShape& shape) { return roofline_seconds(runtime, report.ceilings, shape) / seconds; };
  report.prefill_tokens_per_second = 512 / median(prefill);
  report.prefill_roofline = share(median(prefill), {.rows = 512});
  report.step_seconds = median(verify[1]);
  const double one_row = roofline_seconds(runtime, report.ceilings, {.rows = 1, .depth = options.depth}, kSustained);
  for (const int rows : kRows) {
    const ForwardShape shape{.rows = rows, .depth = options.depth, .logit_rows = rows};
    report.verify_cost[rows] = median(verify[rows]) / report.step_seconds;
    report.verify_roofline[rows] = share(median(verify[rows]), shape);
    if (one_row > 0) report.verify_roofline_cost[rows] = roofline_seconds(runtime, report.ceilings, shape, kSustained) / one_row;
  }

  for (const int sequences : {4, 16}) {
    std::vector<double> rates;
    for (int i = 0; i < options.repetitions; ++i) {
      AERIE_ASSIGN(const double rate, batched_rate(runtime, sequences, std::min(kBatchedTokens, runtime.target().config().context - 1)));
      rates.push_back(rate);
    }
    report.batched_tokens_per_second[sequences] = median(rates);
    const ForwardShape shape{.rows = sequences, .depth = kBatchedTokens / 2, .logit_rows = sequences, .sequences = sequences};
    report.batched_roofline[sequences] = share(sequences / median(rates), shape);
  }

  std::vector<double> plain_rates, speculative_rates;
  report.identical_output = true;
  for (int i = 0; i < options.repetitions; ++i) {
    AERIE_ASSIGN(const Speed plain, generate_all(runtime, options, 0));
    plain_rates.push_back(plain.tokens_per_second());
    if (runtime.drafter() == nullptr) continue;
    AERIE_ASSIGN(const Speed speculative, generate_all(runtime, options, options.draft_tokens));
    speculative_rates.push_back(speculative.tokens_per_second());
    report.identical_output = report.identical_output && plain.outputs == speculative.outputs;
    report.acceptance_length =
        1 + static_cast<double>(speculative.accepted) / static_cast<double>(std::max<int64_t>(speculative.cycles, 1));
  }
  report.plain_tokens_per_second = median(plain_rates);
  report.plain_roofline = share(1 / report.plain_tokens_per_second, {.rows = 1, .depth = options.tokens / 2});
  report.plain_gb_s = report.plain_tokens_per_second * static_cast<double>(runtime.target().weight_bytes()) / 1e9;
  if (runtime.drafter() != nullptr) {
    AERIE_ASSIGN(const CycleCosts costs, measure_cycle_costs(runtime));
    for (int k = 0; k <= kMostAutoDrafts; ++k) report.cycle_cost[k] = costs.seconds[static_cast<size_t>(k)] / costs.seconds[0];
    report.draft_step_cost = draft_step_seconds(runtime, options.depth, options.repetitions) / report.step_seconds;
    report.speculative_tokens_per_second = median(speculative_rates);
    report.speedup = report.speculative_tokens_per_second / report.plain_tokens_per_second;
  }
  return report;
}

}  // namespace aerie
