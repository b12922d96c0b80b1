// `value | NAME(arguments)`.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"
#include "text/utf8.h"

namespace aerie::jinja {
namespace {

using Result = Expected<Value>;

/// `path` is a dotted name, or an integer.
Result lookup(Runtime& runtime, const Value& object, const Value& path) {
  if (path.as_text() == nullptr) return get_item(runtime, object, path);
  Value found = object;
  const std::string dot = ".";
  for (const Text& part : split(*path.as_text(), &dot, -1, false)) {
    int64_t index = 0;
    const char* end = part.bytes().data() + part.size();
    const bool is_index = !part.empty() && std::from_chars(part.bytes().data(), end, index).ptr == end;
    AERIE_ASSIGN(found, get_item(runtime, found, is_index ? Value(index) : Value(part)));
  }
  return found;
}

/// Arguments behind the first `count` positional ones.
Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, rest.positional.size())));
  return rest;
}

Result map_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  AERIE_ASSIGN(std::vector<Value> items, iterate(runtime, input));
  const Value* attribute = arguments.positional.empty() ? arguments.get(0, "attribute") : nullptr;
  const Value* otherwise = attribute == nullptr ? nullptr : arguments.get(1, "default");
  const Text* filter = attribute != nullptr || arguments.positional.empty() ? nullptr : arguments.positional[0].as_text();
  if (attribute == nullptr && filter == nullptr) return invalid_argument("'map' needs the name of a filter, or an attribute");
  const Arguments rest = rest_of(arguments, 1);
  for (Value& item : items) {
    AERIE_TRY(runtime.charge(1));
    if (filter != nullptr) {
      AERIE_ASSIGN(item, apply_filter(runtime, filter->bytes(), item, rest));
      continue;
    }
    AERIE_ASSIGN(item, lookup(runtime, item, *attribute));
    if (item.is_undefined() && otherwise != nullptr) item = *otherwise;
  }
  return list_value(runtime, std::move(items));
}

/// select, reject, selectattr, rejectattr.
Result select_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const bool by_attribute = name == "selectattr" || name == "rejectattr";
  const bool keeps = name == "select" || name == "selectattr";
  AERIE_ASSIGN(const std::vector<Value> items, iterate(runtime, input));
  const size_t test_at = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) return invalid_argument("'{}' needs an attribute", name);
  const Value* test = arguments.positional.size() > test_at ? &arguments.positional[test_at] : nullptr;
  if (test != nullptr && test->as_text() == nullptr)
    return invalid_argument("'{}' is given {}, expected a test's name", name, type_name(*test));
  const Arguments rest = rest_of(arguments, test_at + 1);
  std::vector<Value> kept;
  for (const Value& item : items) {
    AERIE_TRY(runtime.charge(1));
    Value subject = item;
    if (by_attribute) {
      AERIE_ASSIGN(subject, lookup(runtime, item, arguments.positional[0]));
    }
    bool passes = truthy(subject);
    if (test != nullptr) {
      AERIE_ASSIGN(passes, apply_test(runtime, test->as_text()->bytes(), subject, rest));
    }
    if (passes == keeps) kept.push_back(item);
  }
  return list_value(runtime, std::move(kept));
}

Result join_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("join", 2, {"d", "attribute"}));
  AERIE_ASSIGN(const std::vector<Value> items, iterate(runtime, input));
  const Value* separator = arguments.get(0, "d");
  const Value* attribute = arguments.get(1, "attribute");
  const Text between = separator == nullptr ? Text() : to_text(*separator);
  Text joined;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) joined.append(between);
    Value item = items[i];
    if (attribute != nullptr) {
      AERIE_ASSIGN(item, lookup(runtime, item, *attribute));
    }
    AERIE_TRY(runtime.charge(1 + weight_of(item) / 64));
    joined.append(to_text(item));
    if (joined.size() > kMaxTextBytes) return resource_error("a joined text is longer than {} bytes", kMaxTextBytes);
  }
  return text_value(runtime, std::move(joined));
}

