// Tokens to a syntax tree.
#pragma once

#include <string_view>

#include "text/jinja_ast.h"

namespace aerie::jinja {

inline constexpr size_t kMaxSourceBytes = size_t{1} << 20;
inline constexpr int kMaxSyntaxDepth = 100;

/// kInvalidArgument with the line for a syntax error, kResource for a source over kMaxSourceBytes or nested deeper than
/// kMaxSyntaxDepth, kUnsupported for a statement we do not have (include, import, extends, block, call, autoescape, trans).
Expected<Body> parse_template(std::string_view source);

}  // namespace aerie::jinja
