// Whole runs on a tiny target: what they leave behind, how they stop and go on.
#include "train/trainer.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "eagle3/checkpoint.h"
#include "eagle3/spec_fields.h"
#include "formats/safetensors.h"
#include "tiny_target.h"
#include "train/fused.h"
#include "train/optimizer.h"
#include "train/validation.h"

namespace aerie::train {
namespace {

const std::atomic<bool> kGoOn{false};

TrainOptions tiny_options(const TinyTarget& target, const std::string& traces, const std::string& out) {
  TrainOptions o;
  o.data = {traces};
  o.out = target.folder() / out;
  o.target = target.path();
  o.draft_vocab = kTinyVocab;
  o.ttt_steps = 3;
  o.tokens_per_step = 100;
  o.row_length = 64;
  o.learning_rate = 3e-3;
  o.warmup_steps = 5;
  o.epochs = 1000;
  o.max_steps = 12;
  o.holdout = 2;
  o.threads = 1;
  o.precision = MatmulPrecision::kFloat32;
  return o;
}

/// What is served from a folder, by canonical name.
DraftValues saved_values(const std::string& folder) {
  const auto checkpoint = open_drafter(folder);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  DraftValues values;
  if (!checkpoint.ok()) return values;
  for (const auto& [name, view] : checkpoint->tensors) values[name] = to_float(view).value();
  return values;
}

std::vector<nlohmann::json> metrics(const std::string& folder) {
  std::ifstream file(folder + "/metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Train, EveryRecipeLearns) {
  const TinyTarget target;
  const std::string traces = target.write_traces("traces", target.conversations(8));
  for (const auto& [name, change] :
       {std::pair<std::string, void (*)(TrainOptions&)>{"muon", [](TrainOptions& o) { o.optimizer = Optimizer::kMuon; }},
        {"lk", [](TrainOptions& o) { o.loss = Loss::kLkHybrid; }},
        {"sharp", [](TrainOptions& o) { o.teacher_temperature = 0.5; }},
        {"drawn",
         [](TrainOptions& o) {
           o.noise = 0.1;
           o.anchors = 4;
         }},
        {"bf16", [](TrainOptions& o) { o.precision = MatmulPrecision::kBf16; }}}) {
    TrainOptions o = tiny_options(target, traces, name);
    o.holdout = 0;
    o.max_steps = 150;
    change(o);
    ASSERT_TRUE(train(o, kGoOn).ok()) << name;
    const auto lines = metrics(o.out);
    EXPECT_LT(lines.back()["loss"].get<double>(), 0.4 * lines.front()["loss"].get<double>()) << name;
    TrainOptions other = o;  // what was chosen is part of the run
    other.resume = true;
    other.loss = o.loss == Loss::kKl ? Loss::kLkHybrid : Loss::kKl;
    EXPECT_EQ(train(other, kGoOn).code(), StatusCode::kInvalidArgument) << name;
  }
}

TEST(Train, ABetterDrafterLeavesTheStateInPlace) {
  const TinyTarget target;
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(8)), "out");
  o.eval_every = o.max_steps;  // the first validation, whose drafter is the best so far, is the last
  const std::atomic<bool> stop{true};
  ASSERT_EQ(train(o, stop).code(), StatusCode::kCancelled);
  o.resume = true;
  ASSERT_TRUE(train(o, kGoOn).ok());
  // Had that drafter's files swept the state away, there would have been none to keep as the one before.
  EXPECT_TRUE(std::filesystem::exists(o.out + "/training_state.safetensors.previous"));
}

// Both optimisers, resuming and validation, as on a device whose memory the row operations cannot read.
TEST(Train, InLibTorchsOwnOperationsItIsTheSameRun) {
  const TinyTarget target;
  const std::string traces = target.write_traces("traces", target.conversations(12));
  for (const Optimizer optimizer : {Optimizer::kAdamW, Optimizer::kMuon}) {
    TrainOptions o = tiny_options(target, traces, optimizer == Optimizer::kMuon ? "muon" : "adamw");
    o.optimizer = optimizer;
    ASSERT_TRUE(train(o, kGoOn).ok());
    const DraftValues expected = saved_values(o.out);
    const WithoutRowOps other_device;
    o.out += "-plain";
    ASSERT_TRUE(train(o, kGoOn).ok());
    const DraftValues values = saved_values(o.out);
    for (const auto& [name, value] : expected) {
      double largest = 0, off = 0;
      for (size_t i = 0; i < value.size(); ++i) {
        largest = std::max(largest, std::fabs(static_cast<double>(value[i])));
        off = std::max(off, std::fabs(static_cast<double>(value[i]) - static_cast<double>(values.at(name)[i])));
      }
      EXPECT_LT(off, 0.02 * largest) << name;  // saved as bf16, after twelve steps
    }
  }
}

TEST(Train, ADeviceThatIsNotThereIsRefused) {
  const TinyTarget target;
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(8)), "out");
  for (const auto& [device, code] : {std::pair{"gpu", StatusCode::kInvalidArgument},
                                     {"cuda:", StatusCode::kInvalidArgument},
                                     {"cuda:-1", StatusCode::kInvalidArgument},
                                     {"cuda:1x", StatusCode::kInvalidArgument},
                                     {"cuda:127", StatusCode::kUnsupported}}) {
    o.device = device;
    const Status status = train(o, kGoOn);
    EXPECT_EQ(status.code(), code) << device << ": " << status.message();
    EXPECT_FALSE(std::filesystem::exists(o.out));
  }
}

