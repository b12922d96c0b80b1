// aerie chat: a conversation on the terminal.
#include <cstdio>
#include <iostream>

#include "command.h"

namespace aerie::cli {
namespace {

struct ChatFlags {
  ModelFlags model;
  std::string system;
  int max_tokens = 512;
  DraftFlag draft;
};

Status chat(ChatFlags& flags) {
  AERIE_ASSIGN(const auto runtime, flags.model.load());
  if (runtime->chat_template() == nullptr) return unsupported("{}: has no chat template", runtime->file().path());
  std::vector<ChatMessage> messages;
  if (!flags.system.empty()) messages.push_back({"system", flags.system});
  std::fprintf(stderr, "Type a message and Enter; an empty line or Ctrl-D ends the conversation.\n");
  for (std::string line; std::fprintf(stderr, "> "), std::getline(std::cin, line) && !line.empty();) {
    messages.push_back({"user", line});
    AERIE_ASSIGN(const RenderedPrompt rendered, runtime->chat_template()->render(messages, true));
    AERIE_ASSIGN(const std::vector<int32_t> prompt, runtime->tokenizer().encode(rendered));
    GenerateOptions options;
    options.max_new_tokens = flags.max_tokens;
    options.draft_tokens = flags.draft.tokens(*runtime);
    std::string answer;
    AERIE_ASSIGN(const GenerateResult result, generate_text(*runtime, prompt, options, [&](const std::string& piece) {
                   answer += piece;
                   print_piece(piece);
                 }));
    std::printf("\n");
    spdlog::info("{}", summary(result, prompt.size()));
    if (result.finish_reason == "cancelled") return cancelled("interrupted");
    messages.push_back({"assistant", answer});
  }
  return {};
}

}  // namespace

void add_chat(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("chat", "talk with the target, each answer streamed");
  auto flags = std::make_shared<ChatFlags>();
  flags->model.add_to(*command, true);
  command->add_option("--system", flags->system, "system message (default: the template's)");
  command->add_option("-n,--max-tokens", flags->max_tokens, "tokens of one answer at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  flags->draft.add_to(*command);
  command->callback([flags, &work] { work = [flags] { return chat(*flags); }; });
}

}  // namespace aerie::cli
