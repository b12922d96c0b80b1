// A model's chat template: from messages to the prompt the model was trained on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "text/jinja_value.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace aerie {

struct ChatMessage {
  std::string role;  // system, user, assistant, ...
  std::string content;
  /// Further keys of the message (tool_calls, name, ...), or a `content` that is not a string: a dict from
  /// jinja::value_from_json, or none. Its keys win over `role` and `content`.
  jinja::Value extra = {};
};

/// A compiled template. Immutable, thread-safe, movable.
///
/// Compiled as transformers does: trim_blocks and lstrip_blocks on, one newline at the end of the source dropped, loop controls
/// (break, continue), `{% generation %}` blocks transparent. The template runs under budgets (jinja_interpreter.h) and reaches
/// nothing but the values given here. Text of the messages is marked as input, so that Tokenizer::encode reads no special token
/// in it. A role is an exception if it is one of the well-known words, since some templates spell a token around it
/// ('<|' + role + '|>').
class ChatTemplate {
 public:
  /// kNotFound when the file has no `tokenizer.chat_template`.
  static Expected<ChatTemplate> from_gguf(const GgufFile& file, const Tokenizer& tokenizer);
  /// kInvalidArgument with the line when `source` does not parse.
  static Expected<ChatTemplate> from_source(std::string source, std::string bos_token = "", std::string eos_token = "");

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  struct Options {
    bool add_generation_prompt = true;
    jinja::Value tools = {};                                           // a list of dicts, or none
    std::vector<std::pair<std::string, jinja::Value>> variables = {};  // e.g. enable_thinking
    int64_t unix_time = 0;                                             // what strftime_now sees, as UTC: the caller's clock, never ours
  };
  /// kInvalidArgument carries the template's line, or the words it passed to raise_exception; kResource a budget.
  Expected<RenderedPrompt> render(const std::vector<ChatMessage>& messages, const Options& options) const;
  Expected<RenderedPrompt> render(const std::vector<ChatMessage>& messages, bool add_generation_prompt = true) const;

  const std::string& source() const;
  /// SHA-256 of the source, 64 hex digits.
  const std::string& sha256() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace aerie
