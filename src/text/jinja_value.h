// Values of the chat template interpreter. Strings remember, byte by byte, whether they came from the messages or from the
// template: that is what lets the tokenizer refuse special tokens that a user spelled.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace aerie::jinja {

/// UTF-8 with one mark per byte.
class Text {
 public:
  static constexpr char kTemplate = 0;
  static constexpr char kInput = 1;

  Text() = default;
  explicit Text(std::string bytes, char mark = kTemplate) : bytes_(std::move(bytes)), marks_(bytes_.size(), mark) {}

  const std::string& bytes() const { return bytes_; }
  const std::string& marks() const { return marks_; }  // same length as bytes()
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  void append(const Text& other) {
    bytes_ += other.bytes_;
    marks_ += other.marks_;
  }
  void append(std::string_view bytes, char mark) {
    bytes_ += bytes;
    marks_.append(bytes.size(), mark);
  }
  Text substr(size_t begin, size_t count = std::string::npos) const {
    Text part;
    part.bytes_ = bytes_.substr(begin, count);
    part.marks_ = marks_.substr(begin, count);
    return part;
  }

 private:
  std::string bytes_;
  std::string marks_;
};

struct List;
struct Dict;
struct Callable;
struct Namespace;

struct Undefined {
  std::string what;  // for the error message: "'x' is undefined"
};
struct None {};

/// An immutable value, cheap to copy. Containers are bounded in depth and in weight, which make_list and make_dict check.
class Value {
 public:
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  using TextPtr = std::shared_ptr<const Text>;
  using CallablePtr = std::shared_ptr<const Callable>;

  Value() : data_(None{}) {}
  Value(Undefined value) : data_(std::move(value)) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(int value) : data_(int64_t{value}) {}
  Value(double value) : data_(value) {}
  Value(Text value) : data_(std::make_shared<const Text>(std::move(value))) {}
  Value(const char*) = delete;  // would become a bool
  Value(ListPtr value) : data_(std::move(value)) {}
  Value(DictPtr value) : data_(std::move(value)) {}
  Value(CallablePtr value) : data_(std::move(value)) {}
  Value(Namespace* value) : data_(value) {}
  static Value undefined(std::string what) { return Value(Undefined{std::move(what)}); }
  static Value string(std::string_view bytes, char mark = Text::kTemplate) { return Value(Text(std::string(bytes), mark)); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  const Undefined* as_undefined() const { return std::get_if<Undefined>(&data_); }
  const Text* as_text() const { return pointer<TextPtr>(); }
  const List* as_list() const { return pointer<ListPtr>(); }
  const Dict* as_dict() const { return pointer<DictPtr>(); }
  const Callable* as_callable() const { return pointer<CallablePtr>(); }
  Namespace* as_namespace() const {
    Namespace* const* found = std::get_if<Namespace*>(&data_);
    return found == nullptr ? nullptr : *found;
  }
  bool as_bool() const { return std::get<bool>(data_); }
  /// A bool counts as 0 or 1, as in Python. Only for is_int() || is_bool().
  int64_t as_int() const { return is_bool() ? int64_t{as_bool()} : std::get<int64_t>(data_); }
  /// Only for is_number().
  double as_double() const { return is_float() ? std::get<double>(data_) : static_cast<double>(as_int()); }

 private:
  template <class Ptr>
  auto pointer() const -> decltype(std::declval<Ptr>().get()) {
    const Ptr* found = std::get_if<Ptr>(&data_);
    return found == nullptr ? nullptr : found->get();
  }
  std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, CallablePtr, Namespace*> data_;
};

inline constexpr int kMaxValueDepth = 64;
/// Bytes of text and number of values inside a value, each counted as often as it would be printed: a few lists that share
/// their items could otherwise stand for more text than any machine holds.
inline constexpr uint64_t kMaxValueWeight = uint64_t{16} << 20;
inline constexpr size_t kMaxTextBytes = size_t{4} << 20;

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
  uint64_t weight = 1;
};

/// Keys are strings; iteration is in order of insertion.
struct Dict {
  std::vector<std::pair<Text, Value>> items;
  std::unordered_map<std::string, size_t> index;
  int depth = 1;
  uint64_t weight = 1;

  void set(Text key, Value value);
  const Value* find(const std::string& key) const;
};

/// The one mutable object: what namespace() returns. Owned by the interpreter, so that one that holds itself leaks nothing.
struct Namespace {
  Dict fields;
};

/// Something to call: a macro, a global function, or a method bound to its object.
struct Callable {
  enum class Kind { kMacro, kFunction, kMethod };
  Kind kind;
  std::string name;
  Value self;  // of a method
  const struct Stmt* macro = nullptr;
};

/// kResource when the container would be too deep or too heavy.
Expected<Value> make_list(std::vector<Value> items, bool tuple = false);
Expected<Value> make_dict(Dict dict);

// Python's view of values.
uint64_t weight_of(const Value& value);
bool truthy(const Value& value);
/// Deep equality; 1 == 1.0 == True. Marks do not matter.
bool equals(const Value& a, const Value& b);
/// "a str", "an int", ...: for error messages.
const char* type_name(const Value& value);
/// str(value): what `{{ value }}` prints. Undefined prints as nothing.
Text to_text(const Value& value);

/// repr() of a float: the shortest digits that read back.
std::string float_repr(double number);

/// A value from JSON text, its strings marked as `mark`. Limits: kMaxValueDepth.
Expected<Value> value_from_json(std::string_view json, char mark);
/// json.dumps(value, ensure_ascii=False, indent=indent): indent < 0 means on one line. Structure is marked as input.
Expected<Text> to_json(const Value& value, int indent, bool sort_keys, std::string_view item_separator, std::string_view key_separator);

}  // namespace aerie::jinja
