// JSON in and out of template values.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/jinja_value.h"
#include "text/utf8.h"

namespace aerie::jinja {
namespace {

using Json = nlohmann::ordered_json;

Expected<Value> from_json(const Json& json, char mark, int depth) {
  if (depth > kMaxValueDepth) return resource_error("the JSON is nested deeper than {}", kMaxValueDepth);
  switch (json.type()) {
    case Json::value_t::boolean: return Value(json.get<bool>());
    case Json::value_t::number_integer: return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      return number <= INT64_MAX ? Value(static_cast<int64_t>(number)) : Value(static_cast<double>(number));
    }
    case Json::value_t::number_float: return Value(json.get<double>());
    case Json::value_t::string: return Value::string(json.get_ref<const std::string&>(), mark);
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) {
        AERIE_ASSIGN(Value value, from_json(item, mark, depth + 1));
        items.push_back(std::move(value));
      }
      return make_list(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        AERIE_ASSIGN(Value value, from_json(item, mark, depth + 1));
        dict.set(Text(key, mark), std::move(value));
      }
      return make_dict(std::move(dict));
    }
    default: return Value();
  }
}

void append_string(Text& out, const Text& text) {
  out.append("\"", Text::kInput);
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    const char mark = text.marks()[i];
    switch (c) {
      case '"': out.append("\\\"", mark); break;
      case '\\': out.append("\\\\", mark); break;
      case '\n': out.append("\\n", mark); break;
      case '\r': out.append("\\r", mark); break;
      case '\t': out.append("\\t", mark); break;
      case '\b': out.append("\\b", mark); break;
      case '\f': out.append("\\f", mark); break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out.append(fmt::format("\\u{:04x}", static_cast<unsigned>(c)), mark);
        } else {
          out.append(std::string_view(&c, 1), mark);
        }
    }
  }
  out.append("\"", Text::kInput);
}

struct Writer {
  int indent;
  bool sort_keys;
  std::string_view item_separator;
  std::string_view key_separator;
  Text out;

  void line(int level) {
    if (indent < 0) return;
    out.append("\n", Text::kInput);
    out.append(std::string(static_cast<size_t>(indent) * static_cast<size_t>(level), ' '), Text::kInput);
  }

  Status write(const Value& value, int level) {
    if (value.is_none()) {
      out.append("null", Text::kInput);
    } else if (value.is_bool()) {
      out.append(value.as_bool() ? "true" : "false", Text::kInput);
    } else if (value.is_int()) {
      out.append(std::to_string(value.as_int()), Text::kInput);
    } else if (value.is_float()) {
      const double number = value.as_double();
      out.append(std::isnan(number)   ? "NaN"
                 : std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                      : float_repr(number),
                 Text::kInput);
    } else if (const Text* text = value.as_text()) {
      append_string(out, *text);
    } else if (const List* list = value.as_list()) {
      out.append("[", Text::kInput);
      for (size_t i = 0; i < list->items.size(); ++i) {
        if (i > 0) out.append(item_separator, Text::kInput);
        line(level + 1);
        AERIE_TRY(write(list->items[i], level + 1));
      }
      if (!list->items.empty()) line(level);
      out.append("]", Text::kInput);
    } else if (const Dict* dict = value.as_dict()) {
      std::vector<const std::pair<Text, Value>*> items;
      for (const auto& item : dict->items) items.push_back(&item);
      if (sort_keys) {
        std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) { return a->first.bytes() < b->first.bytes(); });
      }
      out.append("{", Text::kInput);
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out.append(item_separator, Text::kInput);
        line(level + 1);
        append_string(out, items[i]->first);
        out.append(key_separator, Text::kInput);
        AERIE_TRY(write(items[i]->second, level + 1));
      }
      if (!items.empty()) line(level);
      out.append("}", Text::kInput);
    } else {
      return invalid_argument("{} cannot be written as JSON", type_name(value));
    }
    if (out.size() > kMaxTextBytes) return resource_error("a JSON text is longer than {} bytes", kMaxTextBytes);
    return {};
  }
};

}  // namespace

Expected<Value> value_from_json(std::string_view json, char mark) {
  const std::string clean = sanitize_utf8(json);
  const Json parsed = Json::parse(clean, nullptr, false);
  if (parsed.is_discarded()) return invalid_argument("the text is not valid JSON");
  return from_json(parsed, mark, 1);
}

Expected<Text> to_json(const Value& value, int indent, bool sort_keys, std::string_view item_separator, std::string_view key_separator) {
  Writer writer{indent, sort_keys, item_separator, key_separator, Text()};
  AERIE_TRY(writer.write(value, 0));
  return std::move(writer.out);
}

}  // namespace aerie::jinja
