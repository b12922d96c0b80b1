#include "doctor/command_line.h"

#include <algorithm>
#include <cctype>

#include "formats/printable.h"

namespace aerie {
namespace {

Expected<std::vector<std::string>> split_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;  // a word has begun, be it empty ('')
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == '\'') {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\\' && i + 1 < text.size()) {
      const char next = text[++i];
      if (next == '\r' && i + 1 < text.size() && text[i + 1] == '\n') ++i;
      // Inside double quotes a shell keeps the backslash before any other character.
      if (quote == '"' && next != '"' && next != '\\') word += c;
      if (next != '\n' && next != '\r') word += next, open = true;
    } else if (quote == '"') {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c, open = true;
    } else if (std::isspace(static_cast<unsigned char>(c))) {
      if (open) words.push_back(std::move(word));
      word.clear(), open = false;
    } else {
      word += c, open = true;
    }
  }
  if (quote != 0) return invalid_argument("the command line has an open {} quote: paste it whole", quote == '"' ? "double" : "single");
  if (open) words.push_back(std::move(word));
  return words;
}

/// "-1" and "-0.5" are values.
bool is_flag(const std::string& word) {
  return word.size() >= 2 && word[0] == '-' && word != "--" && !std::isdigit(static_cast<unsigned char>(word[1])) && word[1] != '.';
}

size_t variable_length(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return 0;
  const auto capital = [](unsigned char c) { return std::isupper(c) || std::isdigit(c) || c == '_'; };
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals), capital) ? equals : 0;
}

}  // namespace

const Flag* CommandLine::find(std::string_view name) const {
  const auto it = std::find_if(flags.rbegin(), flags.rend(), [&](const Flag& flag) { return flag.name == name; });
  return it == flags.rend() ? nullptr : &*it;
}

const std::string* CommandLine::variable(std::string_view name) const {
  const auto it = std::find_if(environment.rbegin(), environment.rend(), [&](const auto& entry) { return entry.first == name; });
  return it == environment.rend() ? nullptr : &it->second;
}

Expected<CommandLine> parse_command_line(std::string_view text) {
  AERIE_ASSIGN(const std::vector<std::string> words, split_words(text));
  CommandLine out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (const size_t length = variable_length(word); length != 0) {
      out.environment.emplace_back(word.substr(0, length), word.substr(length + 1));
      continue;
    }
    if (!is_flag(word)) continue;
    const size_t equals = word.find('=');
    Flag flag;
    flag.name = word.substr(0, equals);
    if (flag.name.starts_with("--")) std::replace(flag.name.begin(), flag.name.end(), '_', '-');
    if (equals != std::string::npos) {
      flag.value = word.substr(equals + 1);
    } else if (i + 1 < words.size() && !is_flag(words[i + 1])) {
      // "-e NAME=value" gives its word to the environment, "--port 30000" keeps it.
      if (variable_length(words[i + 1]) == 0) flag.value = words[++i];
    }
    out.flags.push_back(std::move(flag));
  }
  return out;
}

}  // namespace aerie
