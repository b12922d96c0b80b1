// The report's plots and its page: that they show the figures, all of them, and nothing that a browser would run or fetch.
#include "doctor/report.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <regex>
#include <set>

#include "diagnosis.h"
#include "doctor/breakdown.h"
#include "doctor/verdict.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

/// Every element is closed, in order, and no character stands where it would end an attribute or begin an element.
::testing::AssertionResult well_formed(const std::string& html) {
  static const std::regex tag("<(/?)([a-z0-9]+)((?: [a-zA-Z0-9-]+=\"[^\"<>]*\")*) ?(/?)>");
  std::vector<std::string> open;
  size_t end = 0;
  for (auto it = std::sregex_iterator(html.begin(), html.end(), tag); it != std::sregex_iterator(); ++it) {
    const std::string between = html.substr(end, static_cast<size_t>(it->position()) - end);
    if (between.find('<') != std::string::npos && between != "<!doctype html>\n")
      return ::testing::AssertionFailure() << "stray < in " << between;
    end = static_cast<size_t>(it->position() + it->length());
    const std::string name = (*it)[2];
    if (name == "meta" || name == "br" || (*it)[4] == "/") continue;
    if ((*it)[1] != "/") {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return ::testing::AssertionFailure() << "</" << name << "> closes " << (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  if (!open.empty()) return ::testing::AssertionFailure() << open.back() << " stays open";
  return ::testing::AssertionSuccess();
}

Chart small_chart(bool sideways) {
  Chart out{"name", "a <title> & more", {"one", "\"two\""}, {}};
  out.sideways = sideways;
  out.series = {{"declared", {Interval{0.2, 0.1, 0.3}, std::nullopt}}, {"mended", {Interval{0.5, 0.4, 0.6}, Interval{0.7, 0.7, 0.7}}}};
  return out;
}

TEST(Chart, JsonHasEveryPoint) {
  const nlohmann::json json = chart_json(small_chart(false));
  EXPECT_EQ(json["labels"].size(), 2u);
  EXPECT_TRUE(json["series"][0]["points"][1].is_null());
  EXPECT_DOUBLE_EQ(json["series"][1]["points"][0]["high"].get<double>(), 0.6);
}

TEST(Chart, LinesNameWhatIsNotKnown) {
  const auto lines = chart_lines(small_chart(false));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[0].find("declared"), std::string::npos);
  EXPECT_NE(lines[1].find("0.200 [0.100, 0.300]"), std::string::npos) << lines[1];
  EXPECT_NE(lines[2].find("  -  "), std::string::npos) << lines[2];
  EXPECT_EQ(lines[2].find('['), std::string::npos) << "a value without an interval is printed as one: " << lines[2];
}

TEST(Chart, DrawsAMarkForEachPointAndAWhiskerForEachInterval) {
  const auto count = [](const std::string& text, const std::string& what) {
    size_t out = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++out;
    return out;
  };
  for (const bool sideways : {false, true}) {
    const std::string svg = chart_svg(small_chart(sideways));
    EXPECT_TRUE(well_formed(svg)) << svg;
    EXPECT_EQ(count(svg, "class=\"whisker\""), 2u);
    EXPECT_EQ(count(svg, "<title>"), 3u);
  }
  EXPECT_EQ(chart_svg(Chart{}), "");
}

TEST(Chart, ACurveHasALineForEachSeriesAndABandWhereThereAreIntervals) {
  const auto count = [](const std::string& text, const std::string& what) {
    size_t out = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++out;
    return out;
  };
  Chart chart{"name", "title", {}, {}};
  chart.curve = true;
  chart.series = {{"wide", {}}, {"exact", {}}, {"broken", {}}};
  for (int i = 0; i < 60; ++i) {
    const double value = 2 + 0.01 * i;
    chart.labels.push_back(std::to_string(100 * (i + 1)));
    chart.series[0].points.push_back(Interval{value, value - 0.1, value + 0.1});
    chart.series[1].points.push_back(Interval{value, value, value});
    chart.series[2].points.push_back(i == 30 ? std::nullopt : std::optional(Interval{value, value, value}));
  }
  const std::string svg = chart_svg(chart);
  EXPECT_TRUE(well_formed(svg)) << svg;
  EXPECT_EQ(count(svg, "<polyline"), 4u);
  EXPECT_EQ(count(svg, "class=\"band\""), 1u);
  EXPECT_EQ(count(svg, "<circle"), 179u);
  EXPECT_EQ(count(svg, "class=\"whisker\""), 0u);
  EXPECT_LT(count(svg, "text-anchor=\"middle\""), 30u) << "labels lie on each other";
  EXPECT_NE(svg.find(">1.8<"), std::string::npos) << "the axis begins near the values";
}

/// Whatever the values: no coordinate is outside the drawing or no number.
RC_GTEST_PROP(Chart, AnyValuesStayInsideTheDrawing, ()) {
  Chart chart{"c", "t", {}, {}};
  chart.sideways = *rc::gen::arbitrary<bool>();
  chart.curve = *rc::gen::arbitrary<bool>();
  chart.percent = *rc::gen::arbitrary<bool>();
  const auto labels = *rc::gen::inRange<size_t>(1, 8), series = *rc::gen::inRange<size_t>(1, 5);
  for (size_t l = 0; l < labels; ++l) chart.labels.push_back("l" + std::to_string(l));
  for (size_t s = 0; s < series; ++s) {
    ChartSeries& next = chart.series.emplace_back(ChartSeries{"s", {}});
    const auto points = *rc::gen::inRange<size_t>(0, labels + 1);
    for (size_t p = 0; p < points; ++p) {
      const double value = *rc::gen::element(-3.0, 0.0, 1e-9, 0.5, 1.0, 1.5, 17.0, 12345.0), wide = *rc::gen::element(0.0, 0.1, 40.0);
      next.points.push_back(Interval{value, value - wide, value + wide});
    }
  }
  const std::string svg = chart_svg(chart);
  RC_ASSERT(svg.find("nan") == std::string::npos && svg.find("inf") == std::string::npos);
  static const std::regex number("(?:x|y|cx|cy|x1|y1|x2|y2|height|width)=\"(-?[0-9.]+)\"");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), number); it != std::sregex_iterator(); ++it) {
    const double at = std::stod((*it)[1]);
    RC_ASSERT(at >= 0.0 && at <= 760.0);
  }
}