Result replace_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("replace", 3, {"old", "new", "count"}));
  AERIE_ASSIGN(const Text* old_text, arguments.get_text(0, "old"));
  AERIE_ASSIGN(const Text* new_text, arguments.get_text(1, "new"));
  if (old_text == nullptr || new_text == nullptr) return invalid_argument("'replace' needs two strings");
  const Value* count = arguments.get(2, "count");
  int64_t limit = -1;
  if (count != nullptr && !count->is_none()) {
    AERIE_ASSIGN(limit, arguments.get_int(2, "count", -1));
  }
  const Text text = to_text(input);
  AERIE_TRY(runtime.charge(text.size() / 16));
  std::optional<Text> replaced = replace(text, old_text->bytes(), *new_text, limit, kMaxTextBytes);
  if (!replaced) return resource_error("a text is longer than {} bytes after 'replace'", kMaxTextBytes);
  return text_value(runtime, std::move(*replaced));
}

Result tojson_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("tojson", 4, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  // Two signatures are in use: tojson(indent=...) and, first in line, transformers' ensure_ascii.
  const bool ensure_ascii = arguments.get_bool(0, "ensure_ascii", false);
  if (ensure_ascii) return unsupported("'tojson' with ensure_ascii=true is not supported");
  const Value* indent_value = arguments.get(1, "indent");
  int64_t indent = -1;
  if (indent_value != nullptr && !indent_value->is_none()) {
    AERIE_ASSIGN(indent, arguments.get_int(1, "indent", -1));
    indent = std::clamp<int64_t>(indent, 0, 64);
  }
  std::string item_separator = indent < 0 ? ", " : ",";
  std::string key_separator = ": ";
  if (const Value* separators = arguments.get(2, "separators"); separators != nullptr && !separators->is_none()) {
    const List* pair = separators->as_list();
    if (pair == nullptr || pair->items.size() != 2) return invalid_argument("'tojson' needs two separators");
    item_separator = to_text(pair->items[0]).bytes();
    key_separator = to_text(pair->items[1]).bytes();
  }
  AERIE_TRY(runtime.charge(weight_of(input) / 8));
  AERIE_ASSIGN(Text json,
               to_json(input, static_cast<int>(indent), arguments.get_bool(3, "sort_keys", false), item_separator, key_separator));
  return text_value(runtime, std::move(json));
}

Result length_filter(const Value& input) {
  if (const Text* text = input.as_text()) return Value(static_cast<int64_t>(utf8_length(text->bytes())));
  if (const List* list = input.as_list()) return Value(static_cast<int64_t>(list->items.size()));
  if (const Dict* dict = input.as_dict()) return Value(static_cast<int64_t>(dict->items.size()));
  if (input.is_undefined()) return Value(0);
  return invalid_argument("{} has no length", type_name(input));
}

Result first_or_last(Runtime& runtime, const Value& input, bool first) {
  if (const List* list = input.as_list(); list != nullptr && !list->items.empty()) return first ? list->items.front() : list->items.back();
  AERIE_ASSIGN(const std::vector<Value> items, iterate(runtime, input));
  if (items.empty()) return Value::undefined("there is no item in an empty sequence");
  return first ? items.front() : items.back();
}

Result default_filter(const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("default", 2, {"default_value", "boolean"}));
  const bool replace_false = arguments.get_bool(1, "boolean", false);
  if (!input.is_undefined() && !(replace_false && !truthy(input))) return input;
  const Value* otherwise = arguments.get(0, "default_value");
  return otherwise == nullptr ? Value(Text()) : *otherwise;
}

Result int_filter(const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("int", 2, {"default", "base"}));
  const Value* otherwise = arguments.get(0, "default");
  AERIE_ASSIGN(const int64_t base, arguments.get_int(1, "base", 10));
  if (input.is_int() || input.is_bool()) return Value(input.as_int());
  double number = input.is_float() ? input.as_double() : NAN;
  if (input.as_text() != nullptr && base >= 2 && base <= 36) {
    const std::string digits = strip(*input.as_text(), nullptr, true, true).bytes();
    const char* begin = digits.data() + (digits.size() > 1 && digits[0] == '+' && digits[1] != '-');
    const char* end = digits.data() + digits.size();
    int64_t value = 0;
    if (std::from_chars(begin, end, value, static_cast<int>(base)).ptr == end && begin != end) return Value(value);
    if (std::from_chars(begin, end, number).ptr != end) number = NAN;
  }
  if (std::isfinite(number) && std::abs(number) < 9.2e18) return Value(static_cast<int64_t>(number));
  return otherwise == nullptr ? Value(0) : *otherwise;
}

