#include "text/detokenizer.h"

#include "text/utf8.h"

namespace aerie {

std::string Utf8Stream::push(std::string_view bytes) {
  tail_ += bytes;
  std::string out;
  std::string_view rest = tail_;
  while (!rest.empty()) {
    const Utf8Step step = utf8_next(rest);
    if (step.incomplete) break;
    out += step.valid ? rest.substr(0, step.length) : kReplacementCharacter;
    rest.remove_prefix(step.length);
  }
  tail_ = std::string(rest);
  return out;
}

std::string Utf8Stream::flush() {
  std::string out = sanitize_utf8(tail_);
  tail_.clear();
  return out;
}

Expected<std::string> Detokenizer::push(int32_t id) {
  AERIE_ASSIGN(const std::string_view bytes, tokenizer_->token_bytes(id));
  if (skip_special_ && tokenizer_->is_special(id)) return std::string();
  return stream_.push(bytes);
}

}  // namespace aerie
