#include "engine/prompts.h"

#include "base/file_io.h"
#include "base/gzip.h"
#include "formats/json_text.h"

namespace aerie {
namespace {

constexpr uint64_t kMaxPromptFileBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxMessageFileBytes = uint64_t{64} << 20;

Expected<std::vector<ChatMessage>> messages_from_json(const nlohmann::json& list) {
  if (!list.is_array() || list.empty()) return corrupt("expected a list of messages that is not empty");
  std::vector<ChatMessage> messages;
  for (const auto& item : list) {
    const auto text = [&](const char* key) -> const std::string* {
      const auto found = item.is_object() ? item.find(key) : item.end();
      return item.is_object() && found != item.end() && found->is_string() ? found->get_ptr<const std::string*>() : nullptr;
    };
    const std::string* role = text("role");
    const std::string* content = text("content");
    if (role == nullptr || content == nullptr) return corrupt("message {}: expected the texts \"role\" and \"content\"", messages.size());
    messages.push_back({*role, *content});
  }
  return messages;
}

Expected<Prompt> prompt_from_line(const std::string& line) {
  AERIE_ASSIGN(const nlohmann::json json, parse_json(line));
  if (!json.is_object()) return corrupt("expected a JSON object");
  Prompt prompt;
  if (const auto id = json.find("id"); id != json.end()) prompt.id = id->is_string() ? id->get<std::string>() : id->dump();
  if (const auto messages = json.find("messages"); messages != json.end()) {
    AERIE_ASSIGN(prompt.messages, messages_from_json(*messages));
  } else if (const auto turns = json.find("turns"); turns != json.end() && turns->is_array()) {
    for (const auto& turn : *turns) {
      if (!turn.is_string()) return corrupt("\"turns\" must be a list of texts");
      prompt.messages.push_back({"user", turn.get<std::string>()});
    }
  } else if (const auto text = json.find("prompt"); text != json.end() && text->is_string()) {
    prompt.messages.push_back({"user", text->get<std::string>()});
  }
  if (prompt.messages.empty()) return corrupt("expected \"messages\", \"turns\" or \"prompt\"");
  for (size_t i = 0; i < prompt.messages.size(); ++i) {
    const std::string& role = prompt.messages[i].role;
    if (role != "user" && !(role == "system" && i == 0 && prompt.messages.size() > 1)) {
      return corrupt("message {} has the role \"{}\"; a prompt holds what the user says, answers are generated", i, role);
    }
  }
  return prompt;
}

}  // namespace

Expected<std::vector<Prompt>> read_prompts(const std::string& path) {
  AERIE_ASSIGN(const std::string content, read_maybe_gzip(path, kMaxPromptFileBytes));
  std::vector<Prompt> prompts;
  size_t line_number = 0;
  for (size_t begin = 0; begin < content.size();) {
    size_t end = content.find('\n', begin);
    if (end == std::string::npos) end = content.size();
    ++line_number;
    const std::string line = content.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto prompt = prompt_from_line(line);
    if (!prompt.ok()) return prompt.status().with_context(fmt::format("{}, line {}", path, line_number));
    prompts.push_back(std::move(prompt).value());
  }
  if (prompts.empty()) return corrupt("{}: has no prompts", path);
  return prompts;
}

Expected<std::vector<ChatMessage>> read_messages(const std::string& path) {
  AERIE_ASSIGN(const std::string content, read_file(path, kMaxMessageFileBytes));
  const auto read = [&]() -> Expected<std::vector<ChatMessage>> {
    AERIE_ASSIGN(const nlohmann::json json, parse_json(content));
    return messages_from_json(json.is_object() && json.contains("messages") ? json["messages"] : json);
  };
  auto messages = read();
  if (!messages.ok()) return messages.status().with_context(path);
  return messages;
}

}  // namespace aerie
