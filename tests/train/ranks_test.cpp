// One run as several processes, and runs that are killed.
#include "train/ranks.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "formats/safetensors.h"
#include "process.h"
#include "tiny_target.h"

namespace aerie::train {
namespace {

using std::chrono::milliseconds;

struct TinyRun {
  TinyTarget target;
  std::string traces = target.write_traces("traces", target.conversations(40));

  std::vector<std::string> arguments(const std::string& out, int steps, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"--data",
                                    traces,
                                    "--out",
                                    folder(out),
                                    "-m",
                                    target.path(),
                                    "--draft-vocab",
                                    "64",
                                    "--ttt-steps",
                                    "3",
                                    "--tokens-per-step",
                                    "200",
                                    "--row-length",
                                    "64",
                                    "--lr",
                                    "3e-3",
                                    "--warmup",
                                    "5",
                                    "--epochs",
                                    "1000",
                                    "--max-steps",
                                    std::to_string(steps),
                                    "--holdout",
                                    "2",
                                    "--threads",
                                    "1",
                                    "--precision",
                                    "f32",
                                    "--eval-every",
                                    "2",
                                    "--rank-timeout",
                                    "3"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string folder(const std::string& out) const { return target.folder() / out; }
  std::string state(const std::string& out) const { return folder(out) + "/training_state.safetensors"; }
  std::string log(const std::string& name) const { return target.folder() / (name + ".log"); }
};

/// Both ranks of a run of two.
struct Pair {
  std::string port = free_port();
  Process second, first;

  Pair(const TinyRun& run, const std::string& out, int steps, const std::vector<std::string>& more = {},
       const std::vector<std::string>& of_second = {})
      : second(run.arguments(out, steps, of_second.empty() ? more : of_second), run.log("rank-1"), rank_environment(1, 2, port)),
        first(run.arguments(out, steps, more), run.log("rank-0"), rank_environment(0, 2, port)) {}
};

/// The largest difference of two states' tensors, relative to the tensor's largest value.
double difference(const std::string& a, const std::string& b) {
  const auto one = SafetensorsFile::open(a), two = SafetensorsFile::open(b);
  EXPECT_TRUE(one.ok() && two.ok());
  double most = 0;
  for (const TensorView& tensor : one->tensors()) {
    if (tensor.type != DType::kF32) continue;
    const auto x = to_float(tensor).value(), y = to_float(**two->find(tensor.name)).value();
    EXPECT_EQ(x.size(), y.size());
    double largest = 1e-12, apart = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(x[i])));
      apart = std::max(apart, std::abs(static_cast<double>(x[i]) - y[i]));
    }
    most = std::max(most, apart / largest);
  }
  return most;
}

/// Steps that the run has told of.
int steps_done(const std::string& folder) {
  std::ifstream file(folder + "/metrics.jsonl");
  int steps = 0;
  for (std::string line; std::getline(file, line);) steps += line.find("\"loss\"") != std::string::npos ? 1 : 0;
  return steps;
}

template <class Done>
bool wait_until(const Done& done, std::chrono::seconds most = std::chrono::seconds(60)) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
  return done();
}

TEST(Ranks, TwoProcessesTrainWhatOneTrains) {
  const TinyRun run;
  const auto compare = [&](const std::string& name, const std::vector<std::string>& more) {
    const std::string one = name + "one", two = name + "two";
    ASSERT_EQ(Process(run.arguments(one, 10, more), run.log("one")).wait(), 0) << Process({"--help"}, run.log("x")).wait();
    Pair pair(run, two, 10, more);
    Process &first = pair.first, &second = pair.second;
    EXPECT_EQ(first.wait(), 0) << first.said();
    EXPECT_EQ(second.wait(), 0) << second.said();
    // Sums over other groups of rows: float32's rounding, through ten steps of AdamW.
    const double apart = difference(run.state(one), run.state(two));
    EXPECT_LT(apart, 1e-3);
    EXPECT_GT(apart, 0.0) << "bit for bit the same: was the work shared at all?";
    EXPECT_EQ(steps_done(run.folder(two)), 10) << "one rank reports";
  };
  compare("", {});
  compare("drawn-", {"--noise", "0.5", "--anchors", "3"});
  EXPECT_GT(difference(run.state("one"), run.state("drawn-one")), 1e-3) << "nothing was drawn";
}

