// `value is NAME`.
#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace aerie::jinja {
namespace {

/// The comparison a test's name stands for, or "".
std::string_view operator_of(std::string_view name) {
  if (name == "eq" || name == "equalto" || name == "==") return "==";
  if (name == "ne" || name == "!=") return "!=";
  if (name == "lt" || name == "lessthan" || name == "<") return "<";
  if (name == "le" || name == "<=") return "<=";
  if (name == "gt" || name == "greaterthan" || name == ">") return ">";
  if (name == "ge" || name == ">=") return ">=";
  return "";
}

Expected<bool> compare_test(Runtime& runtime, std::string_view op, const Value& a, const Value& b) {
  if (op == "==" || op == "!=") {
    AERIE_TRY(runtime.charge(1 + std::min(weight_of(a), weight_of(b)) / 64));
    return equals(a, b) == (op == "==");
  }
  AERIE_ASSIGN(const int order, compare(runtime, a, b));
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

Expected<bool> case_test(Runtime& runtime, const Value& subject, Case expected) {
  const Text text = to_text(subject);
  AERIE_TRY(runtime.charge(text.size() / 16));
  const Text upper = map_case(text, Case::kUpper);
  const Text lower = map_case(text, Case::kLower);
  if (upper.bytes() == lower.bytes()) return false;  // no letter that has a case
  return text.bytes() == (expected == Case::kUpper ? upper : lower).bytes();
}

}  // namespace

Expected<bool> apply_test(Runtime& runtime, const std::string& name, const Value& subject, const Arguments& arguments) {
  const Value* argument = arguments.get(0, "other");
  const std::string_view op = operator_of(name);
  const bool divides = name == "divisibleby";
  const bool takes_argument = !op.empty() || name == "in" || name == "sameas" || divides;
  if (takes_argument != (argument != nullptr) || arguments.positional.size() + arguments.named.size() > 1) {
    return invalid_argument("the test '{}' takes {} argument", name, takes_argument ? "one" : "no");
  }
  if (!op.empty()) return compare_test(runtime, op, subject, *argument);
  if (name == "in") return contains(runtime, *argument, subject);
  if (name == "sameas") {  // objects are not told apart from their equals, but types are
    return type_name(subject) == std::string_view(type_name(*argument)) && equals(subject, *argument);
  }
  if (name == "defined") return !subject.is_undefined();
  if (name == "undefined") return subject.is_undefined();
  if (name == "none") return subject.is_none();
  if (name == "boolean") return subject.is_bool();
  if (name == "true" || name == "false") return subject.is_bool() && subject.as_bool() == (name == "true");
  if (name == "integer") return subject.is_int();
  if (name == "float") return subject.is_float();
  if (name == "number") return subject.is_number();
  if (name == "string") return subject.as_text() != nullptr;
  if (name == "mapping") return subject.as_dict() != nullptr;
  if (name == "iterable" || name == "sequence") {
    return subject.as_text() != nullptr || subject.as_list() != nullptr || subject.as_dict() != nullptr || subject.is_undefined();
  }
  if (name == "callable") return subject.as_callable() != nullptr;
  if (name == "upper") return case_test(runtime, subject, Case::kUpper);
  if (name == "lower") return case_test(runtime, subject, Case::kLower);
  if (name == "even" || name == "odd" || divides) {
    if (!subject.is_int() && !subject.is_bool())
      return invalid_argument("the test '{}' is given {}, expected an integer", name, type_name(subject));
    if (!divides) return (subject.as_int() % 2 == 0) == (name == "even");
    AERIE_ASSIGN(const int64_t divisor, arguments.get_int(0, "num", 0));
    if (divisor == 0) return invalid_argument("division by zero");
    return divisor == -1 || subject.as_int() % divisor == 0;
  }
  return invalid_argument("there is no test called '{}'", name);
}

}  // namespace aerie::jinja
