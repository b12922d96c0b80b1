#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <span>

#include "text/detokenizer.h"
#include "text/target_tokenizer.h"
#include "text/utf8.h"

namespace aerie {
namespace {

using Ids = std::vector<int32_t>;
using namespace std::string_literals;

/// 0..3 letters, then merges, a control token and a user-defined one; no other byte is known.
TokenizerData small_data() {
  TokenizerData data;
  data.pre = "gpt2";
  data.tokens = {"a", "b", "c", "Ġ", "ab", "abc", "bc", "<end>", "<tool>", "<end>!", "<", ">"};
  data.token_types = {1, 1, 1, 1, 1, 1, 1, 3, 4, 3, 1, 1};
  data.merges = {"a b", "ab c", "b c"};
  data.bos_id = 7;
  data.eos_id = 7;
  return data;
}

Tokenizer small() { return Tokenizer::from_data(small_data()).value(); }

TEST(Tokenizer, MergesBestRankFirst) {
  EXPECT_EQ(small().encode("abc").value(), Ids{5});
  EXPECT_EQ(small().encode("bc").value(), Ids{6});
  EXPECT_EQ(small().encode("abbc cab").value(), (Ids{4, 6, 3, 2, 4}));
  EXPECT_EQ(small().encode("").value(), Ids{});
}

TEST(Tokenizer, LeavesOutBytesTheVocabularyLacks) { EXPECT_EQ(small().encode("aéb").value(), (Ids{4})); }

TEST(Tokenizer, ReadsSpecialSpellingsOnlyWhenAsked) {
  const Tokenizer tokenizer = small();
  EXPECT_EQ(tokenizer.encode("<end>").value(), (Ids{10, 11}));
  EXPECT_EQ(tokenizer.encode_with_special("a<end>b<tool>").value(), (Ids{0, 7, 1, 8}));
  EXPECT_EQ(tokenizer.encode_with_special("<end>!<end>").value(), (Ids{9, 7})) << "the longest spelling wins";
}

TEST(Tokenizer, ReadsSpecialSpellingsOnlyWhereTheTemplateWroteAllOfThem) {
  const Tokenizer tokenizer = small();
  const auto encode = [&](std::vector<PromptSpan> spans) { return tokenizer.encode(RenderedPrompt{std::move(spans)}).value(); };
  EXPECT_EQ(encode({{"<end>", true}, {"<end>", false}}), (Ids{7, 10, 11}));
  EXPECT_EQ(encode({{"<e", true}, {"nd>", false}}), (Ids{10, 11}));
  EXPECT_EQ(encode({{"<e", true}, {"nd>", true}}), (Ids{7}));
  EXPECT_EQ(encode({{"<end>", true}, {"!", false}}), (Ids{7}));
  EXPECT_EQ(encode({{"a", true}, {"bc", false}}), (Ids{5})) << "merges know no spans";
}

TEST(Tokenizer, AddsBosOnlyToRawPromptsOfModelsThatWantIt) {
  EXPECT_EQ(small().encode_raw_prompt("a").value(), (Ids{0}));
  TokenizerData data = small_data();
  data.add_bos = true;
  EXPECT_EQ(Tokenizer::from_data(data).value().encode_raw_prompt("a").value(), (Ids{7, 0}));
  data.bos_id.reset();
  EXPECT_EQ(Tokenizer::from_data(data).status().code(), StatusCode::kCorrupt);
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = small();
  EXPECT_EQ(tokenizer.vocab_size(), 12);
  EXPECT_EQ(tokenizer.token_bytes(3).value(), " ");
  EXPECT_EQ(tokenizer.token_bytes(7).value(), "<end>");
  EXPECT_TRUE(tokenizer.is_special(7));
  EXPECT_FALSE(tokenizer.is_special(8));
  EXPECT_TRUE(tokenizer.is_end_of_generation(7));
  EXPECT_FALSE(tokenizer.is_end_of_generation(9));
  EXPECT_EQ(tokenizer.find_special("<tool>"), 8);
  EXPECT_EQ(tokenizer.find_special("a"), std::nullopt);
  EXPECT_EQ(tokenizer.decode({0, 7, 8}, true).value(), "a<tool>");
  for (const int32_t id : {-1, 12, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer.token_bytes(id).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(tokenizer.decode({id}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(tokenizer.is_special(id));
    EXPECT_FALSE(tokenizer.is_end_of_generation(id));
  }
}

TEST(Tokenizer, RefusesContradictions) {
  const auto refused = [](auto&& change, StatusCode code) {
    TokenizerData data = small_data();
    change(data);
    const Expected<Tokenizer> made = Tokenizer::from_data(std::move(data));
    EXPECT_EQ(made.status().code(), code) << made.status().message();
  };
  refused([](TokenizerData& d) { d.pre = "deepseek-v3"; }, StatusCode::kUnsupported);
  refused([](TokenizerData& d) { d.tokens.clear(); }, StatusCode::kCorrupt);
  refused([](TokenizerData& d) { d.token_types.pop_back(); }, StatusCode::kCorrupt);
  refused([](TokenizerData& d) { d.eos_id = 12; }, StatusCode::kCorrupt);
  refused([](TokenizerData& d) { d.bos_id = -1; }, StatusCode::kCorrupt);
  refused([](TokenizerData& d) { d.merges.push_back("a x"); }, StatusCode::kCorrupt);
  refused([](TokenizerData& d) { d.merges.push_back("ab"); }, StatusCode::kCorrupt);
  refused([](TokenizerData& d) { d.merges.push_back(" "); }, StatusCode::kCorrupt);
  refused([](TokenizerData& d) { d.merges.push_back(""); }, StatusCode::kCorrupt);
  refused([](TokenizerData& d) { d.merges.push_back("c a"); }, StatusCode::kCorrupt);
  refused([](TokenizerData& d) { d.tokens[4] = "zz"; }, StatusCode::kCorrupt);
  refused([](TokenizerData& d) { d.token_types[4] = 3; }, StatusCode::kCorrupt);  // text would merge into a control token
}

TEST(Tokenizer, EndsAtTheTargetsTurnMarks) {
  const Tokenizer& tokenizer = target_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 49152);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_FALSE(tokenizer.adds_bos());
  int ends = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) ends += tokenizer.is_end_of_generation(id);
  EXPECT_EQ(ends, 2) << "<|endoftext|> and <|im_end|>";
}

TEST(Tokenizer, FinishesOneMebibyteOfOneCharacter) {
  const std::string many[] = {"a", " ", "\n", "0", "=", "é", "中", "\xFF", "a "};
  const std::string few[] = {" ", "a"};
  for (const char* pre : {"smollm", "gpt2", "llama-bpe", "qwen2"}) {
    const Tokenizer& tokenizer = target_tokenizer_as(pre);
    const bool all = std::string(pre) == "smollm" || std::string(pre) == "llama-bpe";
    for (const std::string& unit : all ? std::span<const std::string>(many) : std::span<const std::string>(few)) {
      std::string text;
      while (text.size() < (size_t{1} << 20)) text += unit;
      const Expected<Ids> ids = tokenizer.encode(text);
      ASSERT_TRUE(ids.ok()) << pre << " '" << unit << "': " << ids.status().message();
      EXPECT_EQ(tokenizer.decode(*ids).value(), sanitize_utf8(text));
    }
  }
}

/// Characters whose bytes the target's vocabulary has; it lacks a few control characters and U+40000..U+BFFFF.
rc::Gen<std::string> known_text() {
  const auto known = [](char32_t c) {
    return c != 4 && c != 6 && c != 0x13 && c != 0x14 && c != 0x16 && c != 0x1D && !(c >= 0xD800 && c < 0xE000) &&
           (c < 0x40000 || c >= 0xC0000);
  };
  const auto any = [](char32_t low, char32_t high) { return rc::gen::inRange<char32_t>(low, high); };
  const auto code = rc::gen::suchThat(
      rc::gen::oneOf(any(0, 128), any(0, 0x800), any(0, 0x10000), any(0, 0x110000), rc::gen::elementOf(U" \n\t'sre09<|>"s)), known);
  return rc::gen::map(rc::gen::container<std::vector<char32_t>>(code), [](const std::vector<char32_t>& codes) {
    std::string text;
    for (const char32_t c : codes) append_utf8(text, c);
    return text;
  });
}

RC_GTEST_PROP(TokenizerProperty, DecodingUndoesEncoding, ()) {
  const std::string text = *known_text();
  const char* pre = *rc::gen::elementOf(std::vector<const char*>{"smollm", "gpt2", "llama-bpe", "qwen2"});
  const Tokenizer& tokenizer = target_tokenizer_as(pre);
  RC_ASSERT(tokenizer.decode(tokenizer.encode(text).value()).value() == text);
  RC_ASSERT(tokenizer.decode(tokenizer.encode_with_special(text).value()).value() == text);
}

RC_GTEST_PROP(TokenizerProperty, UserTextNeverBecomesASpecialToken, ()) {
  const auto piece = rc::gen::elementOf(
      std::vector<std::string>{"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|", "im_end", "|>", "<", "user\n", " "});
  const auto pieces = *rc::gen::container<std::vector<std::string>>(piece);
  std::string text;
  for (const std::string& p : pieces) text += p;
  const Tokenizer& tokenizer = target_tokenizer_as(*rc::gen::elementOf(std::vector<const char*>{"smollm", "gpt2", "llama-bpe", "qwen2"}));
  const size_t cut = *rc::gen::inRange<size_t>(0, text.size() + 1);
  const Ids ids = tokenizer.encode(text).value();
  const Ids marked =
      tokenizer
          .encode(RenderedPrompt{
              {{"<|im_start|>user\n", true}, {text.substr(0, cut), false}, {text.substr(cut), false}, {"<|im_end|>\n", true}}})
          .value();
  for (const int32_t id : ids) RC_ASSERT(!tokenizer.is_special(id));
  int special = 0;
  for (const int32_t id : marked) special += tokenizer.is_special(id);
  RC_ASSERT(special == 2);
}

RC_GTEST_PROP(TokenizerProperty, AnyBytesEncodeAsTheirRepair, ()) {
  const auto bytes = *rc::gen::container<std::string>(rc::gen::arbitrary<char>());
  RC_ASSERT(target_tokenizer().encode(bytes).value() == target_tokenizer().encode(sanitize_utf8(bytes)).value());
}

}  // namespace
}  // namespace aerie
