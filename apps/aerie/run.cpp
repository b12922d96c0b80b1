// aerie run: one prompt, streamed.
#include <cstdio>

#include "base/file_io.h"
#include "command.h"
#include "formats/engine_trace.h"

namespace aerie::cli {
namespace {

struct RunFlags {
  ModelFlags model;
  PromptFlags prompt;
  GenerateOptions generate;
  DraftFlag draft;
  bool json = false;
  std::string stats_file, trace;
};

Status run(RunFlags& flags) {
  AERIE_ASSIGN(const auto runtime, flags.model.load());
  AERIE_ASSIGN(const std::vector<int32_t> prompt, flags.prompt.tokens(*runtime));
  GenerateOptions& options = flags.generate;
  options.draft_tokens = flags.draft.tokens(*runtime);
  std::optional<EngineTraceWriter> trace;
  EngineRequest record;
  if (!flags.trace.empty()) {
    if (options.draft_tokens == 0)
      return invalid_argument("--trace records what a drafter is handed, but nothing is drafted: give a drafter (-d), and no -k 0");
    AERIE_ASSIGN(trace, EngineTraceWriter::open(flags.trace, {"aerie " AERIE_VERSION, flags.model.options.drafter}));
    options.record = &record;
  }
  std::string text;
  AERIE_ASSIGN(const GenerateResult result, generate_text(*runtime, prompt, options, [&](const std::string& piece) {
                 text += piece;
                 if (!flags.json) print_piece(piece);
               }));
  const nlohmann::json json = to_json(result, text, prompt.size());
  if (flags.json) {
    print_json(json);
  } else {
    std::printf("\n");
    spdlog::info("{}", summary(result, prompt.size()));
  }
  if (trace) AERIE_TRY(trace->write(record));
  if (!flags.stats_file.empty()) {
    AERIE_TRY(write_file_atomically(flags.stats_file, json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"));
  }
  return result.finish_reason == "cancelled" ? cancelled("interrupted after {} tokens", result.tokens.size()) : Status();
}

}  // namespace

void add_run(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("run", "answer one prompt, streaming the text on stdout");
  auto flags = std::make_shared<RunFlags>();
  flags->model.add_to(*command, true);
  flags->prompt.add_to(*command);
  command->add_option("-n,--max-tokens", flags->generate.max_new_tokens, "tokens to generate at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  flags->draft.add_to(*command);
  command->add_option("--prompt-chunk", flags->generate.prompt_chunk, "prompt tokens per forward; has no influence on the output")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--ignore-end", flags->generate.ignore_end, "go on after an end-of-generation token");
  command->add_flag("--json", flags->json, "print one JSON object instead of the text");
  command->add_option("--trace", flags->trace,
                      "folder for what the drafter was handed and answered, step by step (docs/trace-format.md), for aerie doctor");
  command->add_option("--stats", flags->stats_file, "also write the JSON object to this file");
  command->callback([flags, &work] { work = [flags] { return run(*flags); }; });
}

}  // namespace aerie::cli
