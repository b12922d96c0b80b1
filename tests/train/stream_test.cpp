// Answers that are trained on as the target gives them: what is trained on is what capture would have stored, however it is interrupted.
#include "train/stream.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/random.h"
#include "support/model_path.h"
#include "support/temp_folder.h"
#include "train/states_check.h"
#include "train/trainer.h"

namespace aerie::train {
namespace {

/// Prompts, and a folder of answers to the first three of them, with the real target: the tiny one of the other tests cannot answer.
class Stream : public testing::Test {
 protected:
  static constexpr int kPrompts = 9, kJudged = 3;

  Stream() {
    std::string lines;
    for (int i = 0; i < kPrompts; ++i) lines += nlohmann::json{{"prompt", "Count from " + std::to_string(i) + " on."}}.dump() + "\n";
    prompts_ = folder_.write("prompts.jsonl", lines);
    judged_ = capture_first(kJudged, "judged");
    feed_.tokens_per_step = 100;
    feed_.row_length = 256;
    feed_.ttt_steps = 2;
    feed_.draws.seed = 3;
    for (int32_t id = 0; id < 49152; ++id) to_draft_.push_back(id);
    feed_.to_draft = to_draft_;
  }

  std::string capture_first(int count, const std::string& name, double temperature = 0) {
    RuntimeOptions load;
    load.target = target_model_path();
    const auto runtime = Runtime::load(load);
    EXPECT_TRUE(runtime.ok()) << runtime.status().message();
    CaptureOptions options;
    options.out = folder_ / name;
    options.limit = count;
    options.max_new_tokens = 12;
    options.max_length = 128;
    options.temperatures = {temperature};
    const auto done = capture(**runtime, *read_prompts(prompts_), options, {});
    EXPECT_TRUE(done.ok()) << done.status().message();
    return options.out;
  }

  static Dataset judge(const std::string& folder) { return Dataset::open({folder}, {.max_tokens = 256, .judge_only = true}).value(); }
  StreamOptions options(int64_t buffer) const { return {target_model_path(), prompts_, buffer, 2, nullptr}; }

  static std::vector<LoadedStep> rest_of(StreamFeed& feed) {
    std::vector<LoadedStep> out;
    for (;;) {
      auto step = feed.next();
      EXPECT_TRUE(step.ok()) << step.status().message();
      if (!step.ok() || step->end) return out;
      out.push_back(std::move(*step));
    }
  }

  TempFolder folder_;
  std::string prompts_, judged_;
  FeedOptions feed_;
  std::vector<int32_t> to_draft_;
};

void expect_same(const std::vector<LoadedStep>& found, const std::vector<LoadedStep>& expected, size_t skipped) {
  ASSERT_EQ(found.size() + skipped, expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].batches, expected[i + skipped].batches) << i;
    EXPECT_EQ(found[i].next.epoch, expected[i + skipped].next.epoch);
    EXPECT_EQ(found[i].next.in_epoch, expected[i + skipped].next.in_epoch);
  }
}

