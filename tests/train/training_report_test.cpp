// The page of a run: that it shows the whole log, each step once, and stays small.
#include "train/training_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/file_io.h"
#include "support/temp_folder.h"

namespace aerie::train {
namespace {

std::string step_line(int64_t step, double loss) {
  return nlohmann::json{{"step", step},           {"epoch", 0},           {"loss", loss},          {"accuracy", {0.5, 0.25}},
                        {"learning_rate", 1e-3},  {"gradient_norm", 2.5}, {"tokens", 1000 * step}, {"tokens_per_second", 800.0},
                        {"matmul_share", 0.4375}, {"elapsed_seconds", 1}}
             .dump() +
         "\n";
}

std::string validation_line(int64_t step, double length) {
  return nlohmann::json{{"step", step},
                        {"tokens", 1000 * step},
                        {"validation",
                         {{"walk_acceptance_length", {length - 0.5, length, length + 0.1}},
                          {"unconditional", {0.5, 0.4, 0.3}},
                          {"conditional", {0.5, 0.6, 0.7}},
                          {"coverage", 0.9375},
                          {"best", true}}}}
             .dump() +
         "\n";
}

TrainingRun tiny_run() {
  TrainingRun run;
  run.target = "a <target>";
  run.recipe = {{"lr", 1e-3}, {"optimizer", "muon"}};
  run.trained_steps = 2;
  run.data_tokens = 1e9;
  return run;
}

const Chart& chart_of(const Report& report, const std::string& name) {
  for (const ReportSection& section : report.sections) {
    for (const Chart& chart : section.charts) {
      if (chart.name == name) return chart;
    }
  }
  ADD_FAILURE() << "no chart " << name;
  static const Chart none;
  return none;
}

TEST(TrainingLog, WhatARunLostAndDidAgainCountsOnce) {
  std::string text;
  for (int step = 1; step <= 6; ++step) text += step_line(step, 10 + step);
  text += validation_line(6, 1.5) + step_line(7, 17) + step_line(8, 18);
  text += step_line(6, 6) + validation_line(6, 1.75) + step_line(7, 7);  // killed; gone on with after step 5
  const TrainingLog log = read_training_log(text);
  ASSERT_EQ(log.steps.size(), 7u);
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(log.steps[i].step, static_cast<int64_t>(i) + 1);
  EXPECT_EQ(log.steps[5].loss, 6);
  EXPECT_EQ(log.steps[6].loss, 7);
  ASSERT_EQ(log.validations.size(), 1u);
  EXPECT_EQ(log.validations[0].lengths[1], 1.75);
  EXPECT_EQ(log.unreadable, 0);
}

/// The validation that a resumed run makes first, at the step that it was saved after.
TEST(TrainingLog, AValidationTakesTheRunBackToo) {
  const TrainingLog log =
      read_training_log(step_line(1, 1) + step_line(2, 2) + validation_line(2, 1.5) + step_line(3, 3) + validation_line(2, 1.6));
  EXPECT_EQ(log.steps.size(), 2u);
  ASSERT_EQ(log.validations.size(), 1u);
  EXPECT_EQ(log.validations[0].lengths[1], 1.6);
}

TEST(TrainingLog, ABrokenLineIsLeftOutAndCounted) {
  const TrainingLog log =
      read_training_log(step_line(1, 1) + "{\"step\": 2, \"lo\n\n[]\n{\"step\":2,\"validation\":3}\n" + step_line(2, 2));
  EXPECT_EQ(log.steps.size(), 2u);
  EXPECT_EQ(log.unreadable, 3);
  EXPECT_NE(training_report(tiny_run(), log).text().find("3 lines of the log"), std::string::npos);
}

/// Logs from before tokens were told: no curve over them, and all the rest.
TEST(TrainingLog, OfAnOlderProgramIsShownToo) {
  std::string text;
  for (int i = 1; i <= 8; ++i) {
    for (std::string line : {step_line(i, 5), validation_line(i, 1.5)}) {
      nlohmann::json old = nlohmann::json::parse(line);
      old.erase("tokens");
      old.erase("matmul_share");
      text += old.dump() + "\n";
    }
  }
  const Report report = training_report(tiny_run(), read_training_log(text));
  EXPECT_EQ(chart_of(report, "loss").series[0].points.size(), 8u);
  EXPECT_EQ(chart_of(report, "acceptance_length").series[1].points.size(), 8u);
  EXPECT_EQ(chart_svg(chart_of(report, "matmul_share")), "");
  EXPECT_NE(report.text().find("whether more data would help cannot be told"), std::string::npos);
}

TEST(Binned, KeepsTheMeanAndNeverMoreThanAsked) {
  std::vector<double> values(125);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  const std::vector<double> bins = binned(values, 60);
  EXPECT_EQ(bins.size(), 42u);
  EXPECT_EQ(bins.front(), 1);
  EXPECT_EQ(bins.back(), 123.5);  // of two
  EXPECT_EQ(binned({1, 2, 3}, 60), (std::vector<double>{1, 2, 3}));
  EXPECT_TRUE(binned({}, 60).empty());
}

TEST(TrainingReport, ShowsEveryFigureOfALongRunOnASmallPage) {
  std::string text;
  for (int step = 1; step <= 20000; ++step) {
    text += step_line(step, 8.0 - step / 5000.0);
    if (step % 200 == 0) text += validation_line(step, 3.0 - std::pow(step / 1000.0, -0.3) + (step % 400 == 0 ? 0.002 : -0.002));
  }
  const Report report = training_report(tiny_run(), read_training_log(text));
  for (const char* name : {"loss", "gradient_norm", "learning_rate", "accuracy", "tokens_per_second", "matmul_share", "acceptance_length",
                           "conditional", "learning_curve"}) {
    const Chart& chart = chart_of(report, name);
    EXPECT_NE(chart_svg(chart), "") << name;
    EXPECT_LE(chart.labels.size(), 62u) << name;
    for (const ChartSeries& series : chart.series) EXPECT_EQ(series.points.size(), chart.labels.size()) << name << " " << series.name;
  }
  EXPECT_EQ(chart_of(report, "accuracy").series.size(), 2u);
  EXPECT_EQ(chart_of(report, "acceptance_length").series.size(), 3u);
  EXPECT_EQ(chart_of(report, "conditional").series.back().name, "coverage");
  EXPECT_DOUBLE_EQ(chart_of(report, "conditional").series.back().points[0]->value, 0.9375);
  // The curve goes on to four times the tokens, where only the fit has a value.
  const Chart& curve = chart_of(report, "learning_curve");
  EXPECT_EQ(curve.labels.back(), "80.00 M");
  EXPECT_FALSE(curve.series[0].points.back());
  EXPECT_NEAR(curve.series[1].points.back()->value, 3.0 - std::pow(80, -0.3), 0.02);
  EXPECT_GT(curve.series[1].points.back()->high, curve.series[1].points.back()->low);

  const std::string html = report.html("a run");
  EXPECT_LT(html.size(), 300'000u);
  for (const char* forbidden : {"<script", "http:", "https:", "src=", "href=", "url(", "nan"})
    EXPECT_EQ(html.find(forbidden), std::string::npos) << forbidden;
  for (const char* said : {"more-data", "more-epochs", "cosine", "no new data", "95 %"})
    EXPECT_NE(html.find(said), std::string::npos) << said;
}

TEST(TrainingReport, SaysThatARunHasOverfitted) {
  std::string text;
  for (int i = 1; i <= 10; ++i) text += step_line(i, 10 - i) + validation_line(i, i < 6 ? 1.5 + 0.2 * i : 2.5 - 0.2 * (i - 5));
  const Report report = training_report(tiny_run(), read_training_log(text));
  EXPECT_TRUE(std::any_of(report.findings.begin(), report.findings.end(), [](const Finding& f) { return f.code == "overfitted"; }));
  EXPECT_TRUE(
      std::none_of(report.findings.begin(), report.findings.end(), [](const Finding& f) { return f.code == "trained-to-the-end"; }));
}

TEST(TrainingReport, IsWrittenBeforeThereIsALog) {
  const TempFolder folder;
  const std::string path = folder / "page.html";
  ASSERT_TRUE(write_training_report(path, tiny_run(), folder / "metrics.jsonl").ok());
  const std::string html = read_file(path, 1 << 20).value();
  EXPECT_NE(html.find("training a drafter for a &lt;target&gt;"), std::string::npos);
  EXPECT_NE(html.find("muon"), std::string::npos);
  EXPECT_FALSE(write_training_report(folder / "nowhere" + "/page.html", tiny_run(), folder / "metrics.jsonl").ok());
}

}  // namespace
}  // namespace aerie::train
