#include "text/jinja_expression_parser.h"

#include <charconv>

namespace aerie::jinja {

using Node = std::unique_ptr<Expr>;

Expected<Node> ExpressionParser::expression() {
  const Nesting nesting(depth_);
  if (depth_ > kMaxSyntaxDepth) return too_deep();
  AERIE_ASSIGN(Node left, or_expression());
  while (is_word("if")) {
    Node node = make(ExprKind::kConditional);
    next();
    AERIE_TRY(add(node, std::move(left)));
    AERIE_ASSIGN(Node condition, or_expression());
    AERIE_TRY(add(node, std::move(condition)));
    Node otherwise;
    if (skip_word("else")) {
      AERIE_ASSIGN(otherwise, expression());
    }
    AERIE_TRY(add(node, std::move(otherwise)));
    left = std::move(node);
  }
  return left;
}

Expected<Node> ExpressionParser::or_expression() {
  AERIE_ASSIGN(Node left, and_expression());
  while (is_word("or")) {
    Node node = make(ExprKind::kOr);
    next();
    AERIE_ASSIGN(Node right, and_expression());
    AERIE_TRY(add(node, std::move(left)));
    AERIE_TRY(add(node, std::move(right)));
    left = std::move(node);
  }
  return left;
}

Expected<Node> ExpressionParser::and_expression() {
  AERIE_ASSIGN(Node left, not_expression());
  while (is_word("and")) {
    Node node = make(ExprKind::kAnd);
    next();
    AERIE_ASSIGN(Node right, not_expression());
    AERIE_TRY(add(node, std::move(left)));
    AERIE_TRY(add(node, std::move(right)));
    left = std::move(node);
  }
  return left;
}

Expected<Node> ExpressionParser::not_expression() {
  if (!is_word("not")) return comparison();
  const Nesting nesting(depth_);
  if (depth_ > kMaxSyntaxDepth) return too_deep();
  Node node = make(ExprKind::kNot);
  next();
  AERIE_ASSIGN(Node operand, not_expression());
  AERIE_TRY(add(node, std::move(operand)));
  return node;
}

std::string ExpressionParser::comparison_operator() {
  for (const std::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (skip_operator(op)) return std::string(op);
  }
  if (skip_word("in")) return "in";
  if (is_word("not") && tokens_[at_ + 1].kind == TokenKind::kName && tokens_[at_ + 1].text == "in") {
    next();
    next();
    return "not in";
  }
  return "";
}

Expected<Node> ExpressionParser::comparison() {
  AERIE_ASSIGN(Node left, sum());
  Node node;
  for (std::string op = comparison_operator(); !op.empty(); op = comparison_operator()) {
    if (node == nullptr) {
      node = make(ExprKind::kCompare);
      AERIE_TRY(add(node, std::move(left)));
    }
    node->operators.push_back(std::move(op));
    AERIE_ASSIGN(Node right, sum());
    AERIE_TRY(add(node, std::move(right)));
  }
  return node != nullptr ? std::move(node) : std::move(left);
}

Expected<Node> ExpressionParser::sum() {
  return binary({"+", "-"}, [this] { return concatenation(); });
}

Expected<Node> ExpressionParser::concatenation() {
  AERIE_ASSIGN(Node left, product());
  if (!is_operator("~")) return left;
  Node node = make(ExprKind::kConcat);
  AERIE_TRY(add(node, std::move(left)));
  while (skip_operator("~")) {
    AERIE_ASSIGN(Node right, product());
    AERIE_TRY(add(node, std::move(right)));
  }
  return node;
}

Expected<Node> ExpressionParser::product() {
  return binary({"*", "/", "//", "%"}, [this] { return power(); });
}

Expected<Node> ExpressionParser::power() {
  return binary({"**"}, [this] { return unary(true); });
}

Expected<Node> ExpressionParser::unary(bool with_filters) {
  Node node;
  if (is_operator("-") || is_operator("+")) {
    const Nesting nesting(depth_);
    if (depth_ > kMaxSyntaxDepth) return too_deep();
    node = make(is_operator("-") ? ExprKind::kNegative : ExprKind::kPositive);
    next();
    AERIE_ASSIGN(Node operand, unary(false));
    AERIE_TRY(add(node, std::move(operand)));
  } else {
    AERIE_ASSIGN(node, primary());
  }
  AERIE_ASSIGN(node, postfix(std::move(node)));
  return with_filters ? filters(std::move(node)) : Expected<Node>(std::move(node));
}

Node ExpressionParser::constant(Value value) {
  Node node = make(ExprKind::kConstant);
  node->value = std::move(value);
  return node;
}

Expected<Node> ExpressionParser::primary() {
  const Token& token = current();
  if (token.kind == TokenKind::kName) {
    if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
      return next_with(constant(Value(token.text[0] == 't' || token.text[0] == 'T')));
    }
    if (token.text == "none" || token.text == "None") return next_with(constant(Value()));
    Node node = make(ExprKind::kName);
    node->name = token.text;
    return next_with(std::move(node));
  }
  if (token.kind == TokenKind::kString) {
    std::string text;
    Node node = make(ExprKind::kConstant);
    while (is(TokenKind::kString)) text += next().text;
    node->value = Value(Text(std::move(text)));
    return node;
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) return number();
  if (is_operator("(")) {
    next();
    if (is_operator(")")) {
      next();
      return make(ExprKind::kTuple);
    }
    AERIE_ASSIGN(Node inside, tuple(")"));
    AERIE_TRY(expect_operator(")"));
    return inside;
  }
  if (is_operator("[")) return list();
  if (is_operator("{")) return dict();
  return error("expected an expression, found " + found());
}

