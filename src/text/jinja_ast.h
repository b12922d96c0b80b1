// The parsed chat template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace aerie::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

enum class ExprKind {
  kConstant,     // value
  kName,         // name
  kList,         // args
  kTuple,        // args
  kDict,         // args: key, value, key, value, ...
  kAttribute,    // args[0].name
  kItem,         // args[0][args[1]]
  kSlice,        // args[0][args[1]:args[2]:args[3]], the bounds may be null
  kCall,         // args[0](args[1..], named)
  kFilter,       // args[0] | name(args[1..], named)
  kTest,         // args[0] is name(args[1..], named)
  kNegative,     // -args[0]
  kPositive,     // +args[0]
  kNot,          // not args[0]
  kAnd,          // args[0] and args[1]
  kOr,           // args[0] or args[1]
  kBinary,       // args[0] name args[1], arithmetic
  kCompare,      // args[0] operators[0] args[1] operators[1] args[2] ...
  kConcat,       // args joined as text
  kConditional,  // args[0] if args[1] else args[2] (null: undefined)
};

struct Expr {
  ExprKind kind;
  int line;
  int depth = 1;  // of the tree below; bounded by the parser, since evaluation and destruction recurse
  std::string name;
  Value value;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> operators;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<const Stmt>>;

enum class StmtKind {
  kText,         // value
  kOutput,       // expr
  kFor,          // targets in expr, condition (may be null), body, else_body
  kIf,           // branches, else_body
  kSet,          // targets = expr, or name.targets[0] = expr if name is not empty
  kSetBlock,     // as kSet with the text of body, sent through filters
  kMacro,        // name(parameters) body
  kFilterBlock,  // body sent through filters
  kScope,        // with: assignments and body
  kGroup,        // body as it stands
  kBreak,
  kContinue,
};

struct Branch {
  ExprPtr condition;
  Body body;
};

struct Parameter {
  std::string name;
  ExprPtr default_value;  // null: undefined
};

struct Stmt {
  StmtKind kind;
  int line;
  Text text;
  std::string name;
  std::vector<std::string> targets;
  ExprPtr expr;  // for the block forms: the filters around a kName of kCapturedText
  ExprPtr condition;
  Body body;
  Body else_body;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
};

/// The name under which a block form's text enters its filters: no template can spell it.
inline constexpr const char* kCapturedText = " captured";

}  // namespace aerie::jinja
