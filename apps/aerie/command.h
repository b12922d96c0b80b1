// What the subcommands share: flags of models, exit codes, prompts, and the JSON of a generation.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "doctor/report.h"
#include "drafter_flags.h"
#include "engine/generate.h"
#include "engine/runtime.h"
#include "engine/standalone_drafter.h"

namespace aerie::cli {

// Exit codes of every program of the project.
inline constexpr int kDone = 0, kFailed = 1, kBadUsage = 2;

/// A subcommand's work; CLI11 calls it after parsing, main() turns the status into an exit code.
using Work = std::function<Status()>;

/// Flags -m, --threads, --context, --isa, --float32; with a drafter also -d and those of DrafterFlags.
struct ModelFlags {
  RuntimeOptions options;
  DrafterFlags drafter;
  bool float32 = false;
  void add_to(CLI::App& app, bool with_drafter);
  Expected<std::unique_ptr<Runtime>> load();
};

/// The flags of what computes a drafter on stored features: -d, -m where it shares the target's tables, --threads, --isa, --float32, and
/// those of DrafterFlags.
struct StandaloneFlags {
  StandaloneOptions options;
  DrafterFlags drafter;
  bool float32 = false;
  void add_to(CLI::App& app);
  Expected<std::unique_ptr<StandaloneDrafter>> load();
};

/// Flags -p, --messages, --raw and what they make of a prompt.
struct PromptFlags {
  std::string prompt, messages_file;
  bool raw = false;
  void add_to(CLI::App& app);
  Expected<std::vector<int32_t>> tokens(const Runtime& runtime) const;
};

/// A flag that Ctrl-C and SIGTERM set; installed by the first call.
const std::atomic<bool>& interrupted();

nlohmann::json to_json(const GenerateResult& result, const std::string& text, size_t prompt_tokens);
/// Peak resident memory of this process.
uint64_t peak_rss_bytes();
/// Prints one JSON object on stdout.
void print_json(const nlohmann::json& json);
/// Prints a report on stdout, for people or as one JSON object.
void print_report(const Report& report, bool json);
/// Generates, handing each finished piece of text to `show` as soon as it is certain. Ctrl-C ends it ("cancelled").
Expected<GenerateResult> generate_text(Runtime& runtime, const std::vector<int32_t>& prompt, GenerateOptions options,
                                       const std::function<void(const std::string&)>& show);
/// A piece of the answer on stdout, at once.
void print_piece(const std::string& piece);
/// Flag -k: absent, the engine chooses the number of drafts before every cycle.
struct DraftFlag {
  std::optional<int> k;
  void add_to(CLI::App& app);
  /// 0 without a drafter.
  int tokens(const Runtime& runtime) const { return k ? *k : runtime.drafter() != nullptr ? kAutoDraftTokens : 0; }
};
/// "auto", or the number.
nlohmann::json draft_tokens_json(int k);

/// One line on stderr: speed, tokens, acceptance.
std::string summary(const GenerateResult& result, size_t prompt_tokens);

/// Each adds its subcommand to `app` and, when it was chosen, sets `work`.
void add_run(CLI::App& app, Work& work);
void add_chat(CLI::App& app, Work& work);
void add_capture(CLI::App& app, Work& work);
void add_data(CLI::App& app, Work& work);
void add_train(CLI::App& app, Work& work);
void add_eval(CLI::App& app, Work& work);
void add_bench(CLI::App& app, Work& work);
void add_forward(CLI::App& app, Work& work);
void add_inspect(CLI::App& app, Work& work);
void add_convert(CLI::App& app, Work& work);
void add_doctor(CLI::App& app, Work& work);
void add_tokenize(CLI::App& app, Work& work);

}  // namespace aerie::cli
