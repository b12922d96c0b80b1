// Chat template source to tokens, with Jinja2's white space control.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace aerie::jinja {

enum class TokenKind { kText, kBlockBegin, kBlockEnd, kVariableBegin, kVariableEnd, kName, kString, kInteger, kFloat, kOperator, kEnd };

struct Token {
  TokenKind kind;
  std::string text;  // a string's content with its escapes resolved; a name, number or operator as written
  int line;
};

/// Works as Environment(trim_blocks=True, lstrip_blocks=True): the newline after a block tag and the blanks in front of one
/// vanish, '-' strips all white space on its side, '+' switches both off; comments vanish, raw blocks are text; newlines become
/// "\n" and one at the very end is dropped. The last token is kEnd. Errors carry the line.
Expected<std::vector<Token>> tokenize(std::string_view source);

}  // namespace aerie::jinja
