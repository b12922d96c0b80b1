// aerie tokenize: text to ids, and messages to the templated text.
#include <cstdio>

#include "base/gzip.h"
#include "command.h"
#include "engine/prompts.h"
#include "formats/json_text.h"

namespace aerie::cli {
namespace {

struct TokenizeFlags {
  std::string model, jsonl, messages, text;
  bool special = false, render = false, no_generation_prompt = false;
};

Expected<std::vector<int32_t>> encode(const Tokenizer& tokenizer, const std::string& text, bool special) {
  return special ? tokenizer.encode_with_special(text) : tokenizer.encode(text);
}

void print_line(const nlohmann::json& json) {
  std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

Status tokenize_lines(const Tokenizer& tokenizer, const TokenizeFlags& flags) {
  AERIE_ASSIGN(const std::string content, read_maybe_gzip(flags.jsonl, uint64_t{1} << 30));
  size_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line(content.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto json = parse_json(line);
    if (!json.ok()) return json.status().with_context(fmt::format("{}, line {}", flags.jsonl, number));
    if (!json->is_object() || !json->contains("text") || !(*json)["text"].is_string()) {
      return corrupt("{}, line {}: expected an object with the string \"text\"", flags.jsonl, number);
    }
    AERIE_ASSIGN(const auto ids, encode(tokenizer, (*json)["text"].get<std::string>(), flags.special));
    print_line({{"ids", ids}});
  }
  return {};
}

Status run_tokenize(const TokenizeFlags& flags) {
  AERIE_ASSIGN(const std::string path, resolve_target(flags.model));
  AERIE_ASSIGN(const GgufFile file, GgufFile::open(path));
  AERIE_ASSIGN(const Tokenizer tokenizer, Tokenizer::from_gguf(file));
  if (!flags.jsonl.empty()) return tokenize_lines(tokenizer, flags);
  if (!flags.messages.empty()) {
    AERIE_ASSIGN(const std::vector<ChatMessage> messages, read_messages(flags.messages));
    AERIE_ASSIGN(const ChatTemplate chat_template, ChatTemplate::from_gguf(file, tokenizer));
    AERIE_ASSIGN(const RenderedPrompt rendered, chat_template.render(messages, !flags.no_generation_prompt));
    if (flags.render) {
      const std::string text = rendered.text();
      std::fwrite(text.data(), 1, text.size(), stdout);
      return {};
    }
    AERIE_ASSIGN(const auto ids, tokenizer.encode(rendered));
    print_line({{"ids", ids}});
    return {};
  }
  AERIE_ASSIGN(const auto ids, encode(tokenizer, flags.text, flags.special));
  print_line({{"ids", ids}});
  return {};
}

}  // namespace

void add_tokenize(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("tokenize", "print token ids, or the text that the chat template makes of messages");
  auto flags = std::make_shared<TokenizeFlags>();
  command->add_option("-m,--model", flags->model, "target: a GGUF file, or the name of a known model (smollm2)")->required();
  auto* input = command->add_option_group("input", "one of");
  input->add_option("--jsonl", flags->jsonl, "lines {\"text\"}, answered by lines {\"ids\"}");
  auto* messages = input->add_option("--messages", flags->messages, "JSON file with a list of {\"role\", \"content\"}");
  input->add_option("--text", flags->text, "one text");
  input->require_option(1);
  command->add_flag("--special", flags->special, "read spellings of special tokens as these tokens")->excludes(messages);
  command->add_flag("--render", flags->render, "print the templated text instead of ids")->needs(messages);
  command->add_flag("--no-generation-prompt", flags->no_generation_prompt, "without the opening of the answer")->needs(messages);
  command->callback([flags, &work] { work = [flags] { return run_tokenize(*flags); }; });
}

}  // namespace aerie::cli