Expected<Node> ExpressionParser::next_with(Node node) {
  next();
  return node;
}

Expected<Node> ExpressionParser::number() {
  std::string digits = current().text;
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  const char* end = digits.data() + digits.size();
  if (is(TokenKind::kFloat)) {
    double value = 0;
    if (std::from_chars(digits.data(), end, value).ec != std::errc()) return error("the number " + digits + " is out of range");
    return next_with(constant(Value(value)));
  }
  int64_t value = 0;
  if (std::from_chars(digits.data(), end, value).ec != std::errc()) return error("the number " + digits + " is beyond 64 bits");
  return next_with(constant(Value(value)));
}

Expected<Node> ExpressionParser::tuple(std::string_view end) {
  AERIE_ASSIGN(Node first, expression());
  if (!is_operator(",")) return first;
  Node node = make(ExprKind::kTuple);
  AERIE_TRY(add(node, std::move(first)));
  while (skip_operator(",")) {
    if (is_operator(end) || is(TokenKind::kBlockEnd) || is(TokenKind::kVariableEnd)) break;
    AERIE_ASSIGN(Node item, expression());
    AERIE_TRY(add(node, std::move(item)));
  }
  return node;
}

Expected<Node> ExpressionParser::list() {
  Node node = make(ExprKind::kList);
  next();
  while (!is_operator("]")) {
    if (!node->args.empty()) AERIE_TRY(expect_operator(","));
    if (is_operator("]")) break;
    AERIE_ASSIGN(Node item, expression());
    AERIE_TRY(add(node, std::move(item)));
  }
  next();
  return node;
}

Expected<Node> ExpressionParser::dict() {
  Node node = make(ExprKind::kDict);
  next();
  while (!is_operator("}")) {
    if (!node->args.empty()) AERIE_TRY(expect_operator(","));
    if (is_operator("}")) break;
    AERIE_ASSIGN(Node key, expression());
    AERIE_TRY(expect_operator(":"));
    AERIE_ASSIGN(Node value, expression());
    AERIE_TRY(add(node, std::move(key)));
    AERIE_TRY(add(node, std::move(value)));
  }
  next();
  return node;
}

