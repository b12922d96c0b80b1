#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/utf8.h"

namespace aerie {
namespace {

/// GPT-2's alphabet: the character that stands for each byte. Printable Latin-1 stands for itself, the rest for U+0100 on.
std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}

/// The bytes that `spelling` stands for; a spelling outside the alphabet stands for itself.
std::string bytes_of_spelling(std::string_view spelling, const std::unordered_map<char32_t, uint8_t>& byte_of) {
  std::string bytes;
  for (std::string_view rest = spelling; !rest.empty();) {
    const Utf8Step step = utf8_next(rest);
    const auto byte = byte_of.find(step.code);
    if (!step.valid || byte == byte_of.end()) return std::string(spelling);
    bytes += static_cast<char>(byte->second);
    rest.remove_prefix(step.length);
  }
  return bytes;
}

constexpr std::string_view kEndSpellings[] = {
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>",    "<|eom_id|>", "<|end_of_text|>",       "<|end|>",
    "<|eot|>",    "<end_of_turn>", "<|endofturn|>", "<|return|>", "<|END_OF_TURN_TOKEN|>", "<|end_of_turn|>",
    "</s>",       "<eos>",         "<EOT>",         "[EOS]",      "<|end_of_sentence|>",   "<｜end▁of▁sentence｜>",
};

struct Special {
  std::string spelling;
  int32_t id;
};

}  // namespace

struct Tokenizer::Impl {
  PreTokenizer pre;
  BpeMerges merges;
  std::vector<std::string> bytes;     // by id
  std::vector<bool> control;          // by id
  std::vector<bool> ends;             // by id: end of generation
  std::array<int32_t, 256> byte_ids;  // -1: the vocabulary has no token for this byte
  // Words that are one token whatever the merges say; filled only for tokenizers that look there first.
  std::unordered_map<std::string, int32_t> whole_words;
  std::array<std::vector<Special>, 256> specials;  // by first byte, longest first
  std::optional<int32_t> bos_id, eos_id;
  bool add_bos;

  explicit Impl(PreTokenizer pre_tokenizer) : pre(std::move(pre_tokenizer)) { byte_ids.fill(-1); }

