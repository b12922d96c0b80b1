// What is said of training data before it is trained on.
#include "doctor/data_check.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace aerie {
namespace {

/// A prompt of three tokens and this answer; `salt` makes it differ from others.
Conversation conversation(const std::vector<int32_t>& answer, int32_t salt) {
  Conversation out;
  out.trace.tokens = {salt, 1, 2};
  out.trace.tokens.insert(out.trace.tokens.end(), answer.begin(), answer.end());
  out.trace.mask.assign(out.trace.tokens.size(), 1);
  std::fill_n(out.trace.mask.begin(), 3, uint8_t{0});
  return out;
}

std::vector<int32_t> counting(int32_t from, int count) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(from + i);
  return out;
}

std::vector<std::string> codes(const DataCheck& check) {
  std::vector<std::string> out;
  for (const Finding& f : check.findings()) out.push_back(f.code);
  return out;
}

using Codes = std::vector<std::string>;

TEST(DataCheck, SoundDataHasNoFindings) {
  DataCheck check(nullptr, 1000);
  for (int32_t i = 0; i < 20; ++i) check.add(conversation(counting(10 * i, 20), i));
  EXPECT_EQ(codes(check), Codes());
  EXPECT_EQ(check.section().data["answer_tokens"], 400);
  EXPECT_EQ(check.section().data["repeated_share"], 0.0);
}

TEST(DataCheck, CopiesAreCounted) {
  DataCheck check;
  for (int32_t i = 0; i < 20; ++i) check.add(conversation(counting(0, 20), i % 18));
  EXPECT_EQ(codes(check), (Codes{"data-duplicates"}));
  EXPECT_NE(check.findings()[0].text.find("2 of 20"), std::string::npos) << check.findings()[0].text;
}

TEST(DataCheck, AnswersThatLoopAreNamed) {
  DataCheck check;
  std::vector<int32_t> loop;
  for (int i = 0; i < 40; ++i) loop.push_back(i % 10);
  for (int32_t i = 0; i < 20; ++i) check.add(conversation(loop, i));
  // 33 pieces of 8, of which the ten that begin in the first round are new.
  EXPECT_EQ(codes(check), (Codes{"data-repeats-itself"}));
  EXPECT_NEAR(check.section().data["repeated_share"].get<double>(), 23.0 / 33, 1e-12);
}

TEST(DataCheck, MasksThatMarkNothingOrEverything) {
  DataCheck nothing, everything, missing, one_token;
  for (int32_t i = 0; i < 20; ++i) {
    Conversation c = conversation(counting(0, 20), i);
    std::fill(c.trace.mask.begin(), c.trace.mask.end(), uint8_t{0});
    nothing.add(c);
    std::fill(c.trace.mask.begin(), c.trace.mask.end(), uint8_t{1});
    everything.add(c);
    c.has_mask = false;
    missing.add(c);
    one_token.add(i == 0 ? conversation({5}, i) : conversation(counting(0, 20), i));
  }
  EXPECT_EQ(codes(nothing), (Codes{"mask-is-empty"}));
  EXPECT_EQ(codes(everything), (Codes{"mask-is-all-ones"}));
  EXPECT_EQ(codes(missing), (Codes{"trace-without-mask"}));
  EXPECT_EQ(codes(one_token), (Codes{"conversations-without-answer"}));
}

/// Neither is said twice: everything marked is no template's fault.
TEST(DataCheck, AMaskOfAllOnesIsNoOtherTemplate) {
  const AnswerFrame frame = {{1, 2}, {99}};
  DataCheck check(&frame);
  for (int32_t i = 0; i < 20; ++i) {
    Conversation c = conversation({5, 6, 7, 99}, i);
    std::fill(c.trace.mask.begin(), c.trace.mask.end(), uint8_t{1});
    check.add(c);
  }
  EXPECT_EQ(codes(check), (Codes{"mask-is-all-ones"}));
}

TEST(DataCheck, DamageIsAnErrorFromOnePercentOn) {
  DataCheck few, many;
  for (int32_t i = 0; i < 200; ++i) {
    few.add(conversation(counting(0, 20), i));
    many.add(conversation(counting(0, 20), i));
  }
  few.add_unreadable(corrupt("hs_3: not finite"));
  for (int i = 0; i < 3; ++i) many.add_unreadable(corrupt("hs_3: not finite"));
  ASSERT_EQ(codes(few), (Codes{"data-unreadable"}));
  EXPECT_EQ(few.findings()[0].severity, Severity::kWarning);
  EXPECT_EQ(many.findings()[0].severity, Severity::kError);
  EXPECT_NE(many.findings()[0].text.find("3 of 203"), std::string::npos) << many.findings()[0].text;
}

TEST(DataCheck, TokensOfAnotherTarget) {
  DataCheck check(nullptr, 15);
  check.add(conversation(counting(0, 20), 0));
  EXPECT_EQ(codes(check), (Codes{"tokens-of-another-target"}));
}

TEST(DataCheck, TheFrameIsJudgedAsInTheDoctor) {
  const AnswerFrame frame = {{1, 2}, {99}};
  DataCheck right(&frame), late(&frame);
  for (int32_t i = 0; i < 20; ++i) {
    Conversation c = conversation({5, 6, 7, 99}, i);
    right.add(c);
    c.trace.mask[3] = 0;
    late.add(c);
  }
  EXPECT_EQ(codes(right), Codes());
  EXPECT_EQ(codes(late), (Codes{"mask-begins-late"}));
}

/// The vocabulary that covers a share does, and one token fewer does not.
RC_GTEST_PROP(DataCheck, VocabularyAndCoverageAgree, ()) {
  DataCheck check;
  const auto answers = *rc::gen::container<std::vector<std::vector<int32_t>>>(
      rc::gen::nonEmpty(rc::gen::container<std::vector<int32_t>>(rc::gen::inRange<int32_t>(0, 30))));
  RC_PRE(!answers.empty());
  for (size_t i = 0; i < answers.size(); ++i) check.add(conversation(answers[i], static_cast<int32_t>(i)));
  const double share = *rc::gen::element(0.1, 0.5, 0.9, 0.95, 0.99, 1.0);
  const size_t size = check.vocab_for(share);
  RC_ASSERT(size >= 1u);
  RC_ASSERT(check.coverage(size) >= share - 1e-12);
  RC_ASSERT(check.coverage(size - 1) < share);
  RC_ASSERT(check.coverage(30) > 1 - 1e-12);
}

}  // namespace
}  // namespace aerie