TEST(Train, ADrafterThatIsThereIsNotReplaced) {
  const TinyTarget target;
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(8)), "out");
  ASSERT_TRUE(train(o, kGoOn).ok());
  const std::string before = read_bytes(o.out + "/model.safetensors");
  std::filesystem::remove(o.out + "/training_state.safetensors");
  std::filesystem::remove(o.out + "/training_state.safetensors.previous");
  o.seed = 2;
  for (const bool resume : {false, true}) {
    o.resume = resume;
    EXPECT_EQ(train(o, kGoOn).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(read_bytes(o.out + "/model.safetensors"), before);
}

TEST(Train, WhatIsJudgedIsWhatIsSaved) {
  const TinyTarget target;
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(30)), "out");
  o.holdout = 10;
  o.max_steps = 60;
  o.eval_every = 60;
  ASSERT_TRUE(train(o, kGoOn).ok());
  const auto checkpoint = open_drafter(o.out);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto data = Dataset::open(o.data, {.max_tokens = 64, .holdout = 10});
  ThreadPool pool(1);
  const auto judged = validate(checkpoint->spec, saved_values(o.out), target.embedding(), kTinyBlocks, *data, data->held_out(), 3, pool);
  ASSERT_TRUE(judged.ok()) << judged.status().message();
  EXPECT_EQ(metrics(o.out).back()["validation"]["walk_acceptance_length"].get<std::vector<double>>(), judged->acceptance_lengths);
  for (const auto& [name, values] : saved_values(o.out)) {
    for (const float value : values) ASSERT_EQ(bf16_to_f32(f32_to_bf16(value)), value) << name;
  }
}

TEST(Train, OtherAnswersAreNotGoneOnWith) {
  const TinyTarget target;
  std::vector<Trace> traces = target.conversations(8);
  TrainOptions o = tiny_options(target, target.write_traces("traces", traces), "out");
  const std::atomic<bool> stop{true};
  ASSERT_EQ(train(o, stop).code(), StatusCode::kCancelled);
  std::swap(traces[0], traces[1]);  // the same counts, in another order
  o.data = {target.write_traces("swapped", traces)};
  o.resume = true;
  const Status status = train(o, kGoOn);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("data"), std::string::npos) << status.message();
}

TEST(Train, APlanLeavesNothing) {
  const TinyTarget target;
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(8)), "out");
  o.plan = true;
  EXPECT_TRUE(train(o, kGoOn).ok());
  EXPECT_FALSE(std::filesystem::exists(o.out));
}

TEST(Train, PatienceEndsARunThatNoLongerImproves) {
  const TinyTarget target;
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(8)), "out");
  o.max_steps = 400;
  o.eval_every = 2;
  o.patience = 3;
  ASSERT_TRUE(train(o, kGoOn).ok());
  int64_t last = 0, best = 0, since = 0;
  for (const auto& line : metrics(o.out)) {
    last = line["step"];
    if (!line.contains("validation")) continue;
    since = line["validation"]["best"].get<bool>() ? 0 : since + 1;
    if (since == 0) best = last;
  }
  EXPECT_LT(last, 400);
  EXPECT_GE(last, best + 3 * o.eval_every);
  EXPECT_LE(last, best + 4 * o.eval_every);
  o.resume = true;  // is over
  EXPECT_TRUE(train(o, kGoOn).ok());
  EXPECT_EQ(metrics(o.out).back()["step"], last);
}

