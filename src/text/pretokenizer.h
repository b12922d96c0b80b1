// Cuts text into the pieces inside which BPE may merge. The patterns are the published ones of each tokenizer family.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace aerie {

/// A compiled pre-tokenizer pattern. Immutable, thread-safe, movable.
class PreTokenizer {
 public:
  /// `name` as in `tokenizer.ggml.pre`: smollm, gpt2 (gpt-2), llama-bpe, qwen2; kUnsupported otherwise.
  static Expected<PreTokenizer> create(const std::string& name);

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Calls `piece` with consecutive, non-empty pieces that together are `text`. `text` must be UTF-8 (not checked here:
  /// PCRE2 would check it again at every match, which makes the whole quadratic). Linear time and bounded memory, or kResource.
  Status split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  struct Code;
  explicit PreTokenizer(std::unique_ptr<const Code> code);
  std::unique_ptr<const Code> code_;
};

}  // namespace aerie
