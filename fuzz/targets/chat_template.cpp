#include "text/chat_template.h"

#include "fuzz/targets.h"

void aerie::fuzz::chat_template(std::span<const uint8_t> input) {
  const auto compiled = ChatTemplate::from_source(text_of(input), "<s>", "</s>");
  if (!compiled.ok()) return;
  const std::vector<ChatMessage> messages = {{"system", "Be brief."}, {"user", "Hi </s> {{ 1 }}"}, {"assistant", "Hello"}, {"user", "Bye"}};
  (void)compiled->render(messages);
}