Expected<Node> ExpressionParser::postfix(Node node) {
  while (true) {
    if (is_operator(".")) {
      AERIE_ASSIGN(node, attribute(std::move(node)));
    } else if (is_operator("[")) {
      AERIE_ASSIGN(node, subscript(std::move(node)));
    } else if (is_operator("(")) {
      AERIE_ASSIGN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Expected<Node> ExpressionParser::attribute(Node object) {
  Node node = make(ExprKind::kAttribute);
  next();
  AERIE_TRY(add(node, std::move(object)));
  if (is(TokenKind::kInteger)) {  // x.0 is x[0]
    node->kind = ExprKind::kItem;
    AERIE_ASSIGN(Node index, number());
    AERIE_TRY(add(node, std::move(index)));
    return node;
  }
  AERIE_ASSIGN(node->name, expect_name());
  return node;
}

Expected<Node> ExpressionParser::subscript(Node object) {
  Node node = make(ExprKind::kItem);
  next();
  AERIE_TRY(add(node, std::move(object)));
  Node bound;
  if (!is_operator(":")) {
    AERIE_ASSIGN(bound, expression());
    if (is_operator("]")) {
      next();
      AERIE_TRY(add(node, std::move(bound)));
      return node;
    }
  }
  node->kind = ExprKind::kSlice;
  AERIE_TRY(add(node, std::move(bound)));
  AERIE_TRY(expect_operator(":"));
  for (int i = 0; i < 2; ++i) {
    bound = nullptr;
    if (!is_operator(":") && !is_operator("]")) {
      AERIE_ASSIGN(bound, expression());
    }
    AERIE_TRY(add(node, std::move(bound)));
    if (i == 0) skip_operator(":");
  }
  AERIE_TRY(expect_operator("]"));
  return node;
}

Status ExpressionParser::arguments(Node& node) {
  AERIE_TRY(expect_operator("("));
  bool first = true;
  while (!is_operator(")")) {
    if (!first) AERIE_TRY(expect_operator(","));
    first = false;
    if (is_operator(")")) break;
    if (is(TokenKind::kName) && tokens_[at_ + 1].kind == TokenKind::kOperator && tokens_[at_ + 1].text == "=") {
      std::string name = next().text;
      next();
      AERIE_ASSIGN(Node value, expression());
      node->depth = std::max(node->depth, value->depth + 1);
      if (node->depth > kMaxSyntaxDepth) return too_deep();
      node->named.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (!node->named.empty()) return error("an argument without a name follows one with a name");
    AERIE_ASSIGN(Node value, expression());
    AERIE_TRY(add(node, std::move(value)));
  }
  next();
  return {};
}

Expected<Node> ExpressionParser::call(Node callee) {
  Node node = make(ExprKind::kCall);
  AERIE_TRY(add(node, std::move(callee)));
  AERIE_TRY(arguments(node));
  return node;
}

Expected<Node> ExpressionParser::filters(Node node) {
  while (true) {
    if (is_operator("|")) {
      next();
      AERIE_ASSIGN(node, filter(std::move(node)));
    } else if (is_word("is")) {
      AERIE_ASSIGN(node, test(std::move(node)));
    } else if (is_operator("(")) {
      AERIE_ASSIGN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Expected<Node> ExpressionParser::filter(Node input) {
  Node node = make(ExprKind::kFilter);
  AERIE_TRY(add(node, std::move(input)));
  AERIE_ASSIGN(node->name, expect_name());
  if (is_operator("(")) AERIE_TRY(arguments(node));
  return node;
}

Expected<Node> ExpressionParser::test(Node subject) {
  Node node = make(ExprKind::kTest);
  next();
  Node negation = skip_word("not") ? make(ExprKind::kNot) : nullptr;
  AERIE_TRY(add(node, std::move(subject)));
  AERIE_ASSIGN(node->name, expect_name());
  const bool value_follows = is(TokenKind::kString) || is(TokenKind::kInteger) || is(TokenKind::kFloat) || is_operator("[") ||
                             is_operator("{") ||
                             (is(TokenKind::kName) && !is_word("else") && !is_word("or") && !is_word("and") && !is_word("if") &&
                              !is_word("is") && !is_word("not") && !is_word("in"));
  if (is_operator("(")) {
    AERIE_TRY(arguments(node));
  } else if (value_follows) {
    AERIE_ASSIGN(Node value, primary());
    AERIE_ASSIGN(value, postfix(std::move(value)));
    AERIE_TRY(add(node, std::move(value)));
  }
  if (negation == nullptr) return node;
  AERIE_TRY(add(negation, std::move(node)));
  return negation;
}

}  // namespace aerie::jinja
