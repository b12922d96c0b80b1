#include "formats/json_text.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "formats/printable.h"

namespace aerie {
namespace {

// Counted on the text before it becomes a tree: brackets inside strings are skipped.
int nesting_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Expected<nlohmann::json> parse_json(std::string_view text, int max_depth) {
  using Json = nlohmann::json;
  if (nesting_depth(text) > max_depth) return corrupt("the JSON nests deeper than {} levels", max_depth);
  std::vector<std::unordered_set<std::string>> keys;
  std::string repeated;
  bool is_repeated = false;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.empty() && !keys.back().insert(value.get_ref<const std::string&>()).second) {
      repeated = value.get_ref<const std::string&>();
      is_repeated = true;
    }
    return true;
  };
  try {
    Json root = Json::parse(text.begin(), text.end(), watch);
    if (is_repeated) return corrupt("the JSON key {} appears twice in one object", printable(repeated));
    return root;
  } catch (const Json::parse_error& error) {
    return corrupt("not valid JSON at byte {}", error.byte);
  } catch (const Json::exception&) {
    return corrupt("not valid JSON: a number is out of range");
  }
}

}  // namespace aerie
