// What is said of a drafter's training: from the mask, from the trainer's record, from its log.
#include "doctor/training_check.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "support/model_path.h"
#include "text/tokenizer.h"

namespace aerie {
namespace {

const AnswerFrame kFrame = {{90, 91}, {99}};

/// Three turns of a conversation: opening 90 91, an answer of four words, and 99 that ends it. The mask begins `late` tokens late and ends
/// `early` tokens early.
Sample sample_of(int late, int early, std::vector<int32_t> opening = kFrame.opening) {
  Sample out;
  for (int c = 0; c < 10; ++c) {
    Trace& trace = out.conversations.emplace_back().trace;
    for (int turn = 0; turn < 3; ++turn) {
      for (const int32_t t : {1, 2, 3}) trace.tokens.push_back(t + c);
      trace.tokens.insert(trace.tokens.end(), opening.begin(), opening.end());
      const size_t first = trace.tokens.size();
      for (const int32_t t : {10, 11, 12, 13, 99}) trace.tokens.push_back(t);
      trace.tokens.push_back(50);
      trace.mask.resize(trace.tokens.size(), 0);
      for (size_t i = first + static_cast<size_t>(late); i < first + 5 - static_cast<size_t>(early); ++i) trace.mask[i] = 1;
    }
  }
  return out;
}

std::vector<std::string> codes(const std::vector<Finding>& findings) {
  std::vector<std::string> out;
  for (const Finding& f : findings) out.push_back(f.code);
  return out;
}

TEST(Mask, FromTheFirstWordToTheEndIsRight) { EXPECT_TRUE(judge_mask(sample_of(0, 0), kFrame).empty()); }

TEST(Mask, ThatBeginsLateOrEarlyIsNamedWithTheDistance) {
  const auto late = judge_mask(sample_of(1, 0), kFrame);
  ASSERT_EQ(codes(late), (std::vector<std::string>{"mask-begins-late"}));
  EXPECT_NE(late[0].text.find("in 30 of 30 answers the mask begins 1 token into"), std::string::npos) << late[0].text;
  const auto early = judge_mask(sample_of(-2, 0), kFrame);
  ASSERT_EQ(codes(early), (std::vector<std::string>{"mask-begins-early"}));
  EXPECT_NE(early[0].text.find("2 tokens before"), std::string::npos) << early[0].text;
}

TEST(Mask, WithoutTheEndIsNamed) { EXPECT_EQ(codes(judge_mask(sample_of(0, 1), kFrame)), (std::vector<std::string>{"mask-without-end"})); }

TEST(Mask, AnswersThatWereCutOffLackNoEnd) {
  Sample sample = sample_of(0, 0);
  for (Conversation& c : sample.conversations) {
    c.trace.tokens.resize(9);
    c.trace.mask.resize(9);
  }
  EXPECT_TRUE(judge_mask(sample, kFrame).empty());
}

TEST(Mask, AnotherTemplateIsNamed) {
  EXPECT_EQ(codes(judge_mask(sample_of(0, 0, {70, 71, 72}), kFrame)), (std::vector<std::string>{"another-template"}));
}

TEST(Mask, ATraceWithoutOneIsNotJudged) {
  Sample sample = sample_of(1, 0);
  for (Conversation& c : sample.conversations) c.has_mask = false;
  EXPECT_TRUE(judge_mask(sample, kFrame).empty());
}

TEST(Mask, TheTargetsTemplateOpensAnswers) {
  const auto file = GgufFile::open(target_model_path());
  ASSERT_TRUE(file.ok());
  const auto frame = AnswerFrame::of_target(*file);
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  const auto tokenizer = Tokenizer::from_gguf(*file);
  EXPECT_EQ(tokenizer->decode(frame->opening).value(), "<|im_start|>assistant\n");
  EXPECT_NE(std::find(frame->ends.begin(), frame->ends.end(), *tokenizer->find_special("<|im_end|>")), frame->ends.end());
}

Judged reading(double length) {
  Judged out;
  out.length = {length, length - 0.05, length + 0.05};
  return out;
}

TEST(Training, MoreDraftsThanItLearned) {
  const TrainingFacts facts = {std::nullopt, 3};
  EXPECT_EQ(codes(judge_training(facts, reading(1.7), 5, 5)), (std::vector<std::string>{"drafts-beyond-trained-steps"}));
  EXPECT_TRUE(judge_training(facts, reading(1.7), 3, 3).empty());
  EXPECT_TRUE(judge_training(facts, reading(1.7), 5, std::nullopt).empty()) << "nobody said how many are served";
}

TEST(Training, WhatItsDataAllows) {
  const auto judged = [](int64_t conversations, double length, int k = 3) {
    return codes(judge_training({conversations, std::nullopt}, reading(length), k, std::nullopt));
  };
  EXPECT_EQ(judged(50'000, 1.3), (std::vector<std::string>{"less-than-the-data-allows"}));
  EXPECT_EQ(judged(50'000, 1.85), (std::vector<std::string>{"as-the-data-allows"}));
  EXPECT_EQ(judged(2'000, 1.3), (std::vector<std::string>{"as-the-data-allows"}));
  EXPECT_EQ(judged(300'000, 2.2), (std::vector<std::string>{"less-than-the-data-allows"}));
  EXPECT_TRUE(judged(50'000, 1.3, 5).empty()) << "the published figures are of three drafts";
  EXPECT_EQ(judged(10, 1.02), (std::vector<std::string>{"as-the-data-allows"}));
}

TEST(Training, TheRecordIsReadOrPassedOver) {
  const TrainingFacts facts = recorded_training(nlohmann::json::parse(R"({"aerie_training": {"conversations": 1993, "ttt_steps": 3}})"));
  EXPECT_EQ(facts.conversations, 1993);
  EXPECT_EQ(facts.steps, 3);
  for (const nlohmann::json& config : {nlohmann::json(3), nlohmann::json::object(), nlohmann::json{{"aerie_training", 3}},
                                       nlohmann::json{{"aerie_training", {{"conversations", -1}, {"ttt_steps", 1e300}}}}}) {
    EXPECT_FALSE(recorded_training(config).conversations) << config;
    EXPECT_FALSE(recorded_training(config).steps) << config;
  }
}

std::string log_of(const std::vector<std::pair<double, double>>& validations) {  // mean loss before, acceptance length
  std::string out;
  int step = 0;
  for (const auto& [loss, length] : validations) {
    for (int i = 0; i < 4; ++i) out += fmt::format("{{\"step\":{},\"loss\":{}}}\n", ++step, loss);
    out += fmt::format("{{\"step\":{},\"validation\":{{\"walk_acceptance_length\":[1.1,{}]}}}}\n", step, length);
  }
  return out;
}

TEST(TrainingLog, AcceptanceThatFallsWhileTheLossFallsIsOverfitting) {
  const auto judged = judge_training_log(log_of({{5, 1.4}, {4, 1.7}, {3, 1.6}, {2, 1.5}}));
  ASSERT_TRUE(judged.ok());
  ASSERT_EQ(codes(*judged), (std::vector<std::string>{"overfitted"}));
  EXPECT_NE((*judged)[0].text.find("best at step 8 (1.700) and fell to 1.500 at step 16"), std::string::npos) << (*judged)[0].text;
}

TEST(TrainingLog, WhatFallsTogetherIsNoOverfitting) {
  EXPECT_EQ(codes(judge_training_log(log_of({{5, 1.4}, {4, 1.7}, {6, 1.5}})).value()),
            (std::vector<std::string>{"trained-to-the-end"}));  // the run broke down
  EXPECT_EQ(codes(judge_training_log(log_of({{5, 1.4}, {4, 1.7}, {3, 1.69}})).value()), (std::vector<std::string>{"trained-to-the-end"}));
  EXPECT_EQ(codes(judge_training_log(log_of({{5, 1.4}, {4, 1.5}, {3, 1.6}})).value()), (std::vector<std::string>{"still-rising"}));
}

TEST(TrainingLog, DamageIsNamedByItsLine) {
  EXPECT_EQ(judge_training_log("").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(judge_training_log(log_of({{5, 1.4}})).status().code(), StatusCode::kNotFound);
  for (const char* line : {"{\"step\":", "[]", "{\"loss\":1}", "{\"step\":1,\"validation\":{\"walk_acceptance_length\":[]}}",
                           "{\"step\":1,\"validation\":{\"walk_acceptance_length\":[null]}}"}) {
    const auto judged = judge_training_log(log_of({{5, 1.4}, {4, 1.5}}) + line);
    EXPECT_EQ(judged.status().code(), StatusCode::kCorrupt) << line;
    EXPECT_NE(judged.status().message().find("line 11"), std::string::npos) << judged.status().message();
  }
}

/// Cut anywhere, a log is read or refused, never worse.
RC_GTEST_PROP(TrainingLog, AnyBeginningIsReadOrRefused, ()) {
  const std::string whole = log_of({{5, 1.4}, {4, 1.7}, {3, 1.6}});
  const auto cut = *rc::gen::inRange<size_t>(0, whole.size() + 1);
  const auto judged = judge_training_log(whole.substr(0, cut));
  RC_ASSERT(judged.ok() || !judged.status().message().empty());
}

}  // namespace
}  // namespace aerie
