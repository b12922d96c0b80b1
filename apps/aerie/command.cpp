#include "command.h"

#include <signal.h>
#include <sys/resource.h>

#include <cstdio>

#include "engine/prompts.h"
#include "text/detokenizer.h"

namespace aerie::cli {

namespace {
constexpr const char* kDrafterHelp = "drafter: a folder, a GGUF file, or the name of a known model's (smollm2)";

/// Flags --threads and --isa.
void add_compute(CLI::App& app, int& threads, std::string& isa) {
  app.add_option("--threads", threads, "threads that compute (default: the cores this process may use)")->check(CLI::PositiveNumber);
  app.add_option("--isa", isa, "instruction set: scalar, avx2, avxvnni, avx512 or amx (default: the best of this machine)");
}
}  // namespace

void ModelFlags::add_to(CLI::App& app, bool with_drafter) {
  app.add_option("-m,--model", options.target, "target: a GGUF file, or the name of a known model (smollm2)")->required();
  if (with_drafter) {
    app.add_option("-d,--drafter", options.drafter, kDrafterHelp);
    drafter.add_to(app);
  }
  add_compute(app, options.threads, options.isa);
  app.add_option("--context", options.context, "tokens of prompt and answer together at most (default: what the model was made for)")
      ->check(CLI::PositiveNumber);
  app.add_flag("--float32", float32, "compute everything in float32: the slow reference");
}

Expected<std::unique_ptr<Runtime>> ModelFlags::load() {
  options.precision = float32 ? Precision::kFloat32 : Precision::kServed;
  AERIE_ASSIGN(options.reading, drafter.options());
  AERIE_ASSIGN(std::unique_ptr<Runtime> runtime, Runtime::load(options));
  warn_of(runtime->drafter_findings());
  spdlog::debug("loaded in {:.2f} s; kernels: {}, {} threads", runtime->load_seconds(), runtime->target().kernels().name,
                runtime->pool().size());
  return runtime;
}

void StandaloneFlags::add_to(CLI::App& app) {
  app.add_option("-d,--drafter", options.drafter, kDrafterHelp)->required();
  app.add_option("-m,--model", options.target,
                 "target (GGUF, or a known name): needed where the drafter shares its embedding or output matrix");
  drafter.add_to(app);
  add_compute(app, options.threads, options.isa);
  app.add_flag("--float32", float32, "compute with the weights as stored: the slow reference");
}

Expected<std::unique_ptr<StandaloneDrafter>> StandaloneFlags::load() {
  options.precision = float32 ? DraftPrecision::kFloat32 : DraftPrecision::kServed;
  AERIE_ASSIGN(options.reading, drafter.options());
  AERIE_ASSIGN(auto loaded, StandaloneDrafter::load(options));
  warn_of(loaded->checkpoint().findings);
  return loaded;
}

void PromptFlags::add_to(CLI::App& app) {
  auto* text = app.add_option("-p,--prompt", prompt, "what the user says");
  auto* file = app.add_option("--messages", messages_file, "JSON file with a list of {\"role\", \"content\"}");
  text->excludes(file);
  app.add_flag("--raw", raw, "take the prompt as it is, without the chat template")->excludes(file);
}

Expected<std::vector<int32_t>> PromptFlags::tokens(const Runtime& runtime) const {
  if (prompt.empty() && messages_file.empty()) return invalid_argument("a prompt is needed: -p TEXT or --messages FILE");
  if (raw) return runtime.tokenizer().encode_raw_prompt(prompt);
  std::vector<ChatMessage> messages = {{"user", prompt}};
  if (!messages_file.empty()) {
    AERIE_ASSIGN(messages, read_messages(messages_file));
  }
  if (runtime.chat_template() == nullptr) return unsupported("{}: has no chat template; give --raw to do without", runtime.file().path());
  AERIE_ASSIGN(const RenderedPrompt rendered, runtime.chat_template()->render(messages, true));
  return runtime.tokenizer().encode(rendered);
}

namespace {
std::atomic<bool> interrupt_flag{false};
}

const std::atomic<bool>& interrupted() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupt_flag.store(true, std::memory_order_relaxed); };
    // A second Ctrl-C kills: nobody should have to wait for a flag to be looked at.
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    return true;
  }();
  (void)installed;
  return interrupt_flag;
}

uint64_t peak_rss_bytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

nlohmann::json to_json(const GenerateResult& result, const std::string& text, size_t prompt_tokens) {
  const DraftStats& d = result.draft;
  return {{"text", text},
          {"token_ids", result.tokens},
          {"prompt_tokens", prompt_tokens},
          {"generated_tokens", result.tokens.size()},
          {"finish_reason", result.finish_reason},
          {"prefill_seconds", result.prefill_seconds},
          {"decode_seconds", result.decode_seconds},
          {"decode_tokens_per_second", result.decode_tokens_per_second()},
          {"draft",
           {{"k", draft_tokens_json(d.k)},
            {"cycles", d.cycles},
            {"drafted", d.drafted},
            {"accepted", d.accepted},
            {"acceptance_length", d.acceptance_length()},
            {"accepted_per_position", d.accepted_per_position},
            {"accepted_per_cycle", d.accepted_per_cycle}}},
          {"peak_rss_bytes", peak_rss_bytes()}};
}

Expected<GenerateResult> generate_text(Runtime& runtime, const std::vector<int32_t>& prompt, GenerateOptions options,
                                       const std::function<void(const std::string&)>& show) {
  Detokenizer detokenizer(runtime.tokenizer());
  options.cancel = &interrupted();
  options.on_token = [&](int32_t token) {
    if (auto piece = detokenizer.push(token); piece.ok()) show(*piece);
    return true;
  };
  AERIE_ASSIGN(GenerateResult result, generate(runtime, prompt, options));
  show(detokenizer.flush());
  return result;
}

void print_piece(const std::string& piece) {
  std::fwrite(piece.data(), 1, piece.size(), stdout);
  std::fflush(stdout);
}

void DraftFlag::add_to(CLI::App& app) {
  app.add_option(
         "-k,--draft-tokens", k,
         fmt::format("drafts per cycle, 0 to {} (default: chosen before every cycle from the measured costs and the running acceptance)",
                     kMaxDraftTokens))
      ->check(CLI::Range(0, kMaxDraftTokens));
}

nlohmann::json draft_tokens_json(int k) { return k == kAutoDraftTokens ? nlohmann::json("auto") : nlohmann::json(k); }

void print_json(const nlohmann::json& json) {
  std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void print_report(const Report& report, bool json) {
  if (json) {
    print_json(report.json());
  } else {
    std::fputs(report.text().c_str(), stdout);
  }
}

std::string summary(const GenerateResult& result, size_t prompt_tokens) {
  std::string line = fmt::format("{} prompt tokens in {:.3f} s; {} tokens at {:.1f} tokens/s ({})", prompt_tokens, result.prefill_seconds,
                                 result.tokens.size(), result.decode_tokens_per_second(), result.finish_reason);
  const DraftStats& d = result.draft;
  if (d.k != 0) {
    line += fmt::format(
        "; k = {}: {} of {} drafts accepted in {} cycles, acceptance length {:.2f} (tokens per verify, the target's own included)",
        d.k == kAutoDraftTokens ? "auto" : std::to_string(d.k), d.accepted, d.drafted, d.cycles, d.acceptance_length());
  }
  return line;
}

}  // namespace aerie::cli
