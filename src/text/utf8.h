// UTF-8, with one rule for what is not UTF-8: every maximal part of an ill-formed sequence becomes one U+FFFD (Unicode 3.9,
// "substitution of maximal subparts"), as Python's decode(errors="replace") and Rust's from_utf8_lossy do.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace aerie {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// What stands at the start of some bytes.
struct Utf8Step {
  char32_t code = 0;  // the character; U+FFFD when not valid
  size_t length = 0;  // bytes of the character, or of the maximal ill-formed part (at least 1)
  bool valid = false;
  bool incomplete = false;  // not valid, but the bytes ended before that was certain: more of them could complete it
};

/// `bytes` must not be empty.
Utf8Step utf8_next(std::string_view bytes);
bool is_valid_utf8(std::string_view bytes);
std::string sanitize_utf8(std::string_view bytes);
/// Number of characters in well-formed UTF-8.
size_t utf8_length(std::string_view text);
void append_utf8(std::string& out, char32_t code);
/// White space as Python's str.isspace and str.strip see it.
bool is_python_space(char32_t code);

}  // namespace aerie
