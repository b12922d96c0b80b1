// The expression half of the parser; jinja_parser.cpp builds on it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"
#include "text/jinja_parser.h"

namespace aerie::jinja {

/// Recursive descent over tokens that tokenize() made (the last is kEnd). Not thread-safe.
class ExpressionParser {
 protected:
  using Node = std::unique_ptr<Expr>;

  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Tokens
  const Token& current() const { return tokens_[at_]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view text) const { return is(TokenKind::kOperator) && current().text == text; }
  bool is_word(std::string_view text) const { return is(TokenKind::kName) && current().text == text; }
  bool skip_operator(std::string_view text) { return is_operator(text) && (next(), true); }
  bool skip_word(std::string_view text) { return is_word(text) && (next(), true); }
  Status error(const std::string& what) const { return invalid_argument("chat template line {}: {}", current().line, what); }
  std::string found() const {
    switch (current().kind) {
      case TokenKind::kEnd: return "the end of the template";
      case TokenKind::kText: return "text";
      case TokenKind::kBlockBegin: return "'{%'";
      case TokenKind::kBlockEnd: return "'%}'";
      case TokenKind::kVariableBegin: return "'{{'";
      case TokenKind::kVariableEnd: return "'}}'";
      default: return "'" + current().text + "'";
    }
  }
  Status expect_operator(std::string_view text) {
    if (skip_operator(text)) return {};
    return error(fmt::format("expected '{}', found {}", text, found()));
  }
  Expected<std::string> expect_name() {
    if (!is(TokenKind::kName)) return error("expected a name, found " + found());
    return next().text;
  }
  Status expect_block_end() {
    if (!is(TokenKind::kBlockEnd)) return error("expected '%}', found " + found());
    next();
    return {};
  }

  // Nodes
  Node make(ExprKind kind) const {
    auto node = std::make_unique<Expr>();
    node->kind = kind;
    node->line = current().line;
    return node;
  }
  /// Appends `child` (may be null); the only way a tree gets deeper.
  Status add(Node& node, Node child) const {
    if (child != nullptr) {
      node->depth = std::max(node->depth, child->depth + 1);
      if (node->depth > kMaxSyntaxDepth) return too_deep();
    }
    node->args.push_back(std::move(child));
    return {};
  }
  Status too_deep() const { return resource_error("chat template line {}: nested deeper than {}", current().line, kMaxSyntaxDepth); }

  struct Nesting {
    explicit Nesting(int& counter) : depth(counter) { ++depth; }
    ~Nesting() { --depth; }
    int& depth;
  };

  // Expressions, loosest binding first
  Expected<Node> expression();
  Expected<Node> or_expression();
  Expected<Node> and_expression();
  Expected<Node> not_expression();
  /// The comparison operator here, consumed, or "".
  std::string comparison_operator();
  Expected<Node> comparison();
  template <class Operand>
  Expected<Node> binary(std::initializer_list<std::string_view> operators, Operand&& operand) {
    AERIE_ASSIGN(Node left, operand());
    while (is(TokenKind::kOperator) && std::find(operators.begin(), operators.end(), current().text) != operators.end()) {
      Node node = make(ExprKind::kBinary);
      node->name = next().text;
      AERIE_ASSIGN(Node right, operand());
      AERIE_TRY(add(node, std::move(left)));
      AERIE_TRY(add(node, std::move(right)));
      left = std::move(node);
    }
    return left;
  }
  Expected<Node> sum();
  Expected<Node> concatenation();
  Expected<Node> product();
  Expected<Node> power();
  Expected<Node> unary(bool with_filters);
  Node constant(Value value);
  Expected<Node> primary();
  Expected<Node> next_with(Node node);
  Expected<Node> number();
  /// One expression, or a tuple if commas follow; an empty rest before `end` closes it.
  Expected<Node> tuple(std::string_view end);
  Expected<Node> list();
  Expected<Node> dict();
  Expected<Node> postfix(Node node);
  Expected<Node> attribute(Node object);
  Expected<Node> subscript(Node object);
  /// "(a, b, name=c)" behind a callee, filter or test.
  Status arguments(Node& node);
  Expected<Node> call(Node callee);
  Expected<Node> filters(Node node);
  Expected<Node> filter(Node input);
  Expected<Node> test(Node subject);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace aerie::jinja
