#include "doctor/economics.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "doctor/report.h"

namespace aerie {
namespace {

CostCurve curve(std::vector<std::pair<int, double>> verify, double draft) {
  auto made = CostCurve::create(std::move(verify), draft);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? *made : *CostCurve::create({{1, 1.0}}, 0.0);
}

TEST(Economics, ByHand) {
  const CostCurve costs = curve({{1, 10.0}, {2, 11.0}, {4, 15.0}}, 0.5);
  EXPECT_DOUBLE_EQ(costs.verify(3), 13.0);
  EXPECT_DOUBLE_EQ(costs.verify(6), 19.0);
  EXPECT_DOUBLE_EQ(costs.cycle(0), 10.0);
  EXPECT_DOUBLE_EQ(costs.cycle(3), 16.5);
  EXPECT_DOUBLE_EQ(break_even_length(costs, 3), 1.65);
  EXPECT_DOUBLE_EQ(expected_length({0.7, 0.5}, 2), 1.0 + 0.7 + 0.35);
  EXPECT_DOUBLE_EQ(expected_length({0.7, 0.5}, 0), 1.0);
  EXPECT_EQ(best_draft_tokens(costs, {0.02}, 8).k, 0);
  const DraftChoice best = best_draft_tokens(costs, {0.7, 0.7, 0.7}, 3);
  EXPECT_EQ(best.k, 2);
  EXPECT_DOUBLE_EQ(best.tokens_per_second, 2.19 / 14.0);
}

TEST(Economics, RefusesCostsThatAreNone) {
  for (const auto& verify : std::vector<std::vector<std::pair<int, double>>>{
           {}, {{2, 1.0}}, {{1, 0.0}}, {{1, -1.0}}, {{1, NAN}}, {{1, 1.0}, {1, 2.0}}, {{1, INFINITY}}}) {
    EXPECT_FALSE(CostCurve::create(verify, 0.0).ok());
  }
  EXPECT_FALSE(CostCurve::create({{1, 1.0}}, -0.1).ok());
  EXPECT_FALSE(CostCurve::create({{1, 1.0}}, NAN).ok());
  EXPECT_EQ(parse_verify_costs("1:27.5,2:29")->at(1).second, 29.0);
  for (const char* wrong : {"1", "1:", "x:1", "1:2;3:4", "1:2,,3:4", "0:1", ":1"}) EXPECT_FALSE(parse_verify_costs(wrong).ok()) << wrong;
}

struct Case {
  CostCurve costs;
  std::vector<double> conditional;
};

Case any_case() {
  std::vector<std::pair<int, double>> points = {{1, 1.0 + *rc::gen::inRange(0, 100) * 0.1}};
  for (int rows = 2; rows <= 9; ++rows) {
    if (*rc::gen::arbitrary<bool>()) points.push_back({rows, points.back().second + *rc::gen::inRange(0, 50) * 0.1});
  }
  std::vector<double> conditional;
  for (int i = 0; i < 8; ++i) conditional.push_back(*rc::gen::inRange(0, 101) * 0.01);
  return {*CostCurve::create(points, *rc::gen::inRange(0, 30) * 0.1), conditional};
}

RC_GTEST_PROP(Economics, BreakEvenIsWhereDraftingEqualsPlain, ()) {
  const Case c = any_case();
  for (int k = 1; k <= 8; ++k) {
    const double even = break_even_length(c.costs, k);
    RC_ASSERT(even >= 1.0 - 1e-12);
    RC_ASSERT(std::abs(tokens_per_second(c.costs, k, even) / tokens_per_second(c.costs, 0, 1.0) - 1.0) < 1e-12);
  }
}

RC_GTEST_PROP(Economics, TheBestIsNoWorseThanAny, ()) {
  const Case c = any_case();
  const DraftChoice best = best_draft_tokens(c.costs, c.conditional, 8);
  for (int k = 0; k <= 8; ++k)
    RC_ASSERT(best.tokens_per_second >= tokens_per_second(c.costs, k, expected_length(c.conditional, k)) - 1e-12);
  // Better drafts never make it slower.
  std::vector<double> better = c.conditional;
  for (double& a : better) a = std::min(1.0, a + 0.05);
  RC_ASSERT(best_draft_tokens(c.costs, better, 8).tokens_per_second >= best.tokens_per_second - 1e-12);
}

TEST(Report, RanksFindingsAndRepeatsNone) {
  Report report;
  report.add({{Severity::kNote, "n", "a note", ""}, {Severity::kError, "e", "an error", "mend it"}});
  report.add({{Severity::kWarning, "w", "a warning", ""}, {Severity::kNote, "n", "a note", ""}});
  const nlohmann::json json = report.json();
  ASSERT_EQ(json["findings"].size(), 3u);
  EXPECT_EQ(json["findings"][0]["code"], "e");
  EXPECT_EQ(json["findings"][2]["severity"], "note");
  EXPECT_LT(report.text().find("an error"), report.text().find("a warning"));
  EXPECT_NE(Report().text().find("nothing wrong"), std::string::npos);
}

TEST(Report, EconomicsFindTheLossAndTheBetterK) {
  const CostCurve costs = curve({{1, 10.0}, {2, 14.0}, {4, 22.0}}, 1.0);
  Acceptance a;
  a.unconditional = {0.60, 0.30, 0.10}, a.k = 3;
  a.complete();
  std::vector<Finding> findings;
  const ReportSection section = describe(costs, a, findings);
  EXPECT_NEAR(section.data["tokens_per_second"].get<double>(), 1000.0 * 2.0 / 25.0, 1e-9);
  EXPECT_EQ(section.data["best"]["draft_tokens"], 1);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].code, "slower-than-plain");
  EXPECT_EQ(findings[1].code, "better-k");
}

}  // namespace
}  // namespace aerie