  Status encode_plain(std::string_view utf8, std::vector<int32_t>& ids) const;
  Status encode_around_specials(std::string_view utf8, const std::vector<std::pair<size_t, size_t>>& ranges,
                                std::vector<int32_t>& ids) const;
  const Special* special_at(std::string_view text) const;
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Expected<Tokenizer> Tokenizer::from_gguf(const GgufFile& file) {
  const auto in_file = [&](const Status& status) { return status.with_context(file.path()); };
  const Expected<std::string> model = file.get_string("tokenizer.ggml.model");
  if (!model.ok()) return model.status();
  if (*model != "gpt2") {
    return unsupported("{}: tokenizer.ggml.model is '{}', expected 'gpt2' (byte-level BPE): use a model with such a tokenizer", file.path(),
                       *model);
  }
  TokenizerData data;
  AERIE_ASSIGN(data.pre, file.get_string("tokenizer.ggml.pre"));
  AERIE_ASSIGN(data.tokens, file.get_strings("tokenizer.ggml.tokens"));
  AERIE_ASSIGN(data.merges, file.get_strings("tokenizer.ggml.merges"));
  if (file.has("tokenizer.ggml.token_type")) {
    AERIE_ASSIGN(data.token_types, file.get_i32s("tokenizer.ggml.token_type"));
  }
  const auto read_id = [&](const char* key, std::optional<int32_t>& id) -> Status {
    if (!file.has(key)) return {};
    AERIE_ASSIGN(const uint32_t value, file.get_u32(key));
    if (value >= data.tokens.size()) return in_file(corrupt("{} is {}, but there are {} tokens", key, value, data.tokens.size()));
    id = static_cast<int32_t>(value);
    return {};
  };
  AERIE_TRY(read_id("tokenizer.ggml.bos_token_id", data.bos_id));
  AERIE_TRY(read_id("tokenizer.ggml.eos_token_id", data.eos_id));
  AERIE_TRY(read_id("tokenizer.ggml.eot_token_id", data.eot_id));
  AERIE_TRY(read_id("tokenizer.ggml.padding_token_id", data.pad_id));
  data.add_bos = data.pre == "llama-bpe";  // what these models were trained with; files made before the key existed lack it
  if (file.has("tokenizer.ggml.add_bos_token")) {
    AERIE_ASSIGN(data.add_bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  }
  Expected<Tokenizer> tokenizer = from_data(std::move(data));
  if (!tokenizer.ok()) return in_file(tokenizer.status());
  return tokenizer;
}

Expected<Tokenizer> Tokenizer::from_data(TokenizerData data) {
  const size_t count = data.tokens.size();
  if (count == 0 || count > INT32_MAX) return corrupt("the vocabulary has {} tokens", count);
  if (!data.token_types.empty() && data.token_types.size() != count) {
    return corrupt("there are {} token types for {} tokens", data.token_types.size(), count);
  }
  for (const auto& [name, id] : {std::pair("BOS", data.bos_id), {"EOS", data.eos_id}, {"EOT", data.eot_id}, {"padding", data.pad_id}}) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= count)) return corrupt("the {} id is {}, but there are {} tokens", name, *id, count);
  }
  AERIE_ASSIGN(PreTokenizer pre, PreTokenizer::create(data.pre));
  auto impl = std::make_unique<Impl>(std::move(pre));
  impl->bos_id = data.bos_id;
  impl->eos_id = data.eos_id;
  impl->add_bos = data.add_bos;
  if (impl->add_bos && !impl->bos_id) return corrupt("the tokenizer asks for a BOS token in front but names none");

  const std::array<char32_t, 256> alphabet = byte_alphabet();
  std::unordered_map<char32_t, uint8_t> byte_of;
  for (size_t byte = 0; byte < 256; ++byte) byte_of[alphabet[byte]] = static_cast<uint8_t>(byte);
  const std::unordered_set<std::string_view> end_spellings(std::begin(kEndSpellings), std::end(kEndSpellings));
  const bool words_before_merges = data.pre == "llama-bpe";

  std::unordered_map<std::string_view, int32_t> id_of;  // what merges may speak of: no control token is ever made from text
  id_of.reserve(count);
  impl->bytes.resize(count);
  impl->control.resize(count);
  impl->ends.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& spelling = data.tokens[i];
    const auto type = data.token_types.empty() ? TokenType::kNormal : static_cast<TokenType>(data.token_types[i]);
    const bool control = type == TokenType::kControl || type == TokenType::kUnknown;
    const bool by_spelling = type == TokenType::kControl || type == TokenType::kUserDefined;
    impl->control[i] = control;
    impl->ends[i] = (by_spelling && end_spellings.count(spelling) != 0) || id == data.eos_id || id == data.eot_id;
    if (by_spelling && !spelling.empty()) impl->specials[static_cast<uint8_t>(spelling[0])].push_back({spelling, id});
    if (control || by_spelling) {
      impl->bytes[i] = spelling;
    } else {
      impl->bytes[i] = bytes_of_spelling(spelling, byte_of);
      if (impl->bytes[i].size() == 1) impl->byte_ids[static_cast<uint8_t>(impl->bytes[i][0])] = id;
      if (words_before_merges) impl->whole_words.emplace(impl->bytes[i], id);
    }
    if (!control) id_of.emplace(spelling, id);
  }
  for (std::vector<Special>& group : impl->specials) {
    std::stable_sort(group.begin(), group.end(), [](const Special& a, const Special& b) { return a.spelling.size() > b.spelling.size(); });
  }

  for (size_t i = 0; i < data.merges.size(); ++i) {
    const std::string_view merge = data.merges[i];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return corrupt("merge {} is '{}', expected two tokens and a space between them", i, merge);
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    const std::string joined = std::string(left) + std::string(right);
    for (const std::string_view part : {left, right, std::string_view(joined)}) {
      if (id_of.count(part) == 0)
        return corrupt("merge {} ('{}') speaks of '{}', which is no text token of the vocabulary", i, merge, part);
    }
    impl->merges.add(id_of[left], id_of[right], id_of[joined]);
  }
  return Tokenizer(std::move(impl));
}

