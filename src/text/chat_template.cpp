#include "text/chat_template.h"

#include <algorithm>
#include <optional>

#include "base/file_io.h"
#include "text/jinja_interpreter.h"
#include "text/utf8.h"

namespace aerie {
namespace {

// A role is one of a handful of words that the program deals with, not free text; a word that no one knows stays input.
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function", "model", "ipython"};

char mark_of_role(const std::string& role) {
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles) ? jinja::Text::kTemplate : jinja::Text::kInput;
}

Expected<jinja::Value> message_value(const ChatMessage& message) {
  jinja::Dict dict;
  const auto key = [](const char* name) { return jinja::Text(name); };
  dict.set(key("role"), jinja::Value::string(sanitize_utf8(message.role), mark_of_role(message.role)));
  dict.set(key("content"), jinja::Value::string(sanitize_utf8(message.content), jinja::Text::kInput));
  if (const jinja::Dict* extra = message.extra.as_dict()) {
    for (const auto& [name, value] : extra->items) {
      const jinja::Text* role = name.bytes() == "role" ? value.as_text() : nullptr;
      dict.set(name, role != nullptr ? jinja::Value::string(role->bytes(), mark_of_role(role->bytes())) : value);
    }
  } else if (!message.extra.is_none()) {
    return invalid_argument("the extra keys of a message are {}, expected a dict", jinja::type_name(message.extra));
  }
  return jinja::make_dict(std::move(dict));
}

RenderedPrompt spans_of(const jinja::Text& text) {
  RenderedPrompt prompt;
  for (size_t begin = 0; begin < text.size();) {
    const char mark = text.marks()[begin];
    const size_t found = text.marks().find_first_not_of(mark, begin);
    const size_t end = found == std::string::npos ? text.size() : found;
    prompt.spans.push_back({text.bytes().substr(begin, end - begin), mark == jinja::Text::kTemplate});
    begin = end;
  }
  return prompt;
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  std::string sha256;
  std::string bos_token;
  std::string eos_token;
  jinja::Template compiled;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const { return impl_->source; }
const std::string& ChatTemplate::sha256() const { return impl_->sha256; }

Expected<ChatTemplate> ChatTemplate::from_gguf(const GgufFile& file, const Tokenizer& tokenizer) {
  AERIE_ASSIGN(std::string source, file.get_string("tokenizer.chat_template"));
  const auto spelling = [&](std::optional<int32_t> id) -> std::string {
    if (!id) return "";
    const Expected<std::string_view> bytes = tokenizer.token_bytes(*id);
    return bytes.ok() ? std::string(*bytes) : "";
  };
  Expected<ChatTemplate> made = from_source(std::move(source), spelling(tokenizer.bos_id()), spelling(tokenizer.eos_id()));
  if (!made.ok()) return made.status().with_context(file.path());
  return made;
}

Expected<ChatTemplate> ChatTemplate::from_source(std::string source, std::string bos_token, std::string eos_token) {
  AERIE_ASSIGN(jinja::Template compiled, jinja::Template::compile(source));
  std::string hash = sha256_hex({reinterpret_cast<const uint8_t*>(source.data()), source.size()});
  return ChatTemplate(std::make_unique<const Impl>(
      Impl{std::move(source), std::move(hash), std::move(bos_token), std::move(eos_token), std::move(compiled)}));
}

Expected<RenderedPrompt> ChatTemplate::render(const std::vector<ChatMessage>& messages, const Options& options) const {
  std::vector<jinja::Value> list;
  for (const ChatMessage& message : messages) {
    AERIE_ASSIGN(jinja::Value value, message_value(message));
    list.push_back(std::move(value));
  }
  AERIE_ASSIGN(jinja::Value messages_value, jinja::make_list(std::move(list)));
  jinja::Variables variables = {{"documents", jinja::Value()}};  // later entries win
  variables.insert(variables.end(), options.variables.begin(), options.variables.end());
  variables.emplace_back("messages", std::move(messages_value));
  variables.emplace_back("add_generation_prompt", jinja::Value(options.add_generation_prompt));
  variables.emplace_back("tools", options.tools);
  variables.emplace_back("bos_token", jinja::Value::string(impl_->bos_token));
  variables.emplace_back("eos_token", jinja::Value::string(impl_->eos_token));
  AERIE_ASSIGN(const jinja::Text text, impl_->compiled.render(variables, options.unix_time));
  return spans_of(text);
}

Expected<RenderedPrompt> ChatTemplate::render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const {
  Options options;
  options.add_generation_prompt = add_generation_prompt;
  return render(messages, options);
}

}  // namespace aerie
