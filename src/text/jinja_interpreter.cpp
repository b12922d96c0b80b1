#include "text/jinja_interpreter.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/checked.h"
#include "text/jinja_builtins.h"
#include "text/jinja_parser.h"
#include "text/jinja_text.h"

namespace aerie::jinja {
namespace {

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> names;  // the keys live in the syntax tree, or in the caller's Variables

  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
      for (const auto& [key, value] : scope->names) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }
  void set(std::string_view name, Value value) {
    for (auto& [key, old] : names) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    names.emplace_back(name, std::move(value));
  }
};

class Interpreter final : public Runtime {
 public:
  Interpreter(int64_t unix_time, const Budget& budget) : unix_time_(unix_time), budget_(budget) {}

  Expected<Text> run(const Body& body, const Variables& variables) {
    for (const auto& [name, value] : variables) root_.set(name, value);
    Text out;
    const Status status = execute(body, root_, out);
    if (!status.ok()) return status.with_context(fmt::format("chat template line {}", line_));
    return out;
  }

  Status charge(uint64_t steps) override {
    steps_ += static_cast<int64_t>(std::min<uint64_t>(steps, uint64_t{1} << 40));
    if (steps_ > budget_.steps) return resource_error("the template needs more than {} steps", budget_.steps);
    return {};
  }
  int64_t unix_time() const override { return unix_time_; }
  Expected<Namespace*> new_namespace() override {
    AERIE_TRY(charge(8));
    return &namespaces_.emplace_back();
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  struct Nesting {
    explicit Nesting(int& counter) : depth(counter) { ++depth; }
    ~Nesting() { --depth; }
    int& depth;
  };
  Status enter(int line) {
    line_ = line;
    if (depth_ > budget_.depth) return resource_error("the template nests deeper than {}", budget_.depth);
    return charge(1);
  }

  // Statements

  Status execute(const Body& body, Scope& scope, Text& out) {
    for (const auto& stmt : body) {
      const Nesting nesting(depth_);
      AERIE_TRY(enter(stmt->line));
      AERIE_TRY(execute(*stmt, scope, out));
      if (flow_ != Flow::kNext) break;
    }
    return {};
  }

  Status execute(const Stmt& stmt, Scope& scope, Text& out) {
    switch (stmt.kind) {
      case StmtKind::kText: return print(stmt.text, out);
      case StmtKind::kOutput: {
        AERIE_ASSIGN(const Value value, evaluate(*stmt.expr, scope));
        return print_value(value, out);
      }
      case StmtKind::kIf: return execute_if(stmt, scope, out);
      case StmtKind::kFor: return execute_for(stmt, scope, out);
      case StmtKind::kSet: {
        AERIE_ASSIGN(Value value, evaluate(*stmt.expr, scope));
        if (!stmt.name.empty()) return set_field(stmt, scope, std::move(value));
        return assign(stmt.targets, std::move(value), scope);
      }
      case StmtKind::kSetBlock: {
        AERIE_ASSIGN(Value value, capture(stmt, scope));
        if (!stmt.name.empty()) return set_field(stmt, scope, std::move(value));
        scope.set(stmt.targets[0], std::move(value));
        return {};
      }
      case StmtKind::kFilterBlock: {
        AERIE_ASSIGN(const Value value, capture(stmt, scope));
        return print_value(value, out);
      }
      case StmtKind::kMacro:
        scope.set(stmt.name, Value(std::make_shared<const Callable>(Callable{Callable::Kind::kMacro, stmt.name, Value(), &stmt})));
        return {};
      case StmtKind::kScope: {
        Scope inner{&scope, {}};
        for (const Parameter& assignment : stmt.parameters) {
          AERIE_ASSIGN(Value value, evaluate(*assignment.default_value, scope));
          inner.set(assignment.name, std::move(value));
        }
        return execute(stmt.body, inner, out);
      }
      case StmtKind::kGroup: return execute(stmt.body, scope, out);
      case StmtKind::kBreak: flow_ = Flow::kBreak; return {};
      case StmtKind::kContinue: flow_ = Flow::kContinue; return {};
    }
    return internal_error("unknown statement");
  }

  Status print(const Text& text, Text& out) {
    printed_ += text.size();
    if (printed_ > budget_.output_bytes) return resource_error("the template prints more than {} bytes", budget_.output_bytes);
    out.append(text);
    return {};
  }

  Status print_value(const Value& value, Text& out) {
    if (const Text* text = value.as_text()) return print(*text, out);
    AERIE_TRY(charge(weight_of(value) / 64));
    return print(to_text(value), out);
  }

  Status execute_if(const Stmt& stmt, Scope& scope, Text& out) {
    for (const Branch& branch : stmt.branches) {
      AERIE_ASSIGN(const Value condition, evaluate(*branch.condition, scope));
      if (truthy(condition)) return execute(branch.body, scope, out);
    }
    return execute(stmt.else_body, scope, out);
  }

  Status execute_for(const Stmt& stmt, Scope& scope, Text& out) {
    AERIE_ASSIGN(const Value source, evaluate(*stmt.expr, scope));
    AERIE_ASSIGN(std::vector<Value> items, iterate(*this, source));
    if (stmt.condition != nullptr) {
      std::vector<Value> kept;
      for (const Value& item : items) {
        Scope inner{&scope, {}};
        AERIE_TRY(assign(stmt.targets, item, inner));
        AERIE_ASSIGN(const Value condition, evaluate(*stmt.condition, inner));
        if (truthy(condition)) kept.push_back(item);
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      Scope inner{&scope, {}};
      return execute(stmt.else_body, inner, out);
    }
    const auto count = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < count; ++i) {
      AERIE_TRY(charge(kLoopSteps));
      Scope inner{&scope, {}};
      AERIE_ASSIGN(Value loop, loop_variable(items, i, count));
      inner.set("loop", std::move(loop));
      AERIE_TRY(assign(stmt.targets, items[static_cast<size_t>(i)], inner));
      AERIE_TRY(execute(stmt.body, inner, out));
      const Flow flow = std::exchange(flow_, Flow::kNext);
      if (flow == Flow::kBreak) break;
    }
    return {};
  }

  // A turn makes a dict of nine fields, which takes as long as some 30 evaluations.
  static constexpr uint64_t kLoopSteps = 32;

  static Expected<Value> loop_variable(const std::vector<Value>& items, int64_t i, int64_t count) {
    const auto neighbour = [&](int64_t at, const char* name) {
      return at >= 0 && at < count ? items[static_cast<size_t>(at)] : Value::undefined(fmt::format("there is no {} item", name));
    };
    Dict loop;
    loop.set(Text("index"), Value(i + 1));
    loop.set(Text("index0"), Value(i));
    loop.set(Text("revindex"), Value(count - i));
    loop.set(Text("revindex0"), Value(count - i - 1));
    loop.set(Text("first"), Value(i == 0));
    loop.set(Text("last"), Value(i + 1 == count));
    loop.set(Text("length"), Value(count));
    loop.set(Text("previtem"), neighbour(i - 1, "previous"));
    loop.set(Text("nextitem"), neighbour(i + 1, "next"));
    return make_dict(std::move(loop));
  }

  Status assign(const std::vector<std::string>& targets, Value value, Scope& scope) {
    if (targets.size() == 1) {
      scope.set(targets[0], std::move(value));
      return {};
    }
    AERIE_ASSIGN(std::vector<Value> parts, iterate(*this, value));
    if (parts.size() != targets.size()) return invalid_argument("{} values cannot be given to {} names", parts.size(), targets.size());
    for (size_t i = 0; i < targets.size(); ++i) scope.set(targets[i], std::move(parts[i]));
    return {};
  }

  Status set_field(const Stmt& stmt, Scope& scope, Value value) {
    const Value* object = scope.find(stmt.name);
    Namespace* space = object == nullptr ? nullptr : object->as_namespace();
    if (space == nullptr) return invalid_argument("'{}.{}' is set, but '{}' is no namespace", stmt.name, stmt.targets[0], stmt.name);
    space->fields.set(Text(stmt.targets[0]), std::move(value));
    return {};
  }

  Expected<Value> capture(const Stmt& stmt, Scope& scope) {
    Scope inner{&scope, {}};
    Text captured;
    AERIE_TRY(execute(stmt.body, inner, captured));
    Scope around{&scope, {}};
    around.set(kCapturedText, Value(std::move(captured)));
    return evaluate(*stmt.expr, around);
  }

  Expected<Value> call_macro(const Stmt& macro, Arguments arguments) {
    const Nesting nesting(depth_);
    AERIE_TRY(enter(macro.line));
    // A macro sees the outermost names and its own, as if it were written at the top.
    Scope scope{&root_, {}};
    if (arguments.positional.size() > macro.parameters.size()) {
      return invalid_argument("the macro '{}' takes {} arguments, {} are given", macro.name, macro.parameters.size(),
                              arguments.positional.size());
    }
    for (const auto& named : arguments.named) {
      const bool known =
          std::any_of(macro.parameters.begin(), macro.parameters.end(), [&](const Parameter& p) { return p.name == named.first; });
      if (!known) return invalid_argument("the macro '{}' has no parameter '{}'", macro.name, named.first);
    }
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const Parameter& parameter = macro.parameters[i];
      if (const Value* given = arguments.get(i, parameter.name)) {
        scope.set(parameter.name, *given);
      } else if (parameter.default_value != nullptr) {
        AERIE_ASSIGN(Value value, evaluate(*parameter.default_value, scope));
        scope.set(parameter.name, std::move(value));
      } else {
        scope.set(parameter.name, Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
      }
    }
    Text text;
    AERIE_TRY(execute(macro.body, scope, text));
    return text_value(*this, std::move(text));
  }

  // Expressions

  Expected<Value> evaluate(const Expr& expr, Scope& scope) {
    const Nesting nesting(depth_);
    AERIE_TRY(enter(expr.line));
    switch (expr.kind) {
      case ExprKind::kConstant: return expr.value;
      case ExprKind::kName: return name(expr, scope);
      case ExprKind::kList:
      case ExprKind::kTuple: {
        AERIE_ASSIGN(std::vector<Value> items, evaluate_all(expr, 0, scope));
        return list_value(*this, std::move(items), expr.kind == ExprKind::kTuple);
      }
      case ExprKind::kDict: return dict(expr, scope);
      case ExprKind::kAttribute: {
        AERIE_ASSIGN(const Value object, evaluate(*expr.args[0], scope));
        return get_attribute(*this, object, expr.name);
      }
      case ExprKind::kItem: {
        AERIE_ASSIGN(const Value object, evaluate(*expr.args[0], scope));
        AERIE_ASSIGN(const Value key, evaluate(*expr.args[1], scope));
        return get_item(*this, object, key);
      }
      case ExprKind::kSlice: return slice(expr, scope);
      case ExprKind::kCall: return call(expr, scope);
      case ExprKind::kFilter: {
        AERIE_ASSIGN(const Value input, evaluate(*expr.args[0], scope));
        AERIE_ASSIGN(const Arguments arguments, evaluate_arguments(expr, scope));
        line_ = expr.line;
        return apply_filter(*this, expr.name, input, arguments);
      }
      case ExprKind::kTest: {
        AERIE_ASSIGN(const Value subject, evaluate(*expr.args[0], scope));
        AERIE_ASSIGN(const Arguments arguments, evaluate_arguments(expr, scope));
        AERIE_ASSIGN(const bool passed, apply_test(*this, expr.name, subject, arguments));
        return Value(passed);
      }
      case ExprKind::kNegative:
      case ExprKind::kPositive: return sign(expr, scope);
      case ExprKind::kNot: {
        AERIE_ASSIGN(const Value operand, evaluate(*expr.args[0], scope));
        return Value(!truthy(operand));
      }
      case ExprKind::kAnd:
      case ExprKind::kOr: {
        AERIE_ASSIGN(Value left, evaluate(*expr.args[0], scope));
        if (truthy(left) == (expr.kind == ExprKind::kOr)) return left;
        return evaluate(*expr.args[1], scope);
      }
      case ExprKind::kBinary: return binary(expr, scope);
      case ExprKind::kCompare: return comparison(expr, scope);
      case ExprKind::kConcat: {
        Text joined;
        for (const ExprPtr& arg : expr.args) {
          AERIE_ASSIGN(const Value part, evaluate(*arg, scope));
          AERIE_TRY(charge(weight_of(part) / 64));
          joined.append(to_text(part));
        }
        return text_value(*this, std::move(joined));
      }
      case ExprKind::kConditional: {
        AERIE_ASSIGN(const Value condition, evaluate(*expr.args[1], scope));
        if (truthy(condition)) return evaluate(*expr.args[0], scope);
        if (expr.args[2] != nullptr) return evaluate(*expr.args[2], scope);
        return Value::undefined("the conditional expression has no 'else' and its condition is false");
      }
    }
    return internal_error("unknown expression");
  }

  static Expected<Value> name(const Expr& expr, const Scope& scope) {
    if (const Value* found = scope.find(expr.name)) return *found;
    if (is_function(expr.name)) return Value(std::make_shared<const Callable>(Callable{Callable::Kind::kFunction, expr.name, Value()}));
    return Value::undefined(fmt::format("'{}' is undefined", expr.name));
  }

  Expected<std::vector<Value>> evaluate_all(const Expr& expr, size_t first, Scope& scope) {
    std::vector<Value> values;
    for (size_t i = first; i < expr.args.size(); ++i) {
      AERIE_ASSIGN(Value value, evaluate(*expr.args[i], scope));
      values.push_back(std::move(value));
    }
    return values;
  }

  Expected<Arguments> evaluate_arguments(const Expr& expr, Scope& scope) {
    Arguments arguments;
    AERIE_ASSIGN(arguments.positional, evaluate_all(expr, 1, scope));
    for (const auto& [name, arg] : expr.named) {
      AERIE_ASSIGN(Value value, evaluate(*arg, scope));
      arguments.named.emplace_back(name, std::move(value));
    }
    return arguments;
  }

  Expected<Value> dict(const Expr& expr, Scope& scope) {
    AERIE_ASSIGN(const std::vector<Value> parts, evaluate_all(expr, 0, scope));
    AERIE_TRY(charge(parts.size()));
    Dict result;
    for (size_t i = 0; i < parts.size(); i += 2) {
      if (parts[i].as_text() == nullptr) return invalid_argument("a dict's key is {}, expected a string", type_name(parts[i]));
      result.set(*parts[i].as_text(), parts[i + 1]);
    }
    return make_dict(std::move(result));
  }

  Expected<Value> slice(const Expr& expr, Scope& scope) {
    AERIE_ASSIGN(const Value object, evaluate(*expr.args[0], scope));
    std::optional<int64_t> bounds[3];
    for (size_t i = 0; i < 3; ++i) {
      if (expr.args[i + 1] == nullptr) continue;
      AERIE_ASSIGN(const Value bound, evaluate(*expr.args[i + 1], scope));
      if (bound.is_none()) continue;
      if (!bound.is_int() && !bound.is_bool()) return invalid_argument("a slice's bound is {}, expected an integer", type_name(bound));
      bounds[i] = bound.as_int();
    }
    const int64_t step = bounds[2].value_or(1);
    if (step == 0) return invalid_argument("a slice's step is 0");
    if (const Text* text = object.as_text()) {
      AERIE_TRY(charge(text->size() / 64));
      const std::vector<size_t> offsets = character_offsets(text->bytes());
      Text out;
      const std::vector<int64_t> indices = slice_indices(static_cast<int64_t>(offsets.size()) - 1, bounds[0], bounds[1], step);
      if (step == 1 && !indices.empty()) {
        const size_t begin = offsets[static_cast<size_t>(indices.front())];
        out = text->substr(begin, offsets[static_cast<size_t>(indices.back()) + 1] - begin);
      } else {
        for (const int64_t i : indices) {
          const auto at = static_cast<size_t>(i);
          out.append(text->substr(offsets[at], offsets[at + 1] - offsets[at]));
        }
      }
      return text_value(*this, std::move(out));
    }
    if (const List* list = object.as_list()) {
      std::vector<Value> items;
      for (const int64_t i : slice_indices(static_cast<int64_t>(list->items.size()), bounds[0], bounds[1], step)) {
        items.push_back(list->items[static_cast<size_t>(i)]);
      }
      return list_value(*this, std::move(items), list->tuple);
    }
    if (object.is_undefined()) return invalid_argument("{}", object.as_undefined()->what);
    return invalid_argument("{} cannot be sliced", type_name(object));
  }

  Expected<Value> call(const Expr& expr, Scope& scope) {
    AERIE_ASSIGN(const Value callee, evaluate(*expr.args[0], scope));
    const Callable* callable = callee.as_callable();
    if (callable == nullptr) {
      if (callee.is_undefined()) return invalid_argument("{}", callee.as_undefined()->what);
      return invalid_argument("{} cannot be called", type_name(callee));
    }
    AERIE_ASSIGN(Arguments arguments, evaluate_arguments(expr, scope));
    line_ = expr.line;
    switch (callable->kind) {
      case Callable::Kind::kMacro: {
        Expected<Value> result = call_macro(*callable->macro, std::move(arguments));
        if (result.ok()) line_ = expr.line;
        return result;
      }
      case Callable::Kind::kFunction: return call_function(*this, callable->name, arguments);
      case Callable::Kind::kMethod: return call_method(*this, callable->self, callable->name, arguments);
    }
    return internal_error("unknown callable");
  }

  Expected<Value> sign(const Expr& expr, Scope& scope) {
    AERIE_ASSIGN(const Value operand, evaluate(*expr.args[0], scope));
    if (!operand.is_number()) return invalid_argument("{} has no sign", type_name(operand));
    const bool negative = expr.kind == ExprKind::kNegative;
    if (operand.is_float()) return Value(negative ? -operand.as_double() : operand.as_double());
    if (negative && operand.as_int() == INT64_MIN) return overflow();
    return Value(negative ? -operand.as_int() : operand.as_int());
  }

  static Status overflow() { return invalid_argument("an integer goes beyond 64 bits"); }

  Expected<Value> binary(const Expr& expr, Scope& scope) {
    AERIE_ASSIGN(const Value left, evaluate(*expr.args[0], scope));
    AERIE_ASSIGN(const Value right, evaluate(*expr.args[1], scope));
    line_ = expr.line;
    const std::string& op = expr.name;
    for (const Value* side : {&left, &right}) {
      if (side->is_undefined()) return invalid_argument("{}", side->as_undefined()->what);
    }
    if (left.is_number() && right.is_number()) {
      const bool floats = left.is_float() || right.is_float() || op == "/";
      return floats ? float_arithmetic(op, left.as_double(), right.as_double()) : int_arithmetic(op, left.as_int(), right.as_int());
    }
    if (op == "+" && left.as_text() != nullptr && right.as_text() != nullptr) {
      Text joined = *left.as_text();
      joined.append(*right.as_text());
      return text_value(*this, std::move(joined));
    }
    if (op == "+" && left.as_list() != nullptr && right.as_list() != nullptr && left.as_list()->tuple == right.as_list()->tuple) {
      std::vector<Value> items = left.as_list()->items;
      items.insert(items.end(), right.as_list()->items.begin(), right.as_list()->items.end());
      return list_value(*this, std::move(items), left.as_list()->tuple);
    }
    if (op == "*" && (right.is_int() || right.is_bool())) return repeated(left, right.as_int());
    if (op == "*" && (left.is_int() || left.is_bool())) return repeated(right, left.as_int());
    return invalid_argument("'{}' does not work between {} and {}", op, type_name(left), type_name(right));
  }

  Expected<Value> repeated(const Value& value, int64_t times) {
    const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
    if (const Text* text = value.as_text()) {
      if (checked_mul(text->size(), count).value_or(UINT64_MAX) > kMaxTextBytes)
        return resource_error("a repeated text is longer than {} bytes", kMaxTextBytes);
      Text out;
      for (uint64_t i = 0; i < count && !text->empty(); ++i) out.append(*text);
      return text_value(*this, std::move(out));
    }
    if (const List* list = value.as_list()) {
      AERIE_TRY(charge(checked_mul(list->items.size(), count).value_or(UINT64_MAX)));
      std::vector<Value> items;
      for (uint64_t i = 0; i < count && !list->items.empty(); ++i) items.insert(items.end(), list->items.begin(), list->items.end());
      return list_value(*this, std::move(items), list->tuple);
    }
    return invalid_argument("{} cannot be repeated", type_name(value));
  }

  static Expected<Value> float_arithmetic(const std::string& op, double a, double b) {
    if (op == "+") return Value(a + b);
    if (op == "-") return Value(a - b);
    if (op == "*") return Value(a * b);
    if (op == "**") return Value(std::pow(a, b));
    if (b == 0) return invalid_argument("division by zero");
    if (op == "/") return Value(a / b);
    if (op == "//") return Value(std::floor(a / b));
    const double remainder = std::fmod(a, b);
    return Value(remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder);
  }

  static Expected<Value> int_arithmetic(const std::string& op, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflows = false;
    if (op == "+") {
      overflows = __builtin_add_overflow(a, b, &result);
    } else if (op == "-") {
      overflows = __builtin_sub_overflow(a, b, &result);
    } else if (op == "*") {
      overflows = __builtin_mul_overflow(a, b, &result);
    } else if (op == "**") {
      if (b < 0) return float_arithmetic(op, static_cast<double>(a), static_cast<double>(b));
      if (b > 64 && a != 0 && a != 1 && a != -1) return overflow();
      result = 1;
      for (int64_t i = 0; i < (b > 64 ? 64 + b % 2 : b) && !overflows; ++i) overflows = __builtin_mul_overflow(result, a, &result);
    } else {
      if (b == 0) return invalid_argument("division by zero");
      if (a == INT64_MIN && b == -1) return op == "%" ? Expected<Value>(Value(0)) : Expected<Value>(overflow());
      const int64_t remainder = a % b;
      const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);  // Python rounds down
      result = op == "//" ? a / b - adjust : remainder + (adjust ? b : 0);
    }
    if (overflows) return overflow();
    return Value(result);
  }

