// aerie eval: what a drafter accepts on captured states, without any engine.
#include <cstdio>

#include "command.h"
#include "doctor/statistics.h"
#include "eagle3/replay.h"
#include "eagle3/walk_figures.h"
#include "formats/traces.h"

namespace aerie::cli {
namespace {

struct EvalFlags {
  StandaloneFlags drafter;
  std::vector<std::string> traces;
  int k = 6;
  int limit = 0;
  bool json = false;
};

/// The walk at one number of drafts.
struct Walk {
  std::vector<RatioPart> conversations;  // accepted drafts over cycles
  CycleCount novel;                      // of cycles that do not draft what the answer repeats

  Interval acceptance_length() const {
    Interval length = ratio_interval(conversations, 0.95);
    for (double* value : {&length.value, &length.low, &length.high}) *value += 1;
    return length;
  }
  double without_repeats() const {
    return novel.cycles == 0 ? 0.0 : 1.0 + static_cast<double>(novel.accepted) / static_cast<double>(novel.cycles);
  }
};

void add(const TraceReplay& replay, std::span<const uint8_t> repeats, std::vector<Walk>& walks) {
  for (size_t k = 0; k < walks.size(); ++k) {
    const TraceReplay limited = limited_to(replay, static_cast<int>(k) + 1);
    const CycleCount all = count_cycles(limited), novel = count_cycles(limited, repeats);
    walks[k].conversations.push_back({static_cast<double>(all.accepted), static_cast<double>(all.cycles)});
    walks[k].novel.accepted += novel.accepted;
    walks[k].novel.cycles += novel.cycles;
  }
}

Status run_eval(EvalFlags& flags) {
  AERIE_ASSIGN(const auto standalone, flags.drafter.load());
  const Drafter& drafter = standalone->drafter();
  ReplaySummary summary;
  std::vector<Walk> walks(static_cast<size_t>(flags.k));
  int conversations = 0;
  for (const std::string& folder : flags.traces) {
    AERIE_ASSIGN(const TraceReader reader, TraceReader::open(folder));
    const TraceManifest& manifest = reader.manifest();
    AERIE_TRY(
        check_fits_target(drafter.spec(), manifest.target.hidden, manifest.target.vocab, manifest.target.blocks).with_context(folder));
    if (const std::string at = manifest.sampled_at(); !at.empty()) {
      spdlog::info("{}: the answers were drawn at temperature {}; a draft is right where it is the token drawn", folder, at);
    }
    for (const int row : reader.rows()) {
      if (flags.limit > 0 && conversations >= flags.limit) break;
      AERIE_ASSIGN(const Trace trace, reader.read(row));
      AERIE_ASSIGN(const std::vector<uint16_t> features, select_features(drafter.spec(), manifest, trace));
      AERIE_ASSIGN(const TraceReplay replay,
                   replay_trace(drafter, standalone->ops(), {trace.tokens, trace.mask, features}, {.steps = flags.k}));
      summary.add(replay, flags.k);
      add(replay, ends_of_repeats(trace.tokens, trace.mask), walks);
      ++conversations;
    }
  }
  if (summary.cycles == 0) return corrupt("the traces have no answer of two tokens or more, so there is nothing to draft");

  nlohmann::json steps = nlohmann::json::array();
  for (const StepAcceptance& step : summary.steps) {
    steps.push_back(
        {{"unconditional", step.unconditional()}, {"conditional", step.conditional()}, {"starts", step.starts}, {"reached", step.reached}});
  }
  nlohmann::json by_length = nlohmann::json::array();
  for (size_t k = 0; k < walks.size(); ++k) {
    const Interval length = walks[k].acceptance_length();
    by_length.push_back({{"k", k + 1},
                         {"acceptance_length", length.value},
                         {"low", length.low},
                         {"high", length.high},
                         {"without_repeats", walks[k].without_repeats()}});
  }
  if (flags.json) {
    print_json({{"walk_acceptance_length", summary.acceptance_length()},
                {"k", flags.k},
                {"steps", steps},
                {"walks", by_length},
                {"coverage", summary.coverage()},
                {"conversations", conversations},
                {"answer_tokens", summary.answer_tokens},
                {"cycles", summary.cycles},
                {"accepted", summary.accepted}});
    return {};
  }
  std::printf("%d conversations, %lld answer tokens, %.2f %% of them inside the draft vocabulary\n", conversations,
              static_cast<long long>(summary.answer_tokens), 100 * summary.coverage());
  std::printf("step  unconditional  conditional (all earlier steps matched)\n");
  for (size_t s = 0; s < summary.steps.size(); ++s) {
    std::printf("%4zu  %12.2f %%  %10.2f %%\n", s, 100 * summary.steps[s].unconditional(), 100 * summary.steps[s].conditional());
  }
  std::printf("   k  acceptance length [95 %%]   without what repeats %zu tokens of the answer\n", kRepeatedGram);
  for (size_t k = 0; k < walks.size(); ++k) {
    std::printf("%4zu  %-24s  %.4f\n", k + 1, walks[k].acceptance_length().text().c_str(), walks[k].without_repeats());
  }
  std::printf("walk at k = %d: acceptance length %.4f (tokens per verify, the target's own included), %lld cycles\n", flags.k,
              summary.acceptance_length(), static_cast<long long>(summary.cycles));
  return {};
}

}  // namespace

void add_eval(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("eval", "replay captured states through a drafter and say what an engine must accept");
  auto flags = std::make_shared<EvalFlags>();
  flags->drafter.add_to(*command);
  command->add_option("--traces", flags->traces, "trace folder of aerie capture; may be given several times")->required();
  command->add_option("-k,--draft-tokens", flags->k, "drafts per cycle")->check(CLI::Range(1, kMaxReplaySteps))->capture_default_str();
  command->add_option("--limit", flags->limit, "conversations to replay (default: all)")->check(CLI::PositiveNumber);
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, &work] { work = [flags] { return run_eval(*flags); }; });
}

}  // namespace aerie::cli
