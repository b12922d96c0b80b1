// Tokens to text, one at a time, never half a character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/tokenizer.h"

namespace aerie {

/// Cuts a stream of bytes at character boundaries. All outputs together equal sanitize_utf8() of all inputs together.
class Utf8Stream {
 public:
  /// The characters that are complete now; at most 3 bytes are held back.
  std::string push(std::string_view bytes);
  /// One U+FFFD for an unfinished character, or nothing. The stream is then empty and may be used again.
  std::string flush();
  size_t held_back() const { return tail_.size(); }

 private:
  std::string tail_;
};

/// Streams the text of generated tokens. Not thread-safe; the tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true) : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  /// The text that `id` completes, maybe empty. kInvalidArgument for an id out of range.
  Expected<std::string> push(int32_t id);
  /// What is left at the end: "" or one U+FFFD.
  std::string flush() { return stream_.flush(); }
  size_t held_back() const { return stream_.held_back(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace aerie
