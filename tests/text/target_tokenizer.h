// The target model's vocabulary, read once, under any of the pre-tokenizers.
#pragma once

#include <map>
#include <string>

#include "formats/gguf.h"
#include "support/model_path.h"
#include "text/tokenizer.h"

namespace aerie {

inline const GgufFile& target_file() {
  static const GgufFile file = GgufFile::open(target_model_path()).value();
  return file;
}

inline const Tokenizer& target_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::from_gguf(target_file()).value();
  return tokenizer;
}

/// The target's tokens and merges under another family's rules.
inline const Tokenizer& target_tokenizer_as(const std::string& pre) {
  static std::map<std::string, Tokenizer> made;
  const auto found = made.find(pre);
  if (found != made.end()) return found->second;
  TokenizerData data;
  data.pre = pre;
  data.tokens = target_file().get_strings("tokenizer.ggml.tokens").value();
  data.token_types = target_file().get_i32s("tokenizer.ggml.token_type").value();
  data.merges = target_file().get_strings("tokenizer.ggml.merges").value();
  return made.emplace(pre, Tokenizer::from_data(std::move(data)).value()).first->second;
}

}  // namespace aerie
