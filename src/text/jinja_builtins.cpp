// What filters, tests and methods share, and the global functions.
#include "text/jinja_builtins.h"

#include <algorithm>
#include <ctime>

#include "text/jinja_text.h"

namespace aerie::jinja {

const Value* Arguments::get(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Status Arguments::check(std::string_view callee, size_t most, std::initializer_list<std::string_view> names) const {
  if (positional.size() + named.size() > most) {
    return invalid_argument("'{}' takes at most {} arguments, {} are given", callee, most, positional.size() + named.size());
  }
  for (const auto& [key, value] : named) {
    if (std::find(names.begin(), names.end(), key) == names.end()) return invalid_argument("'{}' has no argument '{}'", callee, key);
  }
  return {};
}

Expected<int64_t> Arguments::get_int(size_t position, std::string_view name, int64_t otherwise) const {
  const Value* value = get(position, name);
  if (value == nullptr) return otherwise;
  if (!value->is_int() && !value->is_bool()) return invalid_argument("'{}' is {}, expected an integer", name, type_name(*value));
  return value->as_int();
}

bool Arguments::get_bool(size_t position, std::string_view name, bool otherwise) const {
  const Value* value = get(position, name);
  return value == nullptr ? otherwise : truthy(*value);
}

Expected<const Text*> Arguments::get_text(size_t position, std::string_view name) const {
  const Value* value = get(position, name);
  if (value == nullptr || value->is_none()) return static_cast<const Text*>(nullptr);
  if (value->as_text() == nullptr) return invalid_argument("'{}' is {}, expected a string", name, type_name(*value));
  return value->as_text();
}

Expected<Value> text_value(Runtime& runtime, Text text) {
  AERIE_TRY(runtime.charge(1 + text.size() / 64));
  if (text.size() > kMaxTextBytes) return resource_error("a text is longer than {} bytes", kMaxTextBytes);
  return Value(std::move(text));
}

Expected<Value> list_value(Runtime& runtime, std::vector<Value> items, bool tuple) {
  AERIE_TRY(runtime.charge(1 + items.size() / 4));
  return make_list(std::move(items), tuple);
}

Expected<Value> text_list(Runtime& runtime, std::vector<Text> texts) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (Text& text : texts) items.emplace_back(std::move(text));
  return list_value(runtime, std::move(items));
}

Expected<std::vector<Value>> iterate(Runtime& runtime, const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const List* list = value.as_list()) {
    items = list->items;
  } else if (const Dict* dict = value.as_dict()) {
    for (const auto& item : dict->items) items.emplace_back(item.first);
  } else if (const Text* text = value.as_text()) {
    AERIE_TRY(runtime.charge(text->size()));
    const std::vector<size_t> offsets = character_offsets(text->bytes());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) items.emplace_back(text->substr(offsets[i], offsets[i + 1] - offsets[i]));
  } else {
    return invalid_argument("{} has no items to go through", type_name(value));
  }
  AERIE_TRY(runtime.charge(1 + items.size() / 4));
  return items;
}

Expected<Value> get_item(Runtime& runtime, const Value& object, const Value& key) {
  const Text* name = key.as_text();
  if (object.is_undefined()) return invalid_argument("{}", object.as_undefined()->what);
  if (key.is_int() || key.is_bool()) {
    const auto position = [&](size_t length) {
      const auto signed_length = static_cast<int64_t>(length);
      const int64_t at = key.as_int() < 0 && key.as_int() >= -signed_length ? key.as_int() + signed_length : key.as_int();
      return at >= 0 && at < signed_length ? static_cast<size_t>(at) : length;
    };
    if (const List* list = object.as_list()) {
      const size_t at = position(list->items.size());
      if (at < list->items.size()) return list->items[at];
    } else if (const Text* text = object.as_text()) {
      AERIE_TRY(runtime.charge(text->size() / 64));
      const std::vector<size_t> offsets = character_offsets(text->bytes());
      const size_t at = position(offsets.size() - 1);
      if (at + 1 < offsets.size()) return text_value(runtime, text->substr(offsets[at], offsets[at + 1] - offsets[at]));
    }
    return Value::undefined(fmt::format("{} has no item {}", type_name(object), key.as_int()));
  }
  if (name != nullptr) {
    if (const Dict* dict = object.as_dict()) {
      if (const Value* found = dict->find(name->bytes())) return *found;
    }
    if (const Namespace* space = object.as_namespace()) {
      if (const Value* found = space->fields.find(name->bytes())) return *found;
    }
    if (has_method(object, name->bytes())) {
      return Value(std::make_shared<const Callable>(Callable{Callable::Kind::kMethod, name->bytes(), object}));
    }
    return Value::undefined(fmt::format("{} has no item '{}'", type_name(object), name->bytes()));
  }
  return Value::undefined(fmt::format("{} has no such item", type_name(object)));
}

Expected<Value> get_attribute(Runtime& runtime, const Value& object, const std::string& name) {
  if (has_method(object, name)) return Value(std::make_shared<const Callable>(Callable{Callable::Kind::kMethod, name, object}));
  return get_item(runtime, object, Value::string(name));
}

