#include "formats/json_text.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "formats/printable.h"

namespace aerie {
namespace {

struct Extent {
  int depth = 0;
  size_t values = 1;  // at most
};

// Counted on the text before it becomes a tree: brackets and commas inside strings are skipped.
Extent extent_of(std::string_view text) {
  int depth = 0;
  Extent out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      out.depth = std::max(out.depth, ++depth);
      ++out.values;
    } else if (c == ',') {
      ++out.values;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return out;
}

}  // namespace

Expected<nlohmann::json> parse_json(std::string_view text, int max_depth) {
  using Json = nlohmann::json;
  const Extent extent = extent_of(text);
  if (extent.depth > max_depth) return corrupt("the JSON nests deeper than {} levels", max_depth);
  if (extent.values > kMaxJsonValues) return resource_error("the JSON holds more than {} values", kMaxJsonValues);
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

double shortest_decimal(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

}  // namespace aerie