Report report_of(const Case& found) {
  Report out;
  out.add(found.findings);
  const std::vector<double> validated = {0.9, 0.8};
  out.add(judge_validation(found.result, validated));
  out.add(describe(found.result, found.sample, 3, validated));
  for (ChartSeries& series : accepted_by_step(found.result)) out.accepted_by_step.push_back(std::move(series));
  return out;
}

Case founding_story(const std::vector<double>& accepted) {
  DrawnOptions options;
  options.accepted = accepted;
  DraftSpec spec = drawn_spec();
  spec.taps = {0, 1, 4};
  return diagnose(
      drawn_checkpoint(spec, 7), true_reading(spec),
      [](Reading& r) {
        set_taps(r, {1, 4, 8});
      },
      options);
}

TEST(Html, IsAPageByItselfThatSaysWhatTheTextSays) {
  Case found = founding_story({0.3, 0.25, 0.2, 0.25});
  found.findings[0].fix += " <script>alert('x')</script> & \"quotes\"";
  const Report report = report_of(found);
  const std::string html = report.html("a \"drafter\" <of> mine");
  EXPECT_TRUE(well_formed(html));
  for (const char* forbidden : {"<script", "http:", "https:", "src=", "href=", "url(", "@import", "onload"})
    EXPECT_EQ(html.find(forbidden), std::string::npos) << forbidden;
  for (const Finding& finding : report.findings) {
    EXPECT_NE(html.find(html_escape(finding.text)), std::string::npos);
    EXPECT_NE(html.find(html_escape(finding.fix)), std::string::npos);
  }
  for (const ReportSection& section : report.sections) {
    for (const std::string& line : section.lines) EXPECT_NE(html.find(html_escape(line)), std::string::npos) << line;
    for (const Chart& chart : section.charts) EXPECT_NE(html.find(html_escape(chart.title)), std::string::npos) << chart.title;
  }
}

const Chart& chart_named(const std::vector<Chart>& charts, const std::string& name) {
  return *std::find_if(charts.begin(), charts.end(), [&](const Chart& c) { return c.name == name; });
}

/// The shares by step are those that the acceptance length is made of, before and after the mend.
TEST(Breakdown, AcceptedStepsAddUpToTheAcceptanceLength) {
  const Case found = founding_story({0.1, 0.2, 0.3, 0.4});
  const auto series = accepted_by_step(found.result);
  ASSERT_EQ(series.size(), 2u);
  EXPECT_EQ(series[0].name, "replayed as declared");
  EXPECT_EQ(series[1].name, "replayed as mended");
  const SearchRound& last = found.result.rounds.back();
  const double lengths[] = {found.result.rounds.front().base.length.value, last.base.length.value};
  for (size_t s = 0; s < 2; ++s) {
    double sum = 1;
    for (const auto& point : series[s].points) sum += point->value;
    EXPECT_NEAR(sum, lengths[s], 1e-12);
  }
  // What was drawn: m = 0 in one cycle of ten. (The end of an answer cuts a few cycles short.)
  EXPECT_NEAR(series[1].points[0]->value, 0.9, 0.06);
}