TEST(Train, OverfitsEightConversations) {
  const TinyTarget target;
  const std::string traces = target.write_traces("traces", target.conversations(8));
  TrainOptions o = tiny_options(target, traces, "out");
  o.holdout = 0;
  o.max_steps = 300;
  o.learning_rate = 5e-3;
  o.tokens_per_step = 1000;  // all of them in one step
  const Status status = train(o, kGoOn);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_GT(metrics(o.out).back()["accuracy"][0].get<double>(), 0.95);

  // What was saved, run by the kernels that serve it, walks nearly as far as drafts that are all right.
  const auto checkpoint = open_drafter(o.out);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->spec.taps, (std::vector<int>{1, 3}));
  EXPECT_EQ(checkpoint->spec.feedback, Feedback::kPostNorm);
  EXPECT_EQ(checkpoint->spec.feature_norm, FeatureNorm::kPerTap);
  EXPECT_FALSE(checkpoint->spec.norm_before_residual);
  const auto data = Dataset::open({traces}, {.max_tokens = 64, .holdout = 0});
  ThreadPool pool(1);
  const auto judged = validate(checkpoint->spec, saved_values(o.out), target.embedding(), kTinyBlocks, *data, data->training(), 3, pool);
  ASSERT_TRUE(judged.ok()) << judged.status().message();
  ReplaySummary perfect;
  for (const Conversation& conversation : data->training()) {
    TraceReplay replay;
    replay.starts = find_starts(conversation.mask, 3);
    for (ReplayStart& start : replay.starts) {
      start.matches = (1u << start.available) - 1;
      start.accepted = accepted_at(start);
    }
    for (const Answer& answer : find_answers(conversation.mask)) replay.walks.push_back(walk_answer(answer, replay.starts));
    perfect.add(replay, 3);
  }
  EXPECT_GT(perfect.acceptance_length(), 2.8);
  EXPECT_GT(judged->acceptance_length(3), 0.9 * perfect.acceptance_length());
  EXPECT_EQ(judged->summary.coverage(), 1.0);
}

/// Runs 12 steps at once and one by one, into folders of this name, and compares what they leave.
void expect_resumed_equals_whole(const TinyTarget& target, const std::string& traces, const std::string& name,
                                 void (*change)(TrainOptions&)) {
  TrainOptions whole = tiny_options(target, traces, name + "-whole"), parts = tiny_options(target, traces, name + "-parts");
  change(whole);
  change(parts);
  ASSERT_TRUE(train(whole, kGoOn).ok());
  const std::atomic<bool> stop{true};  // each call does one step
  int calls = 0;
  Status status;
  do {
    parts.resume = calls > 0;
    status = train(parts, stop);
    ++calls;
  } while (!status.ok() && calls < 20);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(calls, 12);

  const auto one = SafetensorsFile::open(whole.out + "/training_state.safetensors");
  const auto two = SafetensorsFile::open(parts.out + "/training_state.safetensors");
  ASSERT_TRUE(one.ok() && two.ok());
  ASSERT_EQ(one->tensors().size(), two->tensors().size());
  for (const TensorView& tensor : one->tensors()) {
    const TensorView& other = **two->find(tensor.name);
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), other.data.begin(), other.data.end())) << tensor.name;
  }
  EXPECT_EQ(saved_values(whole.out), saved_values(parts.out));
}

