#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenizer.h"

#include <pcre2.h>

#include <algorithm>

namespace aerie {
namespace {

// White space is spelled out, since PCRE2's \s (with UCP) also holds U+180E, which the tokenizers' engines do not count.
#define AERIE_SPACE "\\t-\\r\\x{85}\\p{Z}"
#define AERIE_S "[" AERIE_SPACE "]"
#define AERIE_NOT_S "[^" AERIE_SPACE "]"
#define AERIE_SYMBOL "[^" AERIE_SPACE "\\p{L}\\p{N}]"

constexpr const char* kGpt2 = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?" AERIE_SYMBOL "+|" AERIE_S "+(?!" AERIE_NOT_S ")|" AERIE_S "+";
// First every digit is cut out, then GPT-2's pattern runs on what lies between. In one pass: digits never join, and the
// white space in front of a digit stands at the end of its stretch, so that the look-ahead takes a digit for the end.
constexpr const char* kSmollm =
    "\\p{N}|'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?" AERIE_SYMBOL "+|" AERIE_S "+(?![^" AERIE_SPACE "\\p{N}])|" AERIE_S "+";
#define AERIE_CL100K(digits)                                                                                                       \
  "(?i:'(?:[sdmt]|ll|ve|re))|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?" AERIE_SYMBOL "+[\\r\\n]*|" AERIE_S "*[\\r\\n]+|" AERIE_S \
  "+(?!" AERIE_NOT_S ")|" AERIE_S "+"
constexpr const char* kLlamaBpe = AERIE_CL100K("\\p{N}{1,3}");
constexpr const char* kQwen2 = AERIE_CL100K("\\p{N}");

constexpr size_t kJitStackStart = size_t{32} << 10;
constexpr size_t kJitStackMax = size_t{1} << 20;
constexpr uint32_t kHeapLimitKib = 64 << 10;

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

}  // namespace

struct PreTokenizer::Code {
  std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>> pattern;
};

PreTokenizer::PreTokenizer(std::unique_ptr<const Code> code) : code_(std::move(code)) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Expected<PreTokenizer> PreTokenizer::create(const std::string& name) {
  const char* source = nullptr;
  if (name == "smollm") source = kSmollm;
  if (name == "gpt2" || name == "gpt-2") source = kGpt2;
  if (name == "llama-bpe") source = kLlamaBpe;
  if (name == "qwen2") source = kQwen2;
  if (source == nullptr) {
    return unsupported("the pre-tokenizer '{}' is not one of smollm, gpt2, llama-bpe, qwen2: text would be cut into the wrong tokens",
                       name);
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->pattern.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (code->pattern == nullptr)
    return internal_error("the pattern of pre-tokenizer '{}' does not compile (PCRE2 error {} at {})", name, error, offset);
  // Where PCRE2 has no JIT for the machine this fails, and matching falls back to its interpreter: slower, same result.
  (void)pcre2_jit_compile(code->pattern.get(), PCRE2_JIT_COMPLETE);
  return PreTokenizer(std::move(code));
}

Status PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  const std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> match(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> context(pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>> stack(
      pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
  if (match == nullptr || context == nullptr) return resource_error("no memory left to match a text of {} bytes", text.size());
  // One match may give back a whole run of white space, a step per character: more steps than a few per byte are a fault.
  const uint64_t steps = 100000 + 8 * static_cast<uint64_t>(text.size());
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  if (stack != nullptr) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());

  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
  size_t at = 0;
  while (at < text.size()) {
    int found = pcre2_match(code_->pattern.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code_->pattern.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match.get(), context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      return resource_error("cutting a text of {} bytes into words went over PCRE2's limits at byte {} (error {}): shorten the text",
                            text.size(), at, found);
    }
    if (ends[1] <= at) return internal_error("the pre-tokenizer matched nothing at byte {}", at);
    if (ends[0] > at) piece(text.substr(at, ends[0] - at));
    piece(text.substr(ends[0], ends[1] - ends[0]));
    at = ends[1];
  }
  if (at < text.size()) piece(text.substr(at));
  return {};
}

}  // namespace aerie