  Expected<Value> comparison(const Expr& expr, Scope& scope) {
    AERIE_ASSIGN(Value left, evaluate(*expr.args[0], scope));
    for (size_t i = 0; i < expr.operators.size(); ++i) {
      AERIE_ASSIGN(Value right, evaluate(*expr.args[i + 1], scope));
      line_ = expr.line;
      const std::string& op = expr.operators[i];
      bool holds = false;
      if (op == "in" || op == "not in") {
        AERIE_ASSIGN(const bool found, contains(*this, right, left));
        holds = found == (op == "in");
      } else if (op == "==" || op == "!=") {
        AERIE_TRY(charge(std::min(weight_of(left), weight_of(right)) / 64));
        holds = equals(left, right) == (op == "==");
      } else {
        AERIE_ASSIGN(const int order, compare(*this, left, right));
        holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
      }
      if (!holds) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  int64_t unix_time_;
  Budget budget_;
  int64_t steps_ = 0;
  size_t printed_ = 0;
  int depth_ = 0;
  int line_ = 1;
  Flow flow_ = Flow::kNext;
  std::deque<Namespace> namespaces_;  // before the scopes, which point into it
  Scope root_;
};

}  // namespace

Expected<Template> Template::compile(std::string_view source) {
  AERIE_ASSIGN(Body body, parse_template(source));
  return Template(std::move(body));
}

Expected<Text> Template::render(const Variables& variables, int64_t unix_time, const Budget& budget) const {
  return Interpreter(unix_time, budget).run(*body_, variables);
}

}  // namespace aerie::jinja
