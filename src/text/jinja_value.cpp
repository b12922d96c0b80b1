#include "text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/utf8.h"

namespace aerie::jinja {

void Dict::set(Text key, Value value) {
  const auto [found, inserted] = index.emplace(key.bytes(), items.size());
  if (inserted) {
    items.emplace_back(std::move(key), std::move(value));
  } else {
    items[found->second].second = std::move(value);
  }
}

const Value* Dict::find(const std::string& key) const {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &items[found->second].second;
}

namespace {

int depth_of(const Value& value) {
  if (const List* list = value.as_list()) return list->depth;
  if (const Dict* dict = value.as_dict()) return dict->depth;
  if (const Callable* callable = value.as_callable()) return depth_of(callable->self);
  return 0;
}

Status check_size(int depth, uint64_t weight) {
  if (depth > kMaxValueDepth) return resource_error("a value is nested deeper than {}", kMaxValueDepth);
  if (weight > kMaxValueWeight) return resource_error("a value holds more than {} bytes of text and values", kMaxValueWeight);
  return {};
}

}  // namespace

Expected<Value> make_list(std::vector<Value> items, bool tuple) {
  List list;
  for (const Value& item : items) {
    list.depth = std::max(list.depth, depth_of(item) + 1);
    list.weight += weight_of(item);
  }
  AERIE_TRY(check_size(list.depth, list.weight));
  list.items = std::move(items);
  list.tuple = tuple;
  return Value(std::make_shared<const List>(std::move(list)));
}

Expected<Value> make_dict(Dict dict) {
  dict.depth = 1;
  dict.weight = 1;
  for (const auto& [key, value] : dict.items) {
    dict.depth = std::max(dict.depth, depth_of(value) + 1);
    dict.weight += key.size() + weight_of(value);
  }
  AERIE_TRY(check_size(dict.depth, dict.weight));
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

uint64_t weight_of(const Value& value) {
  if (const Text* text = value.as_text()) return 1 + text->size();
  if (const List* list = value.as_list()) return list->weight;
  if (const Dict* dict = value.as_dict()) return dict->weight;
  return 1;
}

bool truthy(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.as_double() != 0;
  if (const Text* text = value.as_text()) return !text->empty();
  if (const List* list = value.as_list()) return !list->items.empty();
  if (const Dict* dict = value.as_dict()) return !dict->items.empty();
  return true;
}

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return !a.is_float() && !b.is_float() ? a.as_int() == b.as_int() : a.as_double() == b.as_double();
  }
  if (a.as_text() != nullptr && b.as_text() != nullptr) return a.as_text()->bytes() == b.as_text()->bytes();
  if (a.as_list() != nullptr && b.as_list() != nullptr) {
    const List& x = *a.as_list();
    const List& y = *b.as_list();
    return x.tuple == y.tuple && std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), equals);
  }
  if (a.as_dict() != nullptr && b.as_dict() != nullptr) {
    const Dict& x = *a.as_dict();
    const Dict& y = *b.as_dict();
    return x.items.size() == y.items.size() && std::all_of(x.items.begin(), x.items.end(), [&](const auto& item) {
             const Value* other = y.find(item.first.bytes());
             return other != nullptr && equals(item.second, *other);
           });
  }
  if (a.as_namespace() != nullptr) return a.as_namespace() == b.as_namespace();
  if (a.as_callable() != nullptr) return a.as_callable() == b.as_callable();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

const char* type_name(const Value& value) {
  if (value.is_undefined()) return "an undefined value";
  if (value.is_none()) return "none";
  if (value.is_bool()) return "a boolean";
  if (value.is_int()) return "an integer";
  if (value.is_float()) return "a float";
  if (value.as_text() != nullptr) return "a string";
  if (value.as_list() != nullptr) return value.as_list()->tuple ? "a tuple" : "a list";
  if (value.as_dict() != nullptr) return "a dict";
  return value.as_namespace() != nullptr ? "a namespace" : "a function";
}

std::string float_repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  // The shortest digits that read back, placed as Python places them: fixed for exponents -4 to 15.
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, static_cast<size_t>(end - buffer));
  const size_t e = scientific.find('e');
  const int exponent = std::atoi(std::string(scientific.substr(e + 1)).c_str());
  const bool negative = scientific[0] == '-';
  std::string digits;
  for (const char c : scientific.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string out = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out.append(".").append(digits, 1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  out.append(digits, 0, whole).append(".");
  return digits.size() > whole ? out.append(digits, whole) : out.append("0");
}

namespace {

/// repr() of a string; what Python deems unprintable is escaped for the control characters only.
Text string_repr(const Text& text) {
  const std::string& bytes = text.bytes();
  const bool double_quotes = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
  const char quote = double_quotes ? '"' : '\'';
  Text out(std::string(1, quote), Text::kInput);
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_next(std::string_view(bytes).substr(at));
    const char mark = text.marks()[at];
    const char32_t c = step.code;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.append("\\", mark);
      out.append(text.substr(at, step.length));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out.append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", mark);
    } else if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) {
      out.append(fmt::format("\\x{:02x}", static_cast<uint32_t>(c)), mark);
    } else {
      out.append(text.substr(at, step.length));
    }
    at += step.length;
  }
  out.append(std::string(1, quote), Text::kInput);
  return out;
}

Text repr(const Value& value) {
  if (value.is_undefined()) return Text("Undefined");
  return value.as_text() != nullptr ? string_repr(*value.as_text()) : to_text(value);
}

}  // namespace

Text to_text(const Value& value) {
  if (value.is_undefined()) return Text();
  if (value.is_none()) return Text("None");
  if (value.is_bool()) return Text(value.as_bool() ? "True" : "False");
  if (value.is_int()) return Text(std::to_string(value.as_int()));
  if (value.is_float()) return Text(float_repr(value.as_double()));
  if (const Text* text = value.as_text()) return *text;
  // The punctuation of a printed container counts as input, since what it holds mostly is.
  if (const List* list = value.as_list()) {
    Text out(list->tuple ? "(" : "[", Text::kInput);
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out.append(", ", Text::kInput);
      out.append(repr(list->items[i]));
    }
    out.append(list->tuple ? (list->items.size() == 1 ? ",)" : ")") : "]", Text::kInput);
    return out;
  }
  if (const Dict* dict = value.as_dict()) {
    Text out("{", Text::kInput);
    for (size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out.append(", ", Text::kInput);
      out.append(string_repr(dict->items[i].first));
      out.append(": ", Text::kInput);
      out.append(repr(dict->items[i].second));
    }
    out.append("}", Text::kInput);
    return out;
  }
  return Text(value.as_namespace() != nullptr ? "<namespace>" : "<function>", Text::kInput);
}

}  // namespace aerie::jinja