Result float_filter(const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("float", 1, {"default"}));
  if (input.is_number()) return Value(input.as_double());
  if (input.as_text() != nullptr) {
    const std::string digits = strip(*input.as_text(), nullptr, true, true).bytes();
    const char* begin = digits.data() + (digits.size() > 1 && digits[0] == '+' && digits[1] != '-');
    const char* end = digits.data() + digits.size();
    double number = 0;
    if (begin != end && std::from_chars(begin, end, number).ptr == end) return Value(number);
  }
  const Value* otherwise = arguments.get(0, "default");
  return otherwise == nullptr ? Value(0.0) : *otherwise;
}

Result round_filter(const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("round", 2, {"precision", "method"}));
  if (!input.is_number()) return invalid_argument("'round' is given {}, expected a number", type_name(input));
  AERIE_ASSIGN(const int64_t precision, arguments.get_int(0, "precision", 0));
  AERIE_ASSIGN(const Text* method, arguments.get_text(1, "method"));
  const double scale = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(precision, -300, 300)));
  const double scaled = input.as_double() * scale;
  const std::string how = method == nullptr ? "common" : method->bytes();
  if (how != "common" && how != "ceil" && how != "floor")
    return invalid_argument("'round' knows the methods common, ceil and floor, not '{}'", how);
  const double rounded = how == "ceil" ? std::ceil(scaled) : how == "floor" ? std::floor(scaled) : std::nearbyint(scaled);
  const double result = rounded / scale;
  return Value(std::isfinite(result) ? result : input.as_double());
}

/// Items with the key they are ordered by: an attribute if one is asked for, letters without their case.
Expected<std::vector<std::pair<Value, Value>>> keyed(Runtime& runtime, const Value& input, const Value* attribute, bool case_sensitive) {
  AERIE_ASSIGN(const std::vector<Value> items, iterate(runtime, input));
  std::vector<std::pair<Value, Value>> result;
  for (const Value& item : items) {
    Value key = item;
    if (attribute != nullptr && !attribute->is_none()) {
      AERIE_ASSIGN(key, lookup(runtime, item, *attribute));
    }
    if (!case_sensitive && key.as_text() != nullptr) {
      AERIE_ASSIGN(key, text_value(runtime, map_case(*key.as_text(), Case::kLower)));
    }
    result.emplace_back(std::move(key), item);
  }
  return result;
}

/// Stable; an error if two keys have no order.
Status sort_keyed(Runtime& runtime, std::vector<std::pair<Value, Value>>& items, bool reverse) {
  Status failure;
  const auto less = [&](const auto& a, const auto& b) {
    if (!failure.ok()) return false;
    const Expected<int> order = compare(runtime, a.first, b.first);
    Status status = order.ok() ? runtime.charge(1) : order.status();
    if (!status.ok()) {
      failure = std::move(status);
      return false;
    }
    return reverse ? *order > 0 : *order < 0;
  };
  // Merging by hand: std::stable_sort may not be given an order that stops being one half-way.
  std::vector<std::pair<Value, Value>> merged(items.size());
  for (size_t width = 1; width < items.size() && failure.ok(); width *= 2) {
    for (size_t begin = 0; begin < items.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, items.size());
      const size_t end = std::min(begin + 2 * width, items.size());
      for (size_t left = begin, right = middle, out = begin; out < end; ++out) {
        const bool take_right = left == middle || (right < end && less(items[right], items[left]));
        merged[out] = items[take_right ? right++ : left++];
      }
    }
    items.swap(merged);
  }
  return failure;
}

