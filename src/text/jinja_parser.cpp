#include "text/jinja_parser.h"

#include <algorithm>

#include "text/jinja_expression_parser.h"
#include "text/jinja_lexer.h"

namespace aerie::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Expected<Body> run() {
    AERIE_ASSIGN(Body body, statements({}));
    if (current().kind != TokenKind::kEnd) return error("unexpected end of a block");
    return body;
  }

 private:
  /// Until a block tag that starts with one of `ends` (not consumed but for its '{%'), or the end of the template.
  Expected<Body> statements(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(depth_);
    if (depth_ > kMaxSyntaxDepth) return too_deep();
    Body body;
    while (!is(TokenKind::kEnd)) {
      auto stmt = std::make_unique<Stmt>();
      stmt->line = current().line;
      if (is(TokenKind::kText)) {
        stmt->kind = StmtKind::kText;
        stmt->text = Text(next().text);
      } else if (is(TokenKind::kVariableBegin)) {
        next();
        stmt->kind = StmtKind::kOutput;
        AERIE_ASSIGN(stmt->expr, tuple("}}"));
        if (!is(TokenKind::kVariableEnd)) return error("expected '}}', found " + found());
        next();
      } else {
        next();  // '{%'
        if (!is(TokenKind::kName)) return error("expected the name of a statement, found " + found());
        if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) return body;
        AERIE_TRY(statement(*stmt));
      }
      body.push_back(std::move(stmt));
    }
    if (ends.size() != 0) return error(fmt::format("a block is not closed by '{}'", *(ends.end() - 1)));
    return body;
  }

  /// The body of a block that nothing but `end` closes, tag included.
  Expected<Body> body_until(std::string_view end) {
    AERIE_TRY(expect_block_end());
    AERIE_ASSIGN(Body body, statements({end}));
    next();
    AERIE_TRY(expect_block_end());
    return body;
  }

  Status statement(Stmt& stmt) {
    const std::string word = next().text;
    if (word == "if") return if_statement(stmt);
    if (word == "for") return for_statement(stmt);
    if (word == "set") return set_statement(stmt);
    if (word == "macro") return macro_statement(stmt);
    if (word == "with") return with_statement(stmt);
    if (word == "filter") {
      stmt.kind = StmtKind::kFilterBlock;
      AERIE_ASSIGN(stmt.expr, captured_filters(true));
      AERIE_ASSIGN(stmt.body, body_until("endfilter"));
      return {};
    }
    if (word == "generation") {  // marks the assistant's part for training masks; no text of its own
      stmt.kind = StmtKind::kGroup;
      AERIE_ASSIGN(stmt.body, body_until("endgeneration"));
      return {};
    }
    if (word == "break" || word == "continue") {
      stmt.kind = word == "break" ? StmtKind::kBreak : StmtKind::kContinue;
      if (loops_ == 0) return error("'" + word + "' outside a loop");
      return expect_block_end();
    }
    for (const std::string_view known : {"include", "import", "from", "extends", "block", "call", "autoescape", "trans", "do"}) {
      if (word == known)
        return unsupported("chat template line {}: the statement '{}' is not supported in chat templates", stmt.line, word);
    }
    return invalid_argument("chat template line {}: unknown statement '{}'", stmt.line, word);
  }

  Status if_statement(Stmt& stmt) {
    stmt.kind = StmtKind::kIf;
    while (true) {
      Branch branch;
      AERIE_ASSIGN(branch.condition, or_expression());
      AERIE_TRY(expect_block_end());
      AERIE_ASSIGN(branch.body, statements({"elif", "else", "endif"}));
      stmt.branches.push_back(std::move(branch));
      const std::string word = next().text;
      if (word == "elif") continue;
      if (word == "else") {
        AERIE_ASSIGN(stmt.else_body, body_until("endif"));
        return {};
      }
      return expect_block_end();
    }
  }

  Expected<std::vector<std::string>> target_names() {
    const bool parenthesised = skip_operator("(");
    std::vector<std::string> names;
    do {
      if (!names.empty() && !is(TokenKind::kName)) break;
      AERIE_ASSIGN(std::string name, expect_name());
      names.push_back(std::move(name));
    } while (skip_operator(","));
    if (parenthesised) AERIE_TRY(expect_operator(")"));
    return names;
  }

  Status for_statement(Stmt& stmt) {
    stmt.kind = StmtKind::kFor;
    AERIE_ASSIGN(stmt.targets, target_names());
    if (!skip_word("in")) return error("expected 'in', found " + found());
    AERIE_ASSIGN(stmt.expr, or_expression());
    if (skip_word("if")) {
      AERIE_ASSIGN(stmt.condition, expression());
    }
    if (is_word("recursive")) return unsupported("chat template line {}: recursive loops are not supported", stmt.line);
    AERIE_TRY(expect_block_end());
    ++loops_;
    AERIE_ASSIGN(stmt.body, statements({"else", "endfor"}));
    --loops_;
    if (next().text == "else") {
      AERIE_ASSIGN(stmt.else_body, body_until("endfor"));
      return {};
    }
    return expect_block_end();
  }

  /// "| a | b(1)" around the captured text of a block.
  Expected<ExprPtr> captured_filters(bool bare_first) {
    Node node = make(ExprKind::kName);
    node->name = kCapturedText;
    if (bare_first) {
      AERIE_ASSIGN(node, filter(std::move(node)));
    }
    AERIE_ASSIGN(node, filters(std::move(node)));
    return ExprPtr(std::move(node));
  }

  Status set_statement(Stmt& stmt) {
    stmt.kind = StmtKind::kSet;
    if (is(TokenKind::kName) && tokens_[at_ + 1].kind == TokenKind::kOperator && tokens_[at_ + 1].text == ".") {
      stmt.name = next().text;
      next();
      AERIE_ASSIGN(std::string field, expect_name());
      stmt.targets.push_back(std::move(field));
    } else {
      AERIE_ASSIGN(stmt.targets, target_names());
    }
    if (skip_operator("=")) {
      AERIE_ASSIGN(stmt.expr, tuple("%}"));
      return expect_block_end();
    }
    stmt.kind = StmtKind::kSetBlock;
    if (stmt.targets.size() != 1) return error("expected '=', found " + found());
    AERIE_ASSIGN(stmt.expr, captured_filters(false));
    AERIE_ASSIGN(stmt.body, body_until("endset"));
    return {};
  }

  Status macro_statement(Stmt& stmt) {
    stmt.kind = StmtKind::kMacro;
    AERIE_ASSIGN(stmt.name, expect_name());
    AERIE_TRY(expect_operator("("));
    while (!is_operator(")")) {
      if (!stmt.parameters.empty()) AERIE_TRY(expect_operator(","));
      if (is_operator(")")) break;
      Parameter parameter;
      AERIE_ASSIGN(parameter.name, expect_name());
      if (skip_operator("=")) {
        AERIE_ASSIGN(parameter.default_value, expression());
      }
      stmt.parameters.push_back(std::move(parameter));
    }
    next();
    const int loops = std::exchange(loops_, 0);
    AERIE_ASSIGN(stmt.body, body_until("endmacro"));
    loops_ = loops;
    return {};
  }

  Status with_statement(Stmt& stmt) {
    stmt.kind = StmtKind::kScope;
    while (!is(TokenKind::kBlockEnd)) {
      if (!stmt.parameters.empty()) AERIE_TRY(expect_operator(","));
      Parameter assignment;
      AERIE_ASSIGN(assignment.name, expect_name());
      AERIE_TRY(expect_operator("="));
      AERIE_ASSIGN(assignment.default_value, expression());
      stmt.parameters.push_back(std::move(assignment));
    }
    AERIE_ASSIGN(stmt.body, body_until("endwith"));
    return {};
  }

  int loops_ = 0;  // around the current statement
};

}  // namespace

Expected<Body> parse_template(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return resource_error("the chat template has {} bytes, more than the {} allowed", source.size(), kMaxSourceBytes);
  }
  AERIE_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace aerie::jinja
