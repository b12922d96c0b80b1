// The streaming detokeniser, UTF-8 repair and stop strings, each against the whole-text answer.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/target_tokenizer.h"
#include "text/utf8.h"

namespace aerie {
namespace {

TEST(Utf8, RepairsMaximalIllFormedParts) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(sanitize_utf8("aé中😀"), "aé中😀");
  EXPECT_EQ(sanitize_utf8("\xC0\x80"), r + r);
  EXPECT_EQ(sanitize_utf8("\xED\xA0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(sanitize_utf8("\xF0\x9F\x98x"), r + "x");           // one part, one mark
  EXPECT_EQ(sanitize_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(sanitize_utf8("\xE2\x82"), r);
  EXPECT_EQ(sanitize_utf8("\xE2\xF0\x9F\x98\x80"), r + "😀");
}

TEST(Utf8, EveryCharacterSurvivesARoundTrip) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = utf8_next(text);
    ASSERT_TRUE(step.valid && step.code == c && step.length == text.size()) << static_cast<uint32_t>(c);
  }
}

TEST(Utf8Stream, HoldsBackOnlyWhatMayStillBecomeACharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xF0\x9F\x98"), "");
  EXPECT_EQ(stream.held_back(), 3u);
  EXPECT_EQ(stream.push("\x80"), "😀");
  EXPECT_EQ(stream.push("\xFF"), kReplacementCharacter);
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.flush(), kReplacementCharacter);
  EXPECT_EQ(stream.flush(), "");
}

RC_GTEST_PROP(Utf8StreamProperty, PiecesEqualTheWhole, ()) {
  const auto byte = rc::gen::oneOf(rc::gen::arbitrary<char>(), rc::gen::elementOf(std::string("\xF0\x9F\x98\x80\xE4\xB8\xAD\xC3\xA9")));
  const auto pieces = *rc::gen::container<std::vector<std::string>>(rc::gen::container<std::string>(byte));
  Utf8Stream stream;
  std::string whole;
  std::string streamed;
  for (const std::string& piece : pieces) {
    whole += piece;
    const std::string out = stream.push(piece);
    RC_ASSERT(is_valid_utf8(out));
    RC_ASSERT(stream.held_back() <= 3u);
    streamed += out;
  }
  streamed += stream.flush();
  RC_ASSERT(streamed == sanitize_utf8(whole));
}

RC_GTEST_PROP(DetokenizerProperty, StreamedEqualsDecodedAtOnce, ()) {
  const Tokenizer& tokenizer = target_tokenizer();
  // Single bytes (ids 17..260 or so) come often: they make and break characters.
  const auto id = rc::gen::oneOf(rc::gen::inRange<int32_t>(0, tokenizer.vocab_size()), rc::gen::inRange<int32_t>(0, 270));
  const auto ids = *rc::gen::container<std::vector<int32_t>>(id);
  const bool skip_special = *rc::gen::arbitrary<bool>();
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string streamed;
  for (const int32_t i : ids) {
    const std::string out = detokenizer.push(i).value();
    RC_ASSERT(is_valid_utf8(out));
    RC_ASSERT(detokenizer.held_back() <= 3u);
    streamed += out;
  }
  streamed += detokenizer.flush();
  RC_ASSERT(streamed == tokenizer.decode(ids, skip_special).value());
}

TEST(Detokenizer, RefusesIdsOutsideTheVocabulary) {
  Detokenizer detokenizer(target_tokenizer());
  EXPECT_EQ(detokenizer.push(-1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(detokenizer.push(49152).status().code(), StatusCode::kInvalidArgument);
}

StopMatcher matcher(std::vector<std::string> stops) { return StopMatcher::create(std::move(stops)).value(); }

TEST(StopMatcher, WithholdsNoMoreThanAPossibleStart) {
  StopMatcher stop = matcher({"</s>", "stop"});
  EXPECT_EQ(stop.push("ab<"), "ab");
  EXPECT_EQ(stop.push("/"), "");
  EXPECT_EQ(stop.push("x"), "</x");
  EXPECT_EQ(stop.push("s"), "");
  EXPECT_EQ(stop.push("sto"), "s");
  EXPECT_EQ(stop.push("pped"), "");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.stopped_by(), "stop");
  EXPECT_EQ(stop.push("more"), "");
  EXPECT_EQ(stop.flush(), "");
}

TEST(StopMatcher, FlushGivesBackAnUnfinishedStart) {
  StopMatcher stop = matcher({"\n\nUser:"});
  EXPECT_EQ(stop.push("hi\n\nUs"), "hi");
  EXPECT_EQ(stop.flush(), "\n\nUs");
  EXPECT_FALSE(stop.stopped());
}

TEST(StopMatcher, RefusesAnEmptyString) { EXPECT_EQ(StopMatcher::create({"a", ""}).status().code(), StatusCode::kInvalidArgument); }

RC_GTEST_PROP(StopMatcherProperty, PiecesEqualASearchOfTheWhole, ()) {
  const auto letters = [](size_t low, size_t high) {
    return rc::gen::mapcat(rc::gen::inRange<size_t>(low, high),
                           [](size_t n) { return rc::gen::container<std::string>(n, rc::gen::elementOf(std::string("aab"))); });
  };
  const auto stops = *rc::gen::container<std::vector<std::string>>(letters(1, 6));
  const auto pieces = *rc::gen::container<std::vector<std::string>>(letters(0, 5));
  std::string whole;
  for (const std::string& piece : pieces) whole += piece;
  // The search: the smallest end; of those the smallest start.
  size_t begin = whole.size();
  std::string by;
  for (size_t end = 1; end <= whole.size() && by.empty(); ++end) {
    for (const std::string& stop : stops) {
      if (stop.size() <= end && whole.compare(end - stop.size(), stop.size(), stop) == 0 && stop.size() > by.size()) by = stop;
    }
    if (!by.empty()) begin = end - by.size();
  }
  StopMatcher stop = matcher(stops);
  std::string streamed;
  size_t seen = 0;
  for (const std::string& piece : pieces) {
    streamed += stop.push(piece);
    seen += piece.size();
    if (stop.stopped()) continue;
    // What is withheld is exactly the longest suffix that starts a stop string.
    const std::string so_far = whole.substr(0, seen);
    size_t longest = 0;
    for (const std::string& s : stops) {
      for (size_t n = 1; n < s.size() && n <= so_far.size(); ++n) {
        if (so_far.compare(so_far.size() - n, n, s, 0, n) == 0) longest = std::max(longest, n);
      }
    }
    RC_ASSERT(streamed.size() + longest == so_far.size());
  }
  streamed += stop.flush();
  RC_ASSERT(streamed == whole.substr(0, begin));
  RC_ASSERT(stop.stopped_by() == by);
}

}  // namespace
}  // namespace aerie