Status Tokenizer::Impl::encode_plain(std::string_view utf8, std::vector<int32_t>& ids) const {
  std::vector<int32_t> symbols;
  return pre.split(utf8, [&](std::string_view piece) {
    if (!whole_words.empty()) {
      if (const auto word = whole_words.find(std::string(piece)); word != whole_words.end()) {
        ids.push_back(word->second);
        return;
      }
    }
    symbols.clear();
    for (const char c : piece) {
      const int32_t id = byte_ids[static_cast<uint8_t>(c)];
      if (id >= 0) symbols.push_back(id);
    }
    merges.merge(symbols);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  });
}

const Special* Tokenizer::Impl::special_at(std::string_view text) const {
  for (const Special& special : specials[static_cast<uint8_t>(text[0])]) {
    if (text.substr(0, special.spelling.size()) == special.spelling) return &special;
  }
  return nullptr;
}

/// `ranges`: disjoint [begin, end) in order, the only places where a special spelling counts.
Status Tokenizer::Impl::encode_around_specials(std::string_view utf8, const std::vector<std::pair<size_t, size_t>>& ranges,
                                               std::vector<int32_t>& ids) const {
  size_t plain_from = 0;
  for (const auto& [begin, end] : ranges) {
    for (size_t at = begin; at < end;) {
      const Special* special = special_at(utf8.substr(at, end - at));
      if (special == nullptr) {
        ++at;
        continue;
      }
      AERIE_TRY(encode_plain(utf8.substr(plain_from, at - plain_from), ids));
      ids.push_back(special->id);
      at += special->spelling.size();
      plain_from = at;
    }
  }
  return encode_plain(utf8.substr(plain_from), ids);
}

namespace {

Status check_size(size_t bytes) {
  if (bytes <= Tokenizer::kMaxTextBytes) return {};
  return resource_error("the text has {} bytes, more than the {} a tokenizer call takes: cut it into parts", bytes,
                        Tokenizer::kMaxTextBytes);
}

}  // namespace

Expected<std::vector<int32_t>> Tokenizer::encode(std::string_view text) const {
  AERIE_TRY(check_size(text.size()));
  std::vector<int32_t> ids;
  AERIE_TRY(impl_->encode_plain(is_valid_utf8(text) ? text : std::string_view(sanitize_utf8(text)), ids));
  return ids;
}

Expected<std::vector<int32_t>> Tokenizer::encode_with_special(std::string_view text) const {
  return encode(RenderedPrompt{{PromptSpan{std::string(text), true}}});
}

Expected<std::vector<int32_t>> Tokenizer::encode(const RenderedPrompt& prompt) const {
  std::string text;
  std::vector<std::pair<size_t, size_t>> ranges;
  for (const PromptSpan& span : prompt.spans) {
    const size_t begin = text.size();
    text += sanitize_utf8(span.text);
    if (!span.from_template) continue;
    if (!ranges.empty() && ranges.back().second == begin) {
      ranges.back().second = text.size();
    } else {
      ranges.emplace_back(begin, text.size());
    }
  }
  AERIE_TRY(check_size(text.size()));
  std::vector<int32_t> ids;
  AERIE_TRY(impl_->encode_around_specials(text, ranges, ids));
  return ids;
}

Expected<std::vector<int32_t>> Tokenizer::encode_raw_prompt(std::string_view text) const {
  AERIE_ASSIGN(std::vector<int32_t> ids, encode(text));
  if (impl_->add_bos) ids.insert(ids.begin(), *impl_->bos_id);
  return ids;
}

Expected<std::string> Tokenizer::decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    AERIE_ASSIGN(const std::string_view piece, token_bytes(id));
    if (!skip_special || !is_special(id)) bytes += piece;
  }
  return sanitize_utf8(bytes);
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->bytes.size()); }

Expected<std::string_view> Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return invalid_argument("token id {} is outside the vocabulary of {} tokens", id, vocab_size());
  return std::string_view(impl_->bytes[id]);
}

std::optional<int32_t> Tokenizer::find_special(std::string_view spelling) const {
  if (spelling.empty()) return std::nullopt;
  for (const Special& special : impl_->specials[static_cast<uint8_t>(spelling[0])]) {
    if (special.spelling == spelling) return special.id;
  }
  return std::nullopt;
}

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < vocab_size() && impl_->control[id]; }
bool Tokenizer::is_end_of_generation(int32_t id) const { return id >= 0 && id < vocab_size() && impl_->ends[id]; }
std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos_id; }
bool Tokenizer::adds_bos() const { return impl_->add_bos; }

}  // namespace aerie
