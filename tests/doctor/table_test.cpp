#include "table.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>

namespace aerie {
namespace {

constexpr int kRows = 63;
constexpr double kEnough = 0.9;

enum class Outcome { kRight, kUnknown, kWrong };

/// The answer that stands first in a report: errors before warnings before notes.
Finding first_of(std::vector<Finding> findings) {
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return findings.empty() ? Finding{Severity::kNote, "nothing", "", ""} : findings.front();
}

/// Only an error is a confident answer; a warning or a note with another name is a shrug.
Outcome judge(const TableRow& row, const Finding& first) {
  if (std::find(row.codes.begin(), row.codes.end(), first.code) != row.codes.end()) return Outcome::kRight;
  return first.severity == Severity::kError ? Outcome::kWrong : Outcome::kUnknown;
}

TEST(ConfusionTable, NamesNineOfTenFaultsAndIsNeverConfidentlyWrong) {
  std::vector<TableRow> table;
  for (auto&& part : {file_faults(), replay_faults(), engine_faults(), figure_faults()})
    table.insert(table.end(), part.begin(), part.end());
  int right = 0, unknown = 0, wrong = 0;
  std::printf("%-9s %-66s %-30s %s\n", "rows", "fault", "first answer", "");
  for (const TableRow& row : table) {
    const Finding first = first_of(row.doctor());
    const Outcome outcome = judge(row, first);
    right += outcome == Outcome::kRight;
    unknown += outcome == Outcome::kUnknown;
    wrong += outcome == Outcome::kWrong;
    std::printf("%-9s %-66s %-30s %s\n", fmt::format("{}", fmt::join(row.rows, ",")).c_str(), row.fault.c_str(), first.code.c_str(),
                outcome == Outcome::kRight     ? "right"
                : outcome == Outcome::kUnknown ? "unknown"
                                               : "WRONG");
    EXPECT_NE(outcome, Outcome::kWrong) << row.fault << ": " << first.code << ": " << first.text;
    if (outcome == Outcome::kUnknown)
      std::printf("          expected %s; it said: %s\n", fmt::format("{}", fmt::join(row.codes, " or ")).c_str(), first.text.c_str());
  }
  const auto all = static_cast<double>(table.size());
  std::printf("%zu faults: %d right (%.1f %%), %d unknown, %d confidently wrong\n", table.size(), right, 100 * right / all, unknown, wrong);
  EXPECT_GE(right, kEnough * all);
}

TEST(ConfusionTable, EveryRowIsShownOrSaysWhyItCannotBe) {
  std::set<int> shown, excused;
  for (auto&& part : {file_faults(), replay_faults(), engine_faults(), figure_faults()}) {
    for (const TableRow& row : part) shown.insert(row.rows.begin(), row.rows.end());
  }
  for (const NotShown& left : not_shown()) {
    EXPECT_FALSE(left.why.empty());
    excused.insert(left.rows.begin(), left.rows.end());
    std::printf("not shown: %s: %s\n", fmt::format("{}", fmt::join(left.rows, ",")).c_str(), left.why.c_str());
  }
  for (int row = 1; row <= kRows; ++row) EXPECT_NE(shown.count(row), excused.count(row)) << "row " << row;
}

}  // namespace
}  // namespace aerie