Result sort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("sort", 3, {"reverse", "case_sensitive", "attribute"}));
  AERIE_ASSIGN(auto items, keyed(runtime, input, arguments.get(2, "attribute"), arguments.get_bool(1, "case_sensitive", false)));
  AERIE_TRY(sort_keyed(runtime, items, arguments.get_bool(0, "reverse", false)));
  std::vector<Value> sorted;
  for (auto& [key, item] : items) sorted.push_back(std::move(item));
  return list_value(runtime, std::move(sorted));
}

Result dictsort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("dictsort", 3, {"case_sensitive", "by", "reverse"}));
  AERIE_ASSIGN(const Text* by, arguments.get_text(1, "by"));
  if (input.as_dict() == nullptr) return invalid_argument("'dictsort' is given {}, expected a dict", type_name(input));
  AERIE_ASSIGN(const Value pairs, call_method(runtime, input, "items", {}));
  const Value column(by != nullptr && by->bytes() == "value" ? 1 : 0);
  AERIE_ASSIGN(auto items, keyed(runtime, pairs, &column, arguments.get_bool(0, "case_sensitive", false)));
  AERIE_TRY(sort_keyed(runtime, items, arguments.get_bool(2, "reverse", false)));
  std::vector<Value> sorted;
  for (auto& [key, item] : items) sorted.push_back(std::move(item));
  return list_value(runtime, std::move(sorted));
}

Result unique_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("unique", 2, {"case_sensitive", "attribute"}));
  AERIE_ASSIGN(const auto items, keyed(runtime, input, arguments.get(1, "attribute"), arguments.get_bool(0, "case_sensitive", false)));
  std::vector<Value> kept_keys;
  std::vector<Value> kept;
  for (const auto& [key, item] : items) {
    AERIE_TRY(runtime.charge(1 + kept_keys.size()));
    const Value& wanted = key;
    if (std::any_of(kept_keys.begin(), kept_keys.end(), [&](const Value& other) { return equals(other, wanted); })) continue;
    kept_keys.push_back(key);
    kept.push_back(item);
  }
  return list_value(runtime, std::move(kept));
}

Result extreme_filter(Runtime& runtime, const Value& input, const Arguments& arguments, bool largest) {
  AERIE_TRY(arguments.check(largest ? "max" : "min", 2, {"case_sensitive", "attribute"}));
  AERIE_ASSIGN(const auto items, keyed(runtime, input, arguments.get(1, "attribute"), arguments.get_bool(0, "case_sensitive", false)));
  if (items.empty()) return Value::undefined("an empty sequence has no extreme");
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    AERIE_ASSIGN(const int order, compare(runtime, items[i].first, items[best].first));
    if (largest ? order > 0 : order < 0) best = i;
  }
  return items[best].second;
}

Result sum_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("sum", 2, {"attribute", "start"}));
  AERIE_ASSIGN(const auto items, keyed(runtime, input, arguments.get(0, "attribute"), true));
  const Value* start = arguments.get(1, "start");
  Value total = start == nullptr ? Value(0) : *start;
  for (const auto& [key, item] : items) {
    if (!key.is_number() || !total.is_number()) return invalid_argument("'sum' is given {}, expected numbers", type_name(key));
    int64_t whole = 0;
    if (total.is_float() || key.is_float()) {
      total = Value(total.as_double() + key.as_double());
    } else if (__builtin_add_overflow(total.as_int(), key.as_int(), &whole)) {
      return invalid_argument("an integer goes beyond 64 bits");
    } else {
      total = Value(whole);
    }
  }
  return total;
}

Result indent_filter(Runtime& runtime, const Text& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("indent", 3, {"width", "first", "blank"}));
  const Value* width = arguments.get(0, "width");
  Text margin("    ");
  if (width != nullptr && width->as_text() != nullptr) {
    margin = *width->as_text();
  } else {
    AERIE_ASSIGN(const int64_t columns, arguments.get_int(0, "width", 4));
    margin = Text(std::string(static_cast<size_t>(std::clamp<int64_t>(columns, 0, 256)), ' '));
  }
  const bool first = arguments.get_bool(1, "first", false);
  const bool blank = arguments.get_bool(2, "blank", false);
  Text with_end = input;
  with_end.append("\n", Text::kTemplate);  // so that a newline at the end starts one more line, as in Jinja2
  const std::vector<Text> lines = split_lines(with_end);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", Text::kTemplate);
    if ((i > 0 || first) && (blank || i == 0 || !lines[i].empty())) out.append(margin);
    out.append(lines[i]);
    if (out.size() > kMaxTextBytes) return resource_error("an indented text is longer than {} bytes", kMaxTextBytes);
  }
  return text_value(runtime, std::move(out));
}

