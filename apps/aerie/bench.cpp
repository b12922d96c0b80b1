// aerie bench: speeds of this machine with these models, medians of alternating runs.
#include <cstdio>

#include "command.h"
#include "engine/bench.h"
#include "engine/prompts.h"

namespace aerie::cli {
namespace {

struct BenchFlags {
  ModelFlags model;
  BenchOptions bench;
  DraftFlag draft;
  std::string prompts;
  int limit = 8;
  bool json = false;
};

// One of each kind of text that drafters find easy or hard.
constexpr const char* kDefaultPrompts[] = {
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "A farmer has 12 rows of apple trees with 15 trees in each row. Each tree gives 40 apples. How many apples does he harvest? Explain "
    "step by step.",
    "Write a Python function that returns the n-th Fibonacci number, and explain how it works.",
    "Explain the difference between a virus and a bacterium to a ten year old child.",
};

nlohmann::json by_number(const std::map<int, double>& values) {
  nlohmann::json out = nlohmann::json::object();
  for (const auto& [number, value] : values) out[std::to_string(number)] = value;
  return out;
}

std::string of_roofline(double share) { return share > 0 ? fmt::format(", {:.0f} % of the roofline", 100 * share) : ""; }

Status run_bench_command(BenchFlags& flags) {
  AERIE_ASSIGN(const auto runtime, flags.model.load());
  std::vector<std::vector<ChatMessage>> conversations;
  if (flags.prompts.empty()) {
    for (const char* text : kDefaultPrompts) conversations.push_back({{"user", text}});
  } else {
    AERIE_ASSIGN(const std::vector<Prompt> prompts, read_prompts(flags.prompts));
    for (size_t i = 0; i < prompts.size() && i < static_cast<size_t>(flags.limit); ++i)
      conversations.push_back({prompts[i].messages.front()});
  }
  if (runtime->chat_template() == nullptr) return unsupported("{}: has no chat template", runtime->file().path());
  for (const auto& messages : conversations) {
    AERIE_ASSIGN(const RenderedPrompt rendered, runtime->chat_template()->render(messages, true));
    AERIE_ASSIGN(std::vector<int32_t> tokens, runtime->tokenizer().encode(rendered));
    flags.bench.prompts.push_back(std::move(tokens));
  }
  flags.bench.draft_tokens = flags.draft.k.value_or(kAutoDraftTokens);
  AERIE_ASSIGN(const BenchReport r, run_bench(*runtime, flags.bench));
  const bool drafter = runtime->drafter() != nullptr;

  nlohmann::json ceilings = nlohmann::json::object();
  for (const auto& [unit, rate] : r.ceilings.gop_s) ceilings[kernels::unit_name(unit)] = rate;
  nlohmann::json json = {{"isa", runtime->target().kernels().name},
                         {"threads", runtime->pool().size()},
                         {"load_seconds", runtime->load_seconds()},
                         {"read_ceiling_gb_s", r.ceilings.read_gb_s},
                         {"far_read_ceiling_gb_s", r.ceilings.far_read_gb_s},
                         {"ceilings_gop_s", ceilings},
                         {"plain_tokens_per_second", r.plain_tokens_per_second},
                         {"plain_gb_s", r.plain_gb_s},
                         {"prefill_tokens_per_second", r.prefill_tokens_per_second},
                         {"batched_tokens_per_second", by_number(r.batched_tokens_per_second)},
                         {"verify_depth", flags.bench.depth},
                         {"step_seconds", r.step_seconds},
                         {"verify_cost", by_number(r.verify_cost)},
                         {"verify_roofline_cost", by_number(r.verify_roofline_cost)},
                         {"share_of_roofline",
                          {{"plain", r.plain_roofline},
                           {"prefill", r.prefill_roofline},
                           {"verify", by_number(r.verify_roofline)},
                           {"batched", by_number(r.batched_roofline)}}},
                         {"peak_rss_bytes", peak_rss_bytes()}};
  if (drafter) {
    json.update({{"k", draft_tokens_json(flags.bench.draft_tokens)},
                 {"draft_step_cost", r.draft_step_cost},
                 {"cycle_cost", by_number(r.cycle_cost)},
                 {"speculative_tokens_per_second", r.speculative_tokens_per_second},
                 {"speedup", r.speedup},
                 {"acceptance_length", r.acceptance_length},
                 {"identical_output", r.identical_output}});
  }
  if (flags.json) {
    print_json(json);
  } else {
    std::printf("%s kernels, %d threads; medians of %d runs\n", runtime->target().kernels().name, runtime->pool().size(),
                flags.bench.repetitions);
    std::printf("ceilings            %8.1f GB/s of as many bytes as the weights, %.1f GB/s of 256 MiB", r.ceilings.read_gb_s,
                r.ceilings.far_read_gb_s);
    for (const auto& [unit, rate] : r.ceilings.gop_s) std::printf(", %s %.0f GOP/s", kernels::unit_name(unit), rate);
    std::printf("\ndecode, plain       %8.1f tokens/s (%.1f GB/s of weights)%s\n", r.plain_tokens_per_second, r.plain_gb_s,
                of_roofline(r.plain_roofline).c_str());
    std::printf("prefill, 512 tokens %8.1f tokens/s%s\n", r.prefill_tokens_per_second, of_roofline(r.prefill_roofline).c_str());
    for (const auto& [sequences, rate] : r.batched_tokens_per_second) {
      std::printf("%2d sequences        %8.1f tokens/s of all%s\n", sequences, rate, of_roofline(r.batched_roofline.at(sequences)).c_str());
    }
    std::printf("verifying n rows at depth %d, relative to one row (%.2f ms%s):", flags.bench.depth, 1e3 * r.step_seconds,
                of_roofline(r.verify_roofline.at(1)).c_str());
    for (const auto& [rows, ratio] : r.verify_cost) std::printf("  %d: %.2f", rows, ratio);
    std::printf("\n");
    if (drafter) {
      std::printf("draft step          %8.3f of a target row\n", r.draft_step_cost);
      std::printf("a cycle with k drafts, relative to a plain step:");
      for (const auto& [k, ratio] : r.cycle_cost) std::printf("  %d: %.2f", k, ratio);
      const std::string k = flags.bench.draft_tokens == kAutoDraftTokens ? "auto" : std::to_string(flags.bench.draft_tokens);
      std::printf("\ndecode, k = %-4s    %8.1f tokens/s, %.2fx, acceptance length %.2f (tokens per verify, the target's own included)\n",
                  k.c_str(), r.speculative_tokens_per_second, r.speedup, r.acceptance_length);
      std::printf("identical output: %s\n", r.identical_output ? "yes" : "no");
    }
  }
  if (drafter && !r.identical_output) return internal_error("the output with the drafter differs from the output without");
  return {};
}

}  // namespace

void add_bench(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("bench", "measure this machine with these models");
  auto flags = std::make_shared<BenchFlags>();
  flags->model.add_to(*command, true);
  command->add_option("--prompts", flags->prompts, "file of prompts (default: four built-in ones)");
  command->add_option("--limit", flags->limit, "prompts of that file")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("-n,--max-tokens", flags->bench.tokens, "tokens per run")->check(CLI::Range(2, 4096))->capture_default_str();
  flags->draft.add_to(*command);
  command->add_option("--repetitions", flags->bench.repetitions, "alternating runs")->check(CLI::Range(1, 100))->capture_default_str();
  command->add_option("--depth", flags->bench.depth, "context at which verification is timed")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, &work] { work = [flags] { return run_bench_command(*flags); }; });
}

}  // namespace aerie::cli
