// Byte-level BPE (GPT-2's scheme, as in the `gpt2` tokenizer model of GGUF files).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "text/prompt.h"

namespace aerie {

/// GGUF's token types (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, tokenizer.ggml.token_type).
enum class TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

/// Everything a tokenizer is built from.
struct TokenizerData {
  std::string pre = "gpt2";          // smollm, gpt2 (also gpt-2), llama-bpe, qwen2
  std::vector<std::string> tokens;   // by id; bytes spelled in GPT-2's printable alphabet
  std::vector<int32_t> token_types;  // by id; empty: all normal
  std::vector<std::string> merges;   // "left right", best first
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  std::optional<int32_t> eot_id;
  std::optional<int32_t> pad_id;
  bool add_bos = false;
};

/// Turns text into token ids and back. Immutable after construction, thread-safe, movable.
///
/// Text that is not UTF-8 is read as if every maximal ill-formed part were U+FFFD (text/utf8.h). A byte the vocabulary has
/// no token for is left out, as in the `tokenizers` library and llama.cpp (SmolLM2 lacks a few that only rare characters use).
/// Tokens of type control or user-defined are found by their spelling ("special spellings" below); only control tokens are
/// special in the sense that they are not text. Errors: kResource when a text is over kMaxTextBytes or exceeds
/// the regular expression's limits.
class Tokenizer {
 public:
  static constexpr size_t kMaxTextBytes = size_t{256} << 20;

  /// Reads the `tokenizer.ggml.*` keys. kUnsupported names a model or pre-tokenizer we do not have; kCorrupt says which
  /// token, merge or id contradicts the rest.
  static Expected<Tokenizer> from_gguf(const GgufFile& file);
  static Expected<Tokenizer> from_data(TokenizerData data);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Ids of plain text: a special spelling is text like any other. Never adds BOS.
  Expected<std::vector<int32_t>> encode(std::string_view text) const;
  /// As encode(), but special spellings become their tokens (leftmost, longest). For trusted text only.
  Expected<std::vector<int32_t>> encode_with_special(std::string_view text) const;
  /// Special spellings are read where the template wrote all of their bytes, and nowhere else. Never adds BOS: a chat template
  /// writes its own.
  Expected<std::vector<int32_t>> encode(const RenderedPrompt& prompt) const;
  /// encode() with BOS in front when the model wants one: for a prompt that no template renders.
  Expected<std::vector<int32_t>> encode_raw_prompt(std::string_view text) const;

  /// The text of `ids`; bytes that do not form UTF-8 become U+FFFD. Control tokens are spelled out, or left out.
  Expected<std::string> decode(const std::vector<int32_t>& ids, bool skip_special = false) const;

  int32_t vocab_size() const;
  /// The bytes a token stands for (maybe a part of a character); a control token gives its spelling. kInvalidArgument for an id
  /// out of range.
  Expected<std::string_view> token_bytes(int32_t id) const;
  /// The control or user-defined token spelled so.
  std::optional<int32_t> find_special(std::string_view spelling) const;
  /// A control token (or the unknown token), which is no part of the text. False for ids out of range.
  bool is_special(int32_t id) const;
  /// True for EOS, EOT and control or user-defined tokens whose spelling is known to end a turn (<|im_end|>, <|eot_id|>, ...).
  bool is_end_of_generation(int32_t id) const;
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  bool adds_bos() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace aerie