/// A signal to any rank stops all of them after the same step, and together they go on.
TEST(Ranks, AnInterruptedRunOfTwoEndsAsTheWholeOneBitForBit) {
  const TinyRun run;
  const auto both = [&](const std::string& out, bool interrupt) {
    Pair pair(run, out, 40, {"--resume"});
    Process &first = pair.first, &second = pair.second;
    if (interrupt) {
      EXPECT_TRUE(wait_until([&] { return steps_done(run.folder(out)) > 5 || !first.running(); })) << first.said();
      second.signal(SIGTERM);
    }
    EXPECT_EQ(first.wait(), interrupt ? 1 : 0) << first.said();
    EXPECT_EQ(second.wait(), interrupt ? 1 : 0) << second.said();
    EXPECT_EQ(first.said().find("Go on with --resume") != std::string::npos, interrupt) << first.said();
  };
  both("whole", false);
  both("parts", true);
  EXPECT_LT(steps_done(run.folder("parts")), 40);
  both("parts", false);
  EXPECT_EQ(difference(run.state("whole"), run.state("parts")), 0.0);
}

TEST(Ranks, ALostRankEndsTheOtherWithTheReasonAndAStateToGoOnFrom) {
  const TinyRun run;
  Pair pair(run, "lost", 100000);
  Process &first = pair.first, &second = pair.second;
  ASSERT_TRUE(wait_until([&] { return steps_done(run.folder("lost")) > 3 || !first.running(); })) << first.said();
  ASSERT_TRUE(first.running()) << first.said();
  second.kill();
  EXPECT_EQ(first.wait(), 1);
  EXPECT_NE(first.said().find("rank 1 of 2 has shown no sign of life"), std::string::npos) << first.said();
  EXPECT_NE(first.said().find("--resume"), std::string::npos) << first.said();
  // The same run goes on by itself.
  const int before = steps_done(run.folder("lost"));
  Process alone(run.arguments("lost", 100000, {"--resume"}), run.log("alone"));
  EXPECT_TRUE(wait_until([&] { return steps_done(run.folder("lost")) > before + 2 || !alone.running(); }));
  EXPECT_TRUE(alone.running()) << alone.said();
}

TEST(Ranks, WithoutRankZeroTheOthersEnd) {
  const TinyRun run;
  Pair pair(run, "lost", 100000);
  Process &first = pair.first, &second = pair.second;
  ASSERT_TRUE(wait_until([&] { return steps_done(run.folder("lost")) > 1 || !first.running(); })) << first.said();
  ASSERT_TRUE(first.running()) << first.said();
  first.kill();
  EXPECT_EQ(second.wait(), 1);
  EXPECT_NE(second.said().find("rank 0"), std::string::npos) << second.said();
}

TEST(Ranks, AnotherRecipeIsRefusedByName) {
  const TinyRun run;
  Pair pair(run, "two", 10, {}, {"--seed", "2"});
  Process &first = pair.first, &second = pair.second;
  EXPECT_EQ(second.wait(), 2) << second.said();
  EXPECT_NE(second.said().find("started otherwise than rank 0"), std::string::npos) << second.said();
  EXPECT_EQ(first.wait(), 1) << first.said();
  EXPECT_NE(first.said().find("rank 1 of 2 gave up"), std::string::npos) << first.said();
}

/// Rank 0 serves the store, and still its reason reaches the others before it is gone.
TEST(Ranks, WhyRankZeroStopsIsSaidByAll) {
  const TinyRun run;
  ASSERT_EQ(Process(run.arguments("taken", 2), run.log("taken")).wait(), 0);
  Pair pair(run, "taken", 10);
  Process &first = pair.first, &second = pair.second;
  EXPECT_EQ(first.wait(), 2) << first.said();
  EXPECT_EQ(second.wait(), 1) << second.said();
  EXPECT_NE(second.said().find("already holds a training run"), std::string::npos) << second.said();
}

