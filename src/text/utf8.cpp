#include "text/utf8.h"

#include <cstdint>

namespace aerie {

Utf8Step utf8_next(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {lead, 1, true, false};
  // Unicode Table 3-7: the second byte's range depends on the lead, which rules out overlong forms, surrogates and > U+10FFFF.
  size_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {0xFFFD, 1, false, false};
  }
  char32_t code = lead & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {0xFFFD, i, false, true};
    if (at(i) < low || at(i) > high) return {0xFFFD, i, false, false};
    code = (code << 6) | (at(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code, length, true, false};
}

bool is_valid_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = utf8_next(bytes);
    if (!step.valid) return false;
    bytes.remove_prefix(step.length);
  }
  return true;
}

std::string sanitize_utf8(std::string_view bytes) {
  std::string clean;
  clean.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = utf8_next(bytes);
    clean += step.valid ? bytes.substr(0, step.length) : kReplacementCharacter;
    bytes.remove_prefix(step.length);
  }
  return clean;
}

size_t utf8_length(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count;
}

void append_utf8(std::string& out, char32_t code) {
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) code = 0xFFFD;
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  const auto continuation = [&](int shift) { put(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    continuation(0);
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    continuation(6);
    continuation(0);
  } else {
    put(0xF0 | (code >> 18));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

bool is_python_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

}  // namespace aerie
