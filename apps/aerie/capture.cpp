// aerie capture: the target answers a file of prompts, and its hidden states are stored.
#include <chrono>
#include <cstdio>

#include "base/progress.h"
#include "command.h"
#include "engine/capture.h"

namespace aerie::cli {
namespace {

struct CaptureFlags {
  ModelFlags model;
  CaptureOptions capture;
  std::string prompts;
};

Status run_capture(CaptureFlags& flags) {
  AERIE_ASSIGN(const std::vector<Prompt> prompts, read_prompts(flags.prompts));
  AERIE_ASSIGN(const auto runtime, flags.model.load());
  flags.capture.cancel = &interrupted();
  ProgressLine line;
  AERIE_ASSIGN(const CaptureProgress result, capture(*runtime, prompts, flags.capture, [&](const CaptureProgress& p) {
                 const double rate = p.seconds > 0 ? static_cast<double>(p.answer_tokens) / p.seconds : 0;
                 line.update(p.done, p.total, fmt::format("{} conversations, {} answer tokens, {:.0f}/s", p.done, p.answer_tokens, rate));
               }));
  line.finish();
  spdlog::info("{} of {} conversations in {} ({} left out); {} tokens written, {} of them answers, {:.0f} answer tokens/s",
               result.done, result.total, flags.capture.out, result.skipped, result.tokens, result.answer_tokens,
               result.seconds > 0 ? static_cast<double>(result.answer_tokens) / result.seconds : 0.0);
  return {};
}

}  // namespace

void add_capture(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("capture", "answer prompts and store the target's hidden states");
  auto flags = std::make_shared<CaptureFlags>();
  CaptureOptions& c = flags->capture;
  flags->model.add_to(*command, false);
  command->add_option("--prompts", flags->prompts, "JSON lines (or gzip): {\"messages\"}, {\"turns\"} or {\"prompt\"}")->required();
  command->add_option("--out", c.out, "folder of traces; continued if it is there")->required();
  command->add_option("--taps", c.taps, "boundaries to store, in order, e.g. 2,15,27 (default: 2, N/2, N-3)")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  auto* temperature = command
                          ->add_option("--temperature", c.temperatures,
                                       "answers are drawn from the target's whole distribution at this temperature, 0 = greedy; of "
                                       "several, e.g. 0,0.7,1, prompt i takes the (i mod count)-th")
                          ->delimiter(',')
                          ->check(CLI::Range(0.0, 100.0))
                          ->capture_default_str();
  command->add_option("--seed", c.seed, "of what is drawn")->needs(temperature)->capture_default_str();
  command->add_option("-n,--max-tokens", c.max_new_tokens, "tokens of one answer at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--max-length", c.max_length, "tokens of one conversation at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--first", c.first, "number of the first prompt")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_option("--limit", c.limit, "prompts to answer (default: all)")->check(CLI::PositiveNumber);
  command->add_option("--slots", c.slots, "conversations that are generated together")->check(CLI::Range(1, 256))->capture_default_str();
  command->add_option("--rows", c.row_budget, "rows of one forward, at least the slots")->check(CLI::Range(1, 512))->capture_default_str();
  command->callback([flags, &work] { work = [flags] { return run_capture(*flags); }; });
}

}  // namespace aerie::cli
