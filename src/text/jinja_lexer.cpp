#include "text/jinja_lexer.h"

#include <algorithm>
#include <cctype>

#include "text/utf8.h"

namespace aerie::jinja {
namespace {

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

/// Bytes of white space at the start of `text`.
size_t leading_space(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = utf8_next(text.substr(length));
    if (!is_python_space(step.code)) break;
    length += step.length;
  }
  return length;
}

/// Length of `text` without the white space at its end.
size_t without_trailing_space(std::string_view text) {
  size_t keep = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_next(text.substr(at));
    at += step.length;
    if (!is_python_space(step.code)) keep = at;
  }
  return keep;
}

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)), rest_(source_) {}

  Expected<std::vector<Token>> run() {
    if (!is_valid_utf8(source_)) return invalid_argument("the chat template is not UTF-8");
    while (!rest_.empty()) AERIE_TRY(text_and_tag());
    tokens_.push_back({TokenKind::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  Status error(const std::string& what) const { return invalid_argument("chat template line {}: {}", line_, what); }

  void advance(size_t count) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(count), '\n'));
    rest_.remove_prefix(count);
  }
  bool starts(std::string_view what) const { return rest_.substr(0, what.size()) == what; }

  void add_text(std::string_view text) {
    if (!text.empty()) tokens_.push_back({TokenKind::kText, std::string(text), line_});
  }

  /// `text` stands before a tag that begins with `sign`; what of it remains.
  std::string_view before_tag(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return text.substr(0, without_trailing_space(text));
    if (sign == '+' || is_variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_start == 0 && !at_line_start_) return text;
    const std::string_view indent = text.substr(line_start);
    return leading_space(indent) == indent.size() ? text.substr(0, line_start) : text;
  }

  /// Skips what an end tag swallows; `rest_` is behind the tag.
  void after_tag(char sign, bool trims_newline) {
    size_t skip = 0;
    if (sign == '-') {
      skip = leading_space(rest_);
    } else if (sign != '+' && trims_newline && starts("\n")) {
      skip = 1;
    }
    at_line_start_ = skip > 0 && rest_[skip - 1] == '\n';
    advance(skip);
  }

  static char sign_at(std::string_view text, size_t at) {
    return at < text.size() && (text[at] == '-' || text[at] == '+') ? text[at] : '\0';
  }

  Status text_and_tag() {
    size_t tag = 0;
    for (;; ++tag) {
      tag = rest_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 == rest_.size()) {
        add_text(rest_);
        advance(rest_.size());
        return {};
      }
      const char kind = rest_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    const char kind = rest_[tag + 1];
    const char sign = sign_at(rest_, tag + 2);
    add_text(before_tag(rest_.substr(0, tag), sign, kind == '{'));
    advance(tag + 2 + (sign != '\0'));
    if (kind == '#') return comment();
    if (kind == '%' && is_tag_word("raw", nullptr, nullptr)) return raw();
    tokens_.push_back({kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "", line_});
    return expression(kind == '{');
  }

  Status comment() {
    const size_t end = rest_.find("#}");
    if (end == std::string_view::npos) return error("a comment is not closed by '#}'");
    const char sign = end > 0 ? sign_at(rest_, end - 1) : '\0';
    advance(end + 2);
    after_tag(sign, true);
    return {};
  }

  /// Whether `rest_` (behind "{%" and its sign) is `word` and an end tag; then how long and with which sign it ends.
  bool is_tag_word(std::string_view word, size_t* length, char* end_sign) const {
    std::string_view text = rest_;
    size_t at = leading_space(text);
    if (text.substr(at, word.size()) != word) return false;
    at += word.size();
    at += leading_space(text.substr(at));
    const char sign = sign_at(text, at);
    at += sign != '\0';
    if (text.substr(at, 2) != "%}") return false;
    if (length != nullptr) *length = at + 2;
    if (end_sign != nullptr) *end_sign = sign;
    return true;
  }

  Status raw() {
    size_t length = 0;
    char sign = '\0';
    is_tag_word("raw", &length, &sign);
    advance(length);
    after_tag(sign, false);
    const std::string_view body = rest_;
    for (size_t at = 0; (at = body.find("{%", at)) != std::string_view::npos; at += 2) {
      const char begin_sign = sign_at(body, at + 2);
      rest_ = body.substr(at + 2 + (begin_sign != '\0'));
      if (!is_tag_word("endraw", &length, &sign)) continue;
      const std::string_view end_tag = rest_;
      rest_ = body;
      add_text(before_tag(body.substr(0, at), begin_sign, false));
      advance(static_cast<size_t>(end_tag.data() - body.data()) + length);
      after_tag(sign, true);
      return {};
    }
    return error("a raw block is not closed by 'endraw'");
  }

  Status expression(bool is_variable) {
    const std::string_view end = is_variable ? "}}" : "%}";
    std::string open;  // brackets that wait for their partner: inside them '}}' is no end tag
    while (true) {
      advance(leading_space(rest_));
      if (rest_.empty()) return error(fmt::format("a tag is not closed by '{}'", end));
      const char sign = sign_at(rest_, 0);
      if (open.empty() && rest_.substr(sign != '\0', 2) == end) {
        tokens_.push_back({is_variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "", line_});
        advance(2 + (sign != '\0'));
        after_tag(sign, !is_variable);
        return {};
      }
      const char c = rest_[0];
      if (is_name_start(c)) {
        size_t length = 1;
        while (length < rest_.size() && is_name_char(rest_[length])) ++length;
        take(TokenKind::kName, length);
      } else if (is_digit(c)) {
        number();
      } else if (c == '\'' || c == '"') {
        AERIE_TRY(string(c));
      } else {
        AERIE_TRY(operator_sign(open));
      }
    }
  }

  void take(TokenKind kind, size_t length) {
    tokens_.push_back({kind, std::string(rest_.substr(0, length)), line_});
    advance(length);
  }

  void number() {
    size_t length = 0;
    const auto digits = [&] {
      while (length < rest_.size() && (is_digit(rest_[length]) || rest_[length] == '_')) ++length;
    };
    digits();
    bool is_float = false;
    // "1.x" is an attribute of 1, not a number
    if (length + 1 < rest_.size() && rest_[length] == '.' && is_digit(rest_[length + 1])) {
      is_float = true;
      ++length;
      digits();
    }
    size_t exponent = length + 1;
    if (length < rest_.size() && (rest_[length] == 'e' || rest_[length] == 'E')) {
      if (exponent < rest_.size() && (rest_[exponent] == '+' || rest_[exponent] == '-')) ++exponent;
      if (exponent < rest_.size() && is_digit(rest_[exponent])) {
        is_float = true;
        length = exponent;
        digits();
      }
    }
    take(is_float ? TokenKind::kFloat : TokenKind::kInteger, length);
  }

  Status string(char quote) {
    std::string value;
    size_t at = 1;
    for (; at < rest_.size() && rest_[at] != quote; ++at) {
      if (rest_[at] != '\\') {
        value += rest_[at];
        continue;
      }
      if (++at == rest_.size()) break;
      AERIE_TRY(escape(at, value));
    }
    if (at >= rest_.size()) return error("a string is not closed");
    tokens_.push_back({TokenKind::kString, std::move(value), line_});
    advance(at + 1);
    return {};
  }

  /// Python's escapes. `at` is at the character behind the backslash and ends on the escape's last one.
  Status escape(size_t& at, std::string& value) const {
    const char c = rest_[at];
    constexpr std::string_view kNames = "ntrabfv\\'\"";
    constexpr std::string_view kValues = "\n\t\r\a\b\f\v\\'\"";
    if (const size_t simple = kNames.find(c); simple != std::string_view::npos) {
      value += kValues[simple];
      return {};
    }
    if (c == '\n') return {};
    int base = 16;
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c >= '0' && c <= '7') {
      base = 8;
      digits = 1;
      while (digits < 3 && at + digits < rest_.size() && rest_[at + digits] >= '0' && rest_[at + digits] <= '7') ++digits;
      --at;
    }
    if (digits == 0) {  // no escape at all: the backslash stays
      value += '\\';
      value += c;
      return {};
    }
    char32_t code = 0;
    for (size_t i = 1; i <= digits; ++i) {
      const char digit = at + i < rest_.size() ? rest_[at + i] : 'x';
      if (std::isxdigit(static_cast<unsigned char>(digit)) == 0) return error(fmt::format("the escape '\\{}' has too few digits", c));
      code = code * static_cast<char32_t>(base) + static_cast<char32_t>(is_digit(digit) ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    at += digits;
    append_utf8(value, code);
    return {};
  }

  Status operator_sign(std::string& open) {
    constexpr std::string_view kDouble[] = {"==", "!=", "<=", ">=", "//", "**"};
    for (const std::string_view op : kDouble) {
      if (starts(op)) {
        take(TokenKind::kOperator, 2);
        return {};
      }
    }
    const char c = rest_[0];
    if (std::string_view("+-*/%~[](){}<>=.:|,;").find(c) == std::string_view::npos)
      return error(fmt::format("unexpected character '{}'", printable()));
    if (c == '(' || c == '[' || c == '{') open += c;
    if (c == ')' || c == ']' || c == '}') {
      const char partner = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != partner) return error(fmt::format("'{}' has no partner", c));
      open.pop_back();
    }
    take(TokenKind::kOperator, 1);
    return {};
  }

  std::string printable() const { return std::string(rest_.substr(0, utf8_next(rest_).length)); }

  std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Expected<std::vector<Token>> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace aerie::jinja
