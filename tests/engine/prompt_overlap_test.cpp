// The prompts that drafters are trained on have nothing of those that they are judged by.
#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/prompts.h"

namespace aerie {
namespace {

constexpr size_t kRun = 13;  // words in a row that two texts hardly share by chance (arXiv 2005.14165, appendix C)

/// Letters and digits in lower case, all else as one space.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

/// Every run of kRun words; a shorter text as a whole.
std::vector<std::string> runs_of(const std::string& text) {
  const std::vector<std::string> words = words_of(text);
  const size_t length = std::min(kRun, words.size());
  std::vector<std::string> runs;
  for (size_t begin = 0; length > 0 && begin + length <= words.size(); ++begin) {
    std::string run;
    for (size_t i = 0; i < length; ++i) run += words[begin + i] + " ";
    if (length < kRun) run += "$";  // matches only the same whole text
    runs.push_back(std::move(run));
  }
  return runs;
}

TEST(TrainingPrompts, ShareNothingWithTheEvaluation) {
  const std::string data = std::string(AERIE_SOURCE_DIR) + "/data/";
  std::unordered_set<std::string> judged;
  for (const char* name : {"mt_bench", "humaneval", "gsm8k"}) {
    const auto prompts = read_prompts(data + "eval/" + name + ".jsonl");
    ASSERT_TRUE(prompts.ok()) << prompts.status().message();
    EXPECT_EQ(prompts->size(), 80u) << name;
    for (const Prompt& prompt : *prompts) {
      for (const ChatMessage& message : prompt.messages) {
        for (std::string& run : runs_of(message.content)) judged.insert(std::move(run));
      }
    }
  }
  ASSERT_GT(judged.size(), 10000u);
  const auto training = read_prompts(data + "train_prompts.jsonl.gz");
  ASSERT_TRUE(training.ok()) << training.status().message();
  ASSERT_GT(training->size(), 40000u);
  for (size_t i = 0; i < training->size(); ++i) {
    for (const ChatMessage& message : (*training)[i].messages) {
      for (const std::string& run : runs_of(message.content)) EXPECT_EQ(judged.count(run), 0u) << "prompt " << i << ": " << run;
    }
  }
}

TEST(TrainingPrompts, OverlapIsSeenWhateverCaseAndPunctuation) {
  EXPECT_EQ(runs_of("Write a poem!"), runs_of("write  a POEM"));
  EXPECT_NE(runs_of("Write a poem"), runs_of("Write a poem now"));
  const std::string text = "one two three four five six seven eight nine ten eleven twelve thirteen";
  EXPECT_EQ(runs_of("So: " + text)[1], runs_of(text)[0]);
}

}  // namespace
}  // namespace aerie