TEST(Breakdown, PositionsAndDomainsPartitionTheRows) {
  Case found = founding_story({0.3, 0.25, 0.2, 0.25});
  for (size_t c = 0; c < found.sample.conversations.size(); ++c) found.sample.domains.push_back(c % 3 == 0 ? "code" : "prose");
  const auto charts = breakdown(found.result, found.sample, {});
  const Chart& position = chart_named(charts, "right_by_position");
  EXPECT_EQ(position.labels, (std::vector<std::string>{"0-63"}));  // 44 tokens
  EXPECT_NEAR(position.series[0].points[0]->value, found.result.rounds[0].base.first.value, 1e-12);
  const Chart& domain = chart_named(charts, "length_by_domain");
  EXPECT_EQ(domain.labels, (std::vector<std::string>{"code (8)", "prose (16)"}));
  // By hand, in the order in which the scores are kept.
  const std::vector<size_t> order = judged_order(found.sample);
  const Score& score = found.result.rounds[0].base.score;
  RatioPart code;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] % 3 != 0) continue;
    code.sum += score.length[i].sum;
    code.count += score.length[i].count;
  }
  EXPECT_NEAR(domain.series[0].points[0]->value, code.sum / code.count, 1e-12);
  const Chart& histogram = chart_named(charts, "length_histogram");
  for (const ChartSeries& series : histogram.series) {
    double total = 0;
    for (const auto& point : series.points) total += point->value;
    EXPECT_EQ(total, static_cast<double>(found.sample.conversations.size()));
  }
}

TEST(Domains, AreReadByTheRowInAConversationsName) {
  const TempFolder folder;
  const std::string path =
      folder.write("prompts.jsonl", "{\"source\": \"web\", \"category\": \"maths\"}\n{\"source\": \"web\"}\n{\"domain\": \"c\\u00e4fe<\"}");
  Sample sample;
  for (const char* id : {"2", "data_0.ckpt", "1"}) sample.conversations.emplace_back().id = id;
  const Status named = name_domains(path, sample);
  ASSERT_TRUE(named.ok()) << named.message();
  EXPECT_EQ(sample.domains, (std::vector<std::string>{"c\\xc3\\xa4fe<", "maths", "web"}));
  Sample beyond;
  for (const char* id : {"1", "3"}) beyond.conversations.emplace_back().id = id;
  EXPECT_EQ(name_domains(path, beyond).code(), StatusCode::kInvalidArgument);
  beyond.conversations[1].id = "no number";
  EXPECT_EQ(name_domains(path, beyond).code(), StatusCode::kInvalidArgument);
}

TEST(Domains, TheRarestOfManyAreTakenTogether) {
  const TempFolder folder;
  std::string lines;
  Sample sample;
  for (int i = 0; i < 40; ++i) {
    lines += "{\"category\": \"d" + std::to_string(i < 20 ? i : i % 5) + "\"}\n";
    sample.conversations.emplace_back().id = std::to_string(i);
  }
  ASSERT_TRUE(name_domains(folder.write("lines", lines), sample).ok());
  const std::set<std::string> kinds(sample.domains.begin(), sample.domains.end());
  EXPECT_EQ(kinds.size(), 12u);
  EXPECT_EQ(kinds.count("other"), 1u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sample.domains[static_cast<size_t>(i)], "d" + std::to_string(i));
}

TEST(Breakdown, BucketsOfPositions) {
  for (size_t b = 0; b + 1 < kPositionBuckets; ++b) {
    const std::string name = position_bucket_name(b);
    const int first = std::stoi(name), last = std::stoi(name.substr(name.find('-') + 1));
    EXPECT_EQ(position_bucket(first), b);
    EXPECT_EQ(position_bucket(last), b);
    EXPECT_EQ(position_bucket(last + 1), b + 1);
  }
  EXPECT_EQ(position_bucket_name(kPositionBuckets - 1), "1024-");
}

TEST(Validation, IsBorneOutOrNot) {
  const Case found = founding_story({0.3, 0.25, 0.2, 0.25});
  const double first = found.result.rounds.back().base.first.value;  // as mended
  const auto judged = [&](double reported) { return judge_validation(found.result, std::vector<double>{reported})[0]; };
  EXPECT_EQ(judged(first).code, "validation-reproduced");
  EXPECT_EQ(judged(first).severity, Severity::kNote);
  EXPECT_EQ(judged(std::min(1.0, first + 0.2)).code, "validation-not-reproduced");
  EXPECT_EQ(judged(std::min(1.0, first + 0.2)).severity, Severity::kWarning);
  EXPECT_EQ(judged(first / 2).code, "validation-exceeded");
  EXPECT_TRUE(judge_validation(found.result, {}).empty());
}

TEST(Report, FiguresOfEngineAndReplayStandBesideEachOther) {
  Report report;
  report.accepted_by_step = {{"replayed as declared", {Interval{0.4, 0.3, 0.5}, Interval{0.2, 0.1, 0.3}}},
                             {"as the engine states it", {Interval{0.1, 0.1, 0.1}}}};
  const nlohmann::json chart = report.json()["acceptance_by_step"][0]["charts"][0];
  EXPECT_EQ(chart["labels"], (nlohmann::json{"1", "2"}));
  EXPECT_EQ(chart["series"][1]["name"], "as the engine states it");
  EXPECT_NE(report.text().find("40.0 % [30.0, 50.0]"), std::string::npos) << report.text();
  EXPECT_NE(report.html("x").find("as the engine states it"), std::string::npos);
}

}  // namespace
}  // namespace aerie