/// Jinja2's own title: words begin behind white space and "-([{<".
Result title_filter(Runtime& runtime, const Text& input) {
  Text out;
  bool begins = true;
  for (size_t at = 0; at < input.size();) {
    const Utf8Step step = utf8_next(std::string_view(input.bytes()).substr(at));
    out.append(map_case(input.substr(at, step.length), begins ? Case::kUpper : Case::kLower));
    begins = is_python_space(step.code) || step.code == '-' || step.code == '(' || step.code == '{' || step.code == '[' || step.code == '<';
    at += step.length;
  }
  return text_value(runtime, std::move(out));
}

Result escape_filter(Runtime& runtime, const Text& input) {
  Text out;
  for (size_t i = 0; i < input.size(); ++i) {
    const char c = input.bytes()[i];
    const std::string_view name = c == '&'    ? "&amp;"
                                  : c == '<'  ? "&lt;"
                                  : c == '>'  ? "&gt;"
                                  : c == '"'  ? "&#34;"
                                  : c == '\'' ? "&#39;"
                                              : std::string_view(&c, 1);
    out.append(name, input.marks()[i]);
  }
  return text_value(runtime, std::move(out));
}

Result list_filter(Runtime& runtime, const Value& input) {
  AERIE_ASSIGN(std::vector<Value> items, iterate(runtime, input));
  return list_value(runtime, std::move(items));
}

Result reverse_filter(Runtime& runtime, const Value& input) {
  AERIE_ASSIGN(std::vector<Value> items, iterate(runtime, input));
  std::reverse(items.begin(), items.end());
  if (input.as_text() == nullptr) return list_value(runtime, std::move(items));
  Text out;
  for (const Value& item : items) out.append(*item.as_text());
  return text_value(runtime, std::move(out));
}

Result items_filter(Runtime& runtime, const Value& input) {
  if (input.is_undefined()) return list_value(runtime, {});
  if (input.as_dict() == nullptr) return invalid_argument("'items' is given {}, expected a dict", type_name(input));
  return call_method(runtime, input, "items", {});
}

Result abs_filter(const Value& input) {
  if (input.is_float()) return Value(std::abs(input.as_double()));
  if (!input.is_number() || input.as_int() == INT64_MIN) return invalid_argument("'abs' is given {}, expected a number", type_name(input));
  return Value(std::abs(input.as_int()));
}

Result trim_filter(Runtime& runtime, const Text& input, const Arguments& arguments) {
  AERIE_TRY(arguments.check("trim", 1, {"chars"}));
  AERIE_ASSIGN(const Text* chars, arguments.get_text(0, "chars"));
  return text_value(runtime, strip(input, chars == nullptr ? nullptr : &chars->bytes(), true, true));
}

enum class Filter {
  kAbs,
  kCapitalize,
  kDefault,
  kDictsort,
  kEscape,
  kFirst,
  kFloat,
  kIndent,
  kInt,
  kItems,
  kJoin,
  kLast,
  kLength,
  kList,
  kLower,
  kMap,
  kMax,
  kMin,
  kReplace,
  kReverse,
  kRound,
  kSelect,
  kSort,
  kString,
  kSum,
  kTitle,
  kTojson,
  kTrim,
  kUnique,
  kUpper,
};