Expected<bool> contains(Runtime& runtime, const Value& container, const Value& item) {
  if (const Text* text = container.as_text()) {
    const Text* part = item.as_text();
    if (part == nullptr) return invalid_argument("'in' looks for {} in a string, expected a string", type_name(item));
    AERIE_TRY(runtime.charge(text->size() / 64));
    return text->bytes().find(part->bytes()) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict()) return item.as_text() != nullptr && dict->find(item.as_text()->bytes()) != nullptr;
  if (const List* list = container.as_list()) {
    AERIE_TRY(runtime.charge(list->items.size() / 4 + std::min(weight_of(container), list->items.size() * weight_of(item)) / 64));
    return std::any_of(list->items.begin(), list->items.end(), [&](const Value& element) { return equals(element, item); });
  }
  if (container.is_undefined()) return false;
  return invalid_argument("'in' does not work on {}", type_name(container));
}

Expected<int> compare(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return (a.as_int() > b.as_int()) - (a.as_int() < b.as_int());
    return (a.as_double() > b.as_double()) - (a.as_double() < b.as_double());
  }
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    AERIE_TRY(runtime.charge(std::min(a.as_text()->size(), b.as_text()->size()) / 64));
    const int order = a.as_text()->bytes().compare(b.as_text()->bytes());  // UTF-8 sorts as its characters do
    return (order > 0) - (order < 0);
  }
  if (a.as_list() != nullptr && b.as_list() != nullptr) {
    const std::vector<Value>& x = a.as_list()->items;
    const std::vector<Value>& y = b.as_list()->items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      AERIE_TRY(runtime.charge(1));
      if (equals(x[i], y[i])) continue;
      return compare(runtime, x[i], y[i]);
    }
    return (x.size() > y.size()) - (x.size() < y.size());
  }
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) return invalid_argument("{}", side->as_undefined()->what);
  }
  return invalid_argument("{} and {} have no order", type_name(a), type_name(b));
}

namespace {

constexpr int64_t kMaxRange = 100000;  // as Jinja2's sandbox

Expected<Value> range(Runtime& runtime, const Arguments& arguments) {
  AERIE_TRY(arguments.check("range", 3));
  if (arguments.positional.empty()) return invalid_argument("'range' needs an end");
  const bool only_end = arguments.positional.size() == 1;
  AERIE_ASSIGN(const int64_t first, arguments.get_int(0, "range", 0));
  AERIE_ASSIGN(const int64_t second, arguments.get_int(1, "range", 0));
  AERIE_ASSIGN(const int64_t step, arguments.get_int(2, "range", 1));
  const int64_t begin = only_end ? 0 : first;
  const int64_t end = only_end ? first : second;
  if (step == 0) return invalid_argument("'range' has step 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) return resource_error("a range has more than {} numbers", kMaxRange);
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return list_value(runtime, std::move(items));
}

Expected<Value> strftime_now(Runtime& runtime, const Arguments& arguments) {
  AERIE_TRY(arguments.check("strftime_now", 1, {"format"}));
  AERIE_ASSIGN(const Text* format, arguments.get_text(0, "format"));
  if (format == nullptr || format->size() > 256) return invalid_argument("'strftime_now' needs a format of at most 256 bytes");
  const auto seconds = static_cast<std::time_t>(runtime.unix_time());
  std::tm utc{};
  if (gmtime_r(&seconds, &utc) == nullptr) return invalid_argument("the time {} has no date", runtime.unix_time());
  char buffer[4096];
  const size_t length = std::strftime(buffer, sizeof buffer, format->bytes().c_str(), &utc);
  return text_value(runtime, Text(std::string(buffer, length)));
}

Expected<Value> raise_exception(const Arguments& arguments) {
  const Value* message = arguments.get(0, "message");
  return invalid_argument("{}", message == nullptr ? "the template raised an error" : to_text(*message).bytes());
}

/// dict(...) and namespace(...): a dict first, then names.
Expected<Dict> fields_of(Runtime& runtime, const std::string& callee, const Arguments& arguments) {
  Dict fields;
  if (arguments.positional.size() > 1) return invalid_argument("'{}' takes one dict and names", callee);
  if (!arguments.positional.empty()) {
    const Dict* base = arguments.positional[0].as_dict();
    if (base == nullptr) return invalid_argument("'{}' is given {}, expected a dict", callee, type_name(arguments.positional[0]));
    fields = *base;
  }
  for (const auto& [name, value] : arguments.named) fields.set(Text(name), value);
  AERIE_TRY(runtime.charge(1 + fields.items.size()));
  return fields;
}

}  // namespace

bool is_function(std::string_view name) {
  for (const std::string_view known : {"range", "namespace", "dict", "raise_exception", "strftime_now"}) {
    if (name == known) return true;
  }
  return false;
}

Expected<Value> call_function(Runtime& runtime, const std::string& name, const Arguments& arguments) {
  if (name == "range") return range(runtime, arguments);
  if (name == "strftime_now") return strftime_now(runtime, arguments);
  if (name == "raise_exception") return raise_exception(arguments);
  AERIE_ASSIGN(Dict fields, fields_of(runtime, name, arguments));
  if (name == "dict") return make_dict(std::move(fields));
  AERIE_ASSIGN(Namespace * space, runtime.new_namespace());
  space->fields = std::move(fields);
  return Value(space);
}

}  // namespace aerie::jinja