TEST_F(Stream, GivesWhatCaptureWouldHaveStored) {
  for (const double temperature : {0.0, 1.0}) {
    SCOPED_TRACE(temperature);
    const std::string name = temperature == 0 ? "greedy" : "drawn";
    const Dataset judged = judge(capture_first(kJudged, name + "-judged", temperature));
    feed_.epochs = 2;
    const auto feed = StreamFeed::open(judged, feed_, options(1 << 20));
    ASSERT_TRUE(feed.ok()) << feed.status().message();
    const std::vector<LoadedStep> steps = rest_of(**feed);
    ASSERT_GE(steps.size(), 4u);
    EXPECT_EQ((*feed)->progress(0, steps.back().next), 1);

    // The same, of a folder with answers to all prompts: in the feed's order, without those that the run is judged by.
    const auto all = TraceReader::open(capture_first(kPrompts, name, temperature));
    std::vector<LoadedStep> expected;
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      std::vector<Trace> documents;
      std::vector<uint32_t> numbers;
      const std::vector<uint32_t> order = shuffled(kPrompts, random_stream({feed_.draws.seed, epoch}));
      size_t tokens = 0;
      for (size_t i = 0; i < order.size(); ++i) {
        if (order[i] >= kJudged) {
          documents.push_back(all->read(static_cast<int>(order[i])).value());
          numbers.push_back(order[i]);
          tokens += documents.back().length();
        }
        const bool last = i + 1 == order.size();
        if (documents.empty() || (tokens < 100 && !last)) continue;
        LoadedStep step;
        step.batches = lay_out_step(std::move(documents), numbers, feed_.row_length, feed_.ttt_steps, to_draft_, {});
        step.next = last ? Place{static_cast<int64_t>(epoch) + 1, 0} : Place{static_cast<int64_t>(epoch), static_cast<int64_t>(i) + 1};
        expected.push_back(std::move(step));
        documents.clear();
        numbers.clear();
        tokens = 0;
      }
    }
    expect_same(steps, expected, 0);
  }
}

TEST_F(Stream, GoesOnAnywhereWhateverTheBuffer) {
  const Dataset judged = judge(judged_);
  feed_.draws.noise = 0.1;
  const auto feed = StreamFeed::open(judged, feed_, options(1));
  ASSERT_TRUE(feed.ok()) << feed.status().message();
  const std::vector<LoadedStep> whole = rest_of(**feed);
  ASSERT_GE(whole.size(), 2u);
  for (size_t done = 1; done < whole.size(); ++done) {
    const auto later = StreamFeed::open(judged, feed_, options(int64_t{1} << 30));
    ASSERT_TRUE(later.ok());
    (*later)->go_to(whole[done - 1].next);
    expect_same(rest_of(**later), whole, done);
  }
}

TEST_F(Stream, AnInterruptedRunEndsAsTheWholeOneBitForBit) {
  TrainOptions o;
  o.data = {judged_};
  o.prompts = prompts_;
  o.target = target_model_path();
  o.out = folder_ / "whole";
  o.draft_vocab = 512;
  o.ttt_steps = 2;
  o.tokens_per_step = 150;  // three steps an epoch
  o.epochs = 2;
  o.threads = 2;
  const std::atomic<bool> go_on{false}, stop{true};
  Status status = train(o, go_on);
  ASSERT_TRUE(status.ok()) << status.message();
  const std::string expected = read_bytes(o.out + "/model.safetensors");
  o.out = folder_ / "parts";
  o.resume = true;
  int parts = 0;
  for (status = cancelled(""); status.code() == StatusCode::kCancelled; ++parts) {
    status = train(o, parts < 3 ? stop : go_on);  // stopped from the beginning, a run ends after a step
    ASSERT_TRUE(status.ok() || status.code() == StatusCode::kCancelled) << status.message();
  }
  EXPECT_EQ(parts, 4);
  EXPECT_EQ(read_bytes(o.out + "/model.safetensors"), expected);
}

TEST_F(Stream, SaysWhatItCannotAnswerFor) {
  TrainOptions o;
  o.data = {judged_};
  o.prompts = folder_ / "none.jsonl";
  o.target = target_model_path();
  o.out = folder_ / "out";
  const std::atomic<bool> go_on{false};
  EXPECT_NE(train(o, go_on).message().find("none.jsonl"), std::string::npos);
  const std::string manifest = read_bytes(judged_ + "/manifest.json");
  nlohmann::ordered_json changed = nlohmann::ordered_json::parse(manifest);
  changed["generation"]["repetition_penalty"] = "1.1";
  folder_.write("judged/manifest.json", changed.dump());
  o.prompts = prompts_;
  const Status unknown = train(o, go_on);
  EXPECT_NE(unknown.message().find("generated with settings that this version does not know"), std::string::npos) << unknown.message();
  EXPECT_FALSE(std::filesystem::exists(o.out));
}

}  // namespace
}  // namespace aerie::train