const std::unordered_map<std::string_view, Filter>& filter_names() {
  static const std::unordered_map<std::string_view, Filter> names = {
      {"abs", Filter::kAbs},           {"capitalize", Filter::kCapitalize},
      {"default", Filter::kDefault},   {"d", Filter::kDefault},
      {"dictsort", Filter::kDictsort}, {"escape", Filter::kEscape},
      {"e", Filter::kEscape},          {"first", Filter::kFirst},
      {"float", Filter::kFloat},       {"indent", Filter::kIndent},
      {"int", Filter::kInt},           {"items", Filter::kItems},
      {"join", Filter::kJoin},         {"last", Filter::kLast},
      {"length", Filter::kLength},     {"count", Filter::kLength},
      {"list", Filter::kList},         {"lower", Filter::kLower},
      {"map", Filter::kMap},           {"max", Filter::kMax},
      {"min", Filter::kMin},           {"replace", Filter::kReplace},
      {"reverse", Filter::kReverse},   {"round", Filter::kRound},
      {"select", Filter::kSelect},     {"reject", Filter::kSelect},
      {"selectattr", Filter::kSelect}, {"rejectattr", Filter::kSelect},
      {"sort", Filter::kSort},         {"string", Filter::kString},
      {"safe", Filter::kString},       {"sum", Filter::kSum},
      {"title", Filter::kTitle},       {"tojson", Filter::kTojson},
      {"trim", Filter::kTrim},         {"unique", Filter::kUnique},
      {"upper", Filter::kUpper},
  };
  return names;
}

}  // namespace

Result apply_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const auto found = filter_names().find(name);
  if (found == filter_names().end()) return invalid_argument("there is no filter called '{}'", name);
  const auto as_text = [&] { return to_text(input); };
  AERIE_TRY(runtime.charge(1 + (input.as_text() != nullptr ? input.as_text()->size() / 64 : 0)));
  switch (found->second) {
    case Filter::kMap: return map_filter(runtime, input, arguments);
    case Filter::kSelect: return select_filter(runtime, name, input, arguments);
    case Filter::kJoin: return join_filter(runtime, input, arguments);
    case Filter::kTojson: return tojson_filter(runtime, input, arguments);
    case Filter::kDefault: return default_filter(input, arguments);
    case Filter::kInt: return int_filter(input, arguments);
    case Filter::kFloat: return float_filter(input, arguments);
    case Filter::kRound: return round_filter(input, arguments);
    case Filter::kSort: return sort_filter(runtime, input, arguments);
    case Filter::kDictsort: return dictsort_filter(runtime, input, arguments);
    case Filter::kUnique: return unique_filter(runtime, input, arguments);
    case Filter::kMax:
    case Filter::kMin: return extreme_filter(runtime, input, arguments, found->second == Filter::kMax);
    case Filter::kSum: return sum_filter(runtime, input, arguments);
    default: break;
  }
  // What follows reads its input as text, which for a container is long work.
  AERIE_TRY(runtime.charge(weight_of(input) / 16));
  if (found->second == Filter::kReplace) return replace_filter(runtime, input, arguments);
  if (found->second == Filter::kTrim) return trim_filter(runtime, as_text(), arguments);
  if (found->second == Filter::kIndent) return indent_filter(runtime, as_text(), arguments);
  AERIE_TRY(arguments.check(name, 0));
  switch (found->second) {
    case Filter::kAbs: return abs_filter(input);
    case Filter::kCapitalize: return text_value(runtime, capitalize(as_text()));
    case Filter::kEscape: return escape_filter(runtime, as_text());
    case Filter::kFirst: return first_or_last(runtime, input, true);
    case Filter::kLast: return first_or_last(runtime, input, false);
    case Filter::kItems: return items_filter(runtime, input);
    case Filter::kLength: return length_filter(input);
    case Filter::kList: return list_filter(runtime, input);
    case Filter::kLower: return text_value(runtime, map_case(as_text(), Case::kLower));
    case Filter::kUpper: return text_value(runtime, map_case(as_text(), Case::kUpper));
    case Filter::kReverse: return reverse_filter(runtime, input);
    case Filter::kString: return text_value(runtime, as_text());
    case Filter::kTitle: return title_filter(runtime, as_text());
    default: return internal_error("the filter '{}' is not wired up", name);
  }
}

}  // namespace aerie::jinja