TEST(Train, ResumedRunEqualsUninterruptedOneBitForBit) {
  const TinyTarget target;
  const std::string traces = target.write_traces("traces", target.conversations(30));
  expect_resumed_equals_whole(target, traces, "plain", [](TrainOptions&) {});
  expect_resumed_equals_whole(target, traces, "drawn", [](TrainOptions& o) {
    o.noise = 0.1;
    o.anchors = 3;
  });
  // What is drawn has an influence, in training alone, and is part of the recipe whether it is added or left out.
  const auto first_steps = [&](const std::string& name) { return metrics(target.folder() / (name + "-whole"))[0]["loss"].get<double>(); };
  EXPECT_NE(first_steps("plain"), first_steps("drawn"));
  TrainOptions other = tiny_options(target, traces, "drawn-whole");
  other.resume = true;
  const Status less = train(other, kGoOn);
  EXPECT_EQ(less.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(less.message().find("anchors"), std::string::npos) << less.message();
  other.out = target.folder() / "plain-whole";
  other.noise = 0.1;
  const Status more = train(other, kGoOn);
  EXPECT_EQ(more.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(more.message().find("noise"), std::string::npos) << more.message();
}

TEST(Train, ThePageShowsTheWholeOfAResumedRunAndChangesNothing) {
  const TinyTarget target;
  const std::string traces = target.write_traces("traces", target.conversations(30));
  TrainOptions plain = tiny_options(target, traces, "plain");
  ASSERT_TRUE(train(plain, kGoOn).ok());

  TrainOptions o = tiny_options(target, traces, "out");
  o.eval_every = 3;
  o.report = target.folder() / "page.html";
  const auto page = [&] { return read_file(o.report, 1 << 20).value(); };
  const std::atomic<bool> stop{true};
  ASSERT_EQ(train(o, stop).code(), StatusCode::kCancelled);
  EXPECT_NE(page().find("step 1 of 12"), std::string::npos);
  o.resume = true;
  ASSERT_TRUE(train(o, kGoOn).ok());
  EXPECT_NE(page().find("step 12 of 12"), std::string::npos);
  for (const char* said : {">1, loss", ">12, loss", ">step 3, K = 1", "of the matmul ceiling", "more-data", "more-epochs"})
    EXPECT_NE(page().find(said), std::string::npos) << said;

  int64_t tokens = 0;
  for (const auto& line : metrics(o.out)) {
    if (line.contains("validation")) {
      EXPECT_EQ(line["tokens"].get<int64_t>(), tokens);
      continue;
    }
    EXPECT_GT(line["tokens"].get<int64_t>(), tokens);
    EXPECT_GT(line["matmul_share"].get<double>(), 0);
    tokens = line["tokens"];
  }
  const auto one = SafetensorsFile::open(plain.out + "/training_state.safetensors");
  const auto two = SafetensorsFile::open(o.out + "/training_state.safetensors");
  ASSERT_TRUE(one.ok() && two.ok());
  for (const TensorView& tensor : one->tensors()) {
    const TensorView& other = **two->find(tensor.name);
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), other.data.begin(), other.data.end())) << tensor.name;
  }

  TrainOptions nowhere = tiny_options(target, traces, "nowhere");
  nowhere.report = target.folder() / "none/page.html";
  EXPECT_FALSE(train(nowhere, kGoOn).ok());
  EXPECT_FALSE(std::filesystem::exists(nowhere.out + "/metrics.jsonl")) << "a run whose page cannot be written has begun";
}

/// Training goes on from a drafter: where it stood, with its draft vocabulary and its forward, whatever the data's own would be.
TEST(Train, GoesOnFromADrafter) {
  const TinyTarget target;
  const std::string traces = target.write_traces("traces", target.conversations(30));
  TrainOptions first = tiny_options(target, traces, "first");
  first.draft_vocab = 40;
  first.feature_norm = FeatureNorm::kNone;
  first.feedback = Feedback::kPreNorm;
  first.taps = {3, 1};
  first.max_steps = 150;
  first.holdout = 0;
  ASSERT_TRUE(train(first, kGoOn).ok());
  const auto before = open_drafter(first.out);
  ASSERT_TRUE(before.ok());

  // Other answers, of which other tokens are the most frequent.
  const std::string others = target.write_traces("others", target.conversations(20, 9));
  TrainOptions further = tiny_options(target, others, "further");
  further.from = first.out;
  further.holdout = 0;
  further.max_steps = 3;
  further.warmup_steps = 0;
  further.learning_rate = 1e-5;
  const Status status = train(further, kGoOn);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto after = open_drafter(further.out);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(differing_fields(before->spec, after->spec), std::vector<std::string>());
  EXPECT_EQ(after->spec.d2t, before->spec.d2t);
  EXPECT_EQ(after->spec.taps, (std::vector<int>{3, 1}));
  double most = 0, moved = 0;
  for (const auto& [name, values] : saved_values(first.out)) {
    const auto now = saved_values(further.out)[name];
    for (size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, static_cast<double>(std::abs(now[i] - values[i])));
      moved += now[i] != values[i] ? 1 : 0;
    }
  }
  EXPECT_LT(most, 0.01) << "it began anew";
  EXPECT_GT(moved, 0) << "nothing was trained";

  // What it came from is part of the recipe.
  further.from = "";
  further.resume = true;
  EXPECT_EQ(train(further, kGoOn).code(), StatusCode::kInvalidArgument);
}

TEST(Train, ADrafterOfAnotherTargetIsNotGoneOnFrom) {
  const TinyTarget target;
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(12)), "out");
  o.from = std::string(AERIE_SOURCE_DIR) + "/models/smollm2-135m-eagle3";
  const Status status = train(o, kGoOn);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("576"), std::string::npos) << status.message();
}

