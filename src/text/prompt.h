// A rendered prompt that remembers which bytes the template wrote and which came from the caller's messages.
#pragma once

#include <string>
#include <vector>

namespace aerie {

struct PromptSpan {
  std::string text;
  bool from_template = false;  // only such text may spell special tokens
};

/// What a chat template made of a conversation. Neighbouring spans differ in origin.
struct RenderedPrompt {
  std::vector<PromptSpan> spans;

  std::string text() const {
    std::string all;
    for (const PromptSpan& span : spans) all += span.text;
    return all;
  }
};

}  // namespace aerie
