// Methods of strings, dicts and lists. Those that would change a list or dict do not exist, as in Jinja2's immutable sandbox.
#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"
#include "text/utf8.h"

namespace aerie::jinja {
namespace {

constexpr std::string_view kTextMethods[] = {
    "strip",        "lstrip",       "rstrip", "split",   "rsplit",  "splitlines", "startswith", "endswith",
    "replace",      "upper",        "lower",  "title",   "find",    "rfind",      "capitalize", "count",
    "removeprefix", "removesuffix", "join",   "isdigit", "isspace", "isalpha",    "isupper",    "islower",
};
constexpr std::string_view kDictMethods[] = {"items", "keys", "values", "get", "copy"};
constexpr std::string_view kListMethods[] = {"index", "count"};

template <size_t N>
bool is_in(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Status needs_text(std::string_view method, const Value* value) {
  if (value != nullptr && value->as_text() != nullptr) return {};
  return invalid_argument("'{}' is given {}, expected a string", method, value == nullptr ? "nothing" : type_name(*value));
}

Expected<bool> has_affix(const std::string& bytes, const Arguments& arguments, bool at_start) {
  const std::string_view method = at_start ? "startswith" : "endswith";
  AERIE_TRY(arguments.check(method, 1));
  std::vector<Value> affixes;
  if (const Value* given = arguments.get(0, ""); given != nullptr) {
    affixes = given->as_list() != nullptr ? given->as_list()->items : std::vector<Value>{*given};
  } else {
    return invalid_argument("'{}' is given nothing, expected a string", method);
  }
  for (const Value& affix : affixes) {
    AERIE_TRY(needs_text(method, &affix));
    const std::string& wanted = affix.as_text()->bytes();
    if (wanted.size() > bytes.size()) continue;
    if (bytes.compare(at_start ? 0 : bytes.size() - wanted.size(), wanted.size(), wanted) == 0) return true;
  }
  return false;
}

Expected<Value> find_in(const std::string& bytes, const std::string& part, bool last) {
  const size_t at = last ? bytes.rfind(part) : bytes.find(part);
  if (at == std::string::npos) return Value(-1);
  return Value(static_cast<int64_t>(utf8_length(std::string_view(bytes).substr(0, at))));
}

int64_t count_in(const std::string& bytes, const std::string& part) {
  if (part.empty()) return static_cast<int64_t>(utf8_length(bytes)) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = bytes.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

/// "is..." methods: every character passes, and there is one. Letters are those with a case, and all else beyond ASCII.
bool all_characters(const Text& text, std::string_view method) {
  if (text.empty()) return false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_next(std::string_view(text.bytes()).substr(at));
    const bool digit = step.code >= '0' && step.code <= '9';
    const bool letter = (step.code | 0x20) >= 'a' && (step.code | 0x20) <= 'z';
    const bool passes = method == "isdigit" ? digit : method == "isspace" ? is_python_space(step.code) : letter || step.code > 0xBF;
    if (!passes) return false;
    at += step.length;
  }
  return true;
}

Expected<Value> split_method(Runtime& runtime, const Text& self, const Arguments& arguments, bool from_right) {
  AERIE_TRY(arguments.check("split", 2, {"sep", "maxsplit"}));
  AERIE_ASSIGN(const Text* separator, arguments.get_text(0, "sep"));
  AERIE_ASSIGN(const int64_t limit, arguments.get_int(1, "maxsplit", -1));
  if (separator != nullptr && separator->empty()) return invalid_argument("'split' is given an empty separator");
  AERIE_TRY(runtime.charge(self.size() / 16));
  return text_list(runtime, split(self, separator == nullptr ? nullptr : &separator->bytes(), limit, from_right));
}

Expected<Value> text_method(Runtime& runtime, const Text& self, const std::string& name, const Arguments& arguments) {
  AERIE_TRY(runtime.charge(1 + self.size() / 64));
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    AERIE_TRY(arguments.check(name, 1));
    AERIE_ASSIGN(const Text* chars, arguments.get_text(0, "chars"));
    return text_value(runtime, strip(self, chars == nullptr ? nullptr : &chars->bytes(), name != "rstrip", name != "lstrip"));
  }
  if (name == "split" || name == "rsplit") return split_method(runtime, self, arguments, name == "rsplit");
  if (name == "startswith" || name == "endswith") {
    AERIE_ASSIGN(const bool has, has_affix(self.bytes(), arguments, name == "startswith"));
    return Value(has);
  }
  if (name == "replace") return apply_filter(runtime, "replace", Value(self), arguments);
  if (name == "join") {
    AERIE_TRY(arguments.check(name, 1));
    const Value* items = arguments.get(0, "");
    if (items == nullptr) return invalid_argument("'join' is given nothing, expected a list");
    AERIE_ASSIGN(const std::vector<Value> parts, iterate(runtime, *items));
    for (const Value& part : parts) AERIE_TRY(needs_text(name, &part));
    return apply_filter(runtime, "join", *items, Arguments{{Value(self)}, {}});
  }
  if (name == "find" || name == "rfind" || name == "count" || name == "removeprefix" || name == "removesuffix") {
    AERIE_TRY(arguments.check(name, 1));
    AERIE_TRY(needs_text(name, arguments.get(0, "")));
    const std::string& part = arguments.positional[0].as_text()->bytes();
    if (name == "count") return Value(count_in(self.bytes(), part));
    if (name == "find" || name == "rfind") return find_in(self.bytes(), part, name == "rfind");
    AERIE_ASSIGN(const bool has, has_affix(self.bytes(), arguments, name == "removeprefix"));
    if (!has) return Value(self);
    return text_value(runtime, name == "removeprefix" ? self.substr(part.size()) : self.substr(0, self.size() - part.size()));
  }
  AERIE_TRY(arguments.check(name, 0));
  AERIE_TRY(runtime.charge(self.size() / 16));
  if (name == "splitlines") return text_list(runtime, split_lines(self));
  if (name == "upper") return text_value(runtime, map_case(self, Case::kUpper));
  if (name == "lower") return text_value(runtime, map_case(self, Case::kLower));
  if (name == "title") return text_value(runtime, title_words(self));
  if (name == "capitalize") return text_value(runtime, capitalize(self));
  if (name == "isupper" || name == "islower") {
    AERIE_ASSIGN(const bool passed, apply_test(runtime, name.substr(2), Value(self), {}));
    return Value(passed);
  }
  return Value(all_characters(self, name));
}

Expected<Value> dict_method(Runtime& runtime, const Value& self, const std::string& name, const Arguments& arguments) {
  const Dict& dict = *self.as_dict();
  if (name == "get") {
    AERIE_TRY(arguments.check(name, 2, {"default"}));
    const Value* key = arguments.get(0, "key");
    if (key == nullptr) return invalid_argument("'get' needs a key");
    const Value* found = key->as_text() == nullptr ? nullptr : dict.find(key->as_text()->bytes());
    const Value* otherwise = arguments.get(1, "default");
    return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value();
  }
  AERIE_TRY(arguments.check(name, 0));
  if (name == "copy") return self;
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) {
    if (name == "keys") {
      items.emplace_back(key);
    } else if (name == "values") {
      items.push_back(value);
    } else {
      AERIE_ASSIGN(Value pair, list_value(runtime, {Value(key), value}, true));
      items.push_back(std::move(pair));
    }
  }
  return list_value(runtime, std::move(items));
}

Expected<Value> list_method(Runtime& runtime, const List& self, const std::string& name, const Arguments& arguments) {
  AERIE_TRY(arguments.check(name, 1));
  const Value* wanted = arguments.get(0, "");
  if (wanted == nullptr) return invalid_argument("'{}' needs a value", name);
  AERIE_TRY(runtime.charge(self.weight / 64 + self.items.size() / 4));
  if (name == "count")
    return Value(
        static_cast<int64_t>(std::count_if(self.items.begin(), self.items.end(), [&](const Value& v) { return equals(v, *wanted); })));
  const auto found = std::find_if(self.items.begin(), self.items.end(), [&](const Value& v) { return equals(v, *wanted); });
  if (found == self.items.end()) return invalid_argument("'index' looks for a value that the list does not hold");
  return Value(static_cast<int64_t>(found - self.items.begin()));
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  if (value.as_text() != nullptr) return is_in(kTextMethods, name);
  if (value.as_dict() != nullptr) return is_in(kDictMethods, name);
  return value.as_list() != nullptr && is_in(kListMethods, name);
}

Expected<Value> call_method(Runtime& runtime, const Value& self, const std::string& name, const Arguments& arguments) {
  if (self.as_text() != nullptr) return text_method(runtime, *self.as_text(), name, arguments);
  if (self.as_dict() != nullptr) return dict_method(runtime, self, name, arguments);
  return list_method(runtime, *self.as_list(), name, arguments);
}

}  // namespace aerie::jinja