TEST(Train, InterruptedRunSaysSo) {
  const TinyTarget target;
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(12)), "out");
  const std::atomic<bool> stop{true};
  const Status status = train(o, stop);
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_NE(status.message().find("--resume"), std::string::npos);
  // Without --resume the run is not overwritten; with another recipe it is not continued.
  EXPECT_EQ(train(o, kGoOn).code(), StatusCode::kInvalidArgument);
  o.resume = true;
  o.learning_rate = 1e-4;
  const Status changed = train(o, kGoOn);
  EXPECT_EQ(changed.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(changed.message().find("lr"), std::string::npos) << changed.message();
}

TEST(Train, KeepsTheBestCheckpointByTheWalk) {
  const TinyTarget target;
  // Every conversation is there twice, so that what is held out can be learned.
  std::vector<Trace> traces = target.conversations(8), again = traces;
  traces.insert(traces.end(), again.begin(), again.end());
  TrainOptions o = tiny_options(target, target.write_traces("traces", traces), "out");
  o.learning_rate = 5e-3;
  o.max_steps = 120;
  o.eval_every = 40;
  ASSERT_TRUE(train(o, kGoOn).ok());
  double best = 0;
  int validations = 0;
  for (const auto& line : metrics(o.out)) {
    if (!line.contains("validation")) continue;
    ++validations;
    const double length = line["validation"]["walk_acceptance_length"][2];
    EXPECT_EQ(line["validation"]["best"].get<bool>(), validations == 1 || length > best);
    best = std::max(best, length);
  }
  EXPECT_EQ(validations, 3);
  EXPECT_GT(best, 1.5);
  std::ifstream config(o.out + "/config.json");
  EXPECT_DOUBLE_EQ(nlohmann::json::parse(config)["aerie_training"]["held_out_walk_acceptance_length"].get<double>(), best);
}

TEST(Train, Bf16ProductsGiveNearlyTheSameLossAndGradient) {
  const TinyTarget target;
  const std::string traces = target.write_traces("traces", target.conversations(12));
  std::vector<nlohmann::json> first;
  for (const MatmulPrecision precision : {MatmulPrecision::kFloat32, MatmulPrecision::kBf16}) {
    TrainOptions o = tiny_options(target, traces, precision == MatmulPrecision::kBf16 ? "bf16" : "f32");
    o.precision = precision;
    o.max_steps = 1;
    ASSERT_TRUE(train(o, kGoOn).ok());
    first.push_back(metrics(o.out)[0]);
  }
  for (const char* figure : {"loss", "gradient_norm"}) {
    EXPECT_NEAR(first[1][figure].get<double>(), first[0][figure].get<double>(), 0.02 * first[0][figure].get<double>()) << figure;
  }
}

TEST(Train, StopsWhenTheLossIsNotFinite) {
  const TinyTarget target;
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(12)), "out");
  o.learning_rate = 1e30;
  const Status status = train(o, kGoOn);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("diverged"), std::string::npos) << status.message();
}

TEST(Train, RefusesTracesOfAnotherTarget) {
  const TinyTarget target;
  TraceManifest other = target.manifest();
  other.target.sha256 = std::string(64, 'b');
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(12), other), "out");
  const Status status = train(o, kGoOn);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("sha256"), std::string::npos) << status.message();
}

TEST(Train, FinishesWithinTheTimeLimit) {
  const TinyTarget target;
  TrainOptions o = tiny_options(target, target.write_traces("traces", target.conversations(12)), "out");
  o.max_steps = 0;
  o.epochs = 100000;
  o.time_limit_minutes = 0.02;
  o.eval_every = 1000000;
  ASSERT_TRUE(train(o, kGoOn).ok());
  const auto lines = metrics(o.out);
  ASSERT_GE(lines.size(), 2u);
  // The last step's learning rate is at the end of the cosine.
  EXPECT_LT(lines[lines.size() - 2]["learning_rate"].get<double>(), 0.2 * o.learning_rate);
}

TEST(LearningRate, WarmsUpAndEndsAtATenth) {
  EXPECT_DOUBLE_EQ(learning_rate_factor(0, 10, 0.0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(9, 10, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_factor(0, 0, 0.0), 1.0);
  EXPECT_NEAR(learning_rate_factor(500, 10, 0.5), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate_factor(1000, 10, 1.0), 0.1, 1e-12);
}

}  // namespace
}  // namespace aerie::train
