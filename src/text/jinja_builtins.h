// Filters, tests, functions and methods of the chat template language.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja_value.h"

namespace aerie::jinja {

/// Arguments of one call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The argument at `position` or called `name`; null if not given.
  const Value* get(size_t position, std::string_view name) const;
  /// An error if there are more than `most`, or one has a name that is not in `names`.
  Status check(std::string_view callee, size_t most, std::initializer_list<std::string_view> names = {}) const;
  // Typed: `otherwise` if not given, an error if given and of another type.
  Expected<int64_t> get_int(size_t position, std::string_view name, int64_t otherwise) const;
  bool get_bool(size_t position, std::string_view name, bool otherwise) const;
  /// Null if not given or none.
  Expected<const Text*> get_text(size_t position, std::string_view name) const;
};

/// What built-ins may ask of the interpreter.
class Runtime {
 public:
  virtual ~Runtime() = default;
  /// Counts work against the budget.
  virtual Status charge(uint64_t steps) = 0;
  virtual int64_t unix_time() const = 0;
  /// A new namespace, owned by the runtime.
  virtual Expected<Namespace*> new_namespace() = 0;
};

Expected<Value> apply_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments);
Expected<bool> apply_test(Runtime& runtime, const std::string& name, const Value& subject, const Arguments& arguments);
Expected<Value> call_function(Runtime& runtime, const std::string& name, const Arguments& arguments);
Expected<Value> call_method(Runtime& runtime, const Value& self, const std::string& name, const Arguments& arguments);
bool is_function(std::string_view name);
bool has_method(const Value& value, std::string_view name);

// Shared by the built-ins and the interpreter.

/// What iterating over `value` gives: items, keys, characters; nothing for undefined. An error for anything else.
Expected<std::vector<Value>> iterate(Runtime& runtime, const Value& value);
/// value[key], or undefined.
Expected<Value> get_item(Runtime& runtime, const Value& object, const Value& key);
/// value.name: a method first, then an item.
Expected<Value> get_attribute(Runtime& runtime, const Value& object, const std::string& name);
/// `item in container`.
Expected<bool> contains(Runtime& runtime, const Value& container, const Value& item);
/// <0, 0, >0; an error for values that have no order.
Expected<int> compare(Runtime& runtime, const Value& a, const Value& b);
/// A Value of `text`, if it is not too long; the work is charged.
Expected<Value> text_value(Runtime& runtime, Text text);
Expected<Value> list_value(Runtime& runtime, std::vector<Value> items, bool tuple = false);
Expected<Value> text_list(Runtime& runtime, std::vector<Text> texts);

}  // namespace aerie::jinja