TEST(Ranks, WhatIsMissingIsNamed) {
  const TinyRun run;
  Environment without = rank_environment(0, 2, "29500");
  without.erase("MASTER_ADDR");
  Process one(run.arguments("x", 2), run.log("x"), without);
  EXPECT_EQ(one.wait(), 2);
  EXPECT_NE(one.said().find("MASTER_ADDR"), std::string::npos) << one.said();
  Process other(run.arguments("x", 2), run.log("x"), rank_environment(2, 2, "29500"));
  EXPECT_EQ(other.wait(), 2);
  EXPECT_NE(other.said().find("RANK is 2, expected 0 to 1"), std::string::npos) << other.said();
}

TEST(Program, OneWayOnlyToSizeTheDraftVocabulary) {
  const TinyRun run;
  Process both(run.arguments("x", 2, {"--draft-coverage", "0.9"}), run.log("x"));
  EXPECT_EQ(both.wait(), 2) << both.said();
  EXPECT_NE(both.said().find("excludes"), std::string::npos) << both.said();
}

/// kill -9 at any moment, again and again: the end is that of a run that nobody disturbed, byte for byte.
TEST(Killed, ARunEndsAsIfNothingHadHappened) {
  const TinyRun run;
  ASSERT_EQ(Process(run.arguments("whole", 30), run.log("whole")).wait(), 0);
  std::mt19937 random(1);
  int kills = 0;
  for (int attempt = 0; attempt < 200; ++attempt) {
    Process process(run.arguments("killed", 30, {"--resume"}), run.log("killed"));
    const int target = steps_done(run.folder("killed")) + 1 + static_cast<int>(random() % 6);
    wait_until([&] { return steps_done(run.folder("killed")) >= target || !process.running(); });
    std::this_thread::sleep_for(milliseconds(random() % 20));
    if (!process.running()) break;
    process.kill();
    ++kills;
  }
  EXPECT_GE(kills, 3);
  ASSERT_EQ(Process(run.arguments("killed", 30, {"--resume"}), run.log("killed")).wait(), 0);
  EXPECT_EQ(difference(run.state("whole"), run.state("killed")), 0.0);
}

/// Whatever happens to the newest state, the one before is taken up, and the end is the same, with another kill on the way.
TEST(Killed, ADamagedStateFallsBackToTheOneBefore) {
  const TinyRun run;
  ASSERT_EQ(Process(run.arguments("whole", 12), run.log("whole")).wait(), 0);
  const std::vector<std::pair<std::string, std::function<std::string(std::string)>>> damages = {
      {"cut", [](const std::string& bytes) { return bytes.substr(0, bytes.size() / 2); }},
      {"weights", [](std::string bytes) { return bytes[bytes.size() / 2] ^= 1, bytes; }},
      {"d2t", [](std::string bytes) { return bytes[bytes.size() - 3] ^= 1, bytes; }},
      {"recipe", [](std::string bytes) { return bytes[bytes.find("tokens_per_step") + 18] ^= 1, bytes; }},
      {"gone", [](const std::string&) { return std::string(); }},
  };
  for (const auto& [out, damage] : damages) {
    Process process(run.arguments(out, 12), run.log(out));
    ASSERT_TRUE(wait_until([&, &out = out] { return steps_done(run.folder(out)) >= 7 || !process.running(); }));
    ASSERT_TRUE(process.running()) << process.said();
    process.kill();
    ASSERT_TRUE(std::filesystem::exists(run.state(out) + ".previous"));
    const std::string bytes = damage(read_file(run.state(out), 1 << 24).value());
    std::filesystem::remove(run.state(out));  // a name of its own: the state before must not change with it
    if (!bytes.empty()) std::ofstream(run.state(out), std::ios::binary) << bytes;
    Process again(run.arguments(out, 12, {"--resume"}), run.log(out));
    ASSERT_TRUE(wait_until([&] { return again.said().find("going on from the state before it") != std::string::npos || !again.running(); }))
        << out;
    again.kill();
    Process last(run.arguments(out, 12, {"--resume"}), run.log(out + "-2"));
    EXPECT_EQ(last.wait(), 0) << out << ": " << last.said();
    EXPECT_EQ(difference(run.state("whole"), run.state(out)), 0.0) << out;
  }
}

}  // namespace
}  // namespace aerie::train
