// Files of prompts: one JSON object a line, plain or gzip.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat_template.h"

namespace aerie {

/// A conversation to be had: messages that a user (or a system message before them) writes, each user message answered in turn.
struct Prompt {
  std::string id;
  std::vector<ChatMessage> messages;  // roles system (first only) and user
};

/// Reads lines {"id", "messages": [{"role","content"}...]}, {"id", "turns": ["..."]} or {"prompt": "..."}; other keys are left
/// aside. kCorrupt names the file and the line.
Expected<std::vector<Prompt>> read_prompts(const std::string& path);

/// Messages of one conversation from a JSON file: a list of {"role","content"}, or an object with such a list as "messages".
Expected<std::vector<ChatMessage>> read_messages(const std::string& path);

}  // namespace aerie
