#include "doctor/report.h"

#include <algorithm>

#include "eagle3/finding_text.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

/// A value, or null.
template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string percents(const std::vector<double>& shares) {
  std::vector<std::string> out;
  for (const double share : shares) out.push_back(fmt::format("{:.1f} %", 100 * share));
  return fmt::format("{}", fmt::join(out, ", "));
}

/// "1 draft", "3 drafts".
std::string drafts_text(int k) { return fmt::format("{} draft{}", k, k == 1 ? "" : "s"); }

}  // namespace

void Report::add(const std::vector<Finding>& more) {
  for (const Finding& finding : more) {
    const bool there =
        std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return f.code == finding.code && f.text == finding.text; });
    if (!there) findings.push_back(finding);
  }
}

std::vector<ReportSection> Report::all_sections() const {
  std::vector<ReportSection> out = sections;
  if (accepted_by_step.empty()) return out;
  Chart chart{"accepted_by_step", "cycles that accept the draft of each step", {}, accepted_by_step, true};
  size_t steps = 0;
  for (const ChartSeries& series : accepted_by_step) steps = std::max(steps, series.points.size());
  for (size_t s = 1; s <= steps; ++s) chart.labels.push_back(std::to_string(s));
  out.push_back({"acceptance_by_step",
                 "cycles that accept the draft of each step (one plus their sum is the acceptance length)",
                 chart_lines(chart),
                 Json::object(),
                 {chart}});
  return out;
}

std::string Report::text() const {
  std::string out;
  if (findings.empty()) out += fmt::format("{}\n", kNothingFound);
  for (const Finding& finding : ranked(findings)) out += finding_text(finding) + "\n";
  for (const ReportSection& section : all_sections()) {
    out += fmt::format("\n{}\n", section.title);
    for (const std::string& line : section.lines) out += "  " + line + "\n";
  }
  return out;
}

Json Report::json() const {
  Json out = {{"findings", findings_json(ranked(findings))}};
  for (const ReportSection& section : all_sections()) {
    // Several logs make several sections of one name.
    if (!out.contains(section.name)) out[section.name] = Json::array();
    Json& data = out[section.name].emplace_back(section.data);
    for (const Chart& chart : section.charts) data["charts"].push_back(chart_json(chart));
  }
  return out;
}

ReportSection describe(const EngineSetup& setup) {
  ReportSection out{"flags", "in force by the flags of " + setup.engine.text(), {}, Json::object()};
  if (!setup.starts) out.lines.push_back("the engine does not start with these flags");
  if (!setup.speculates) out.lines.push_back("no speculation");
  Json settings = Json::array();
  for (const Setting& s : setup.settings) {
    out.lines.push_back(fmt::format("{:<32} {:<12} {}{}", s.name, s.in_force,
                                    s.asked.empty()         ? "not given"
                                    : s.asked == s.in_force ? "as asked"
                                                            : "asked: " + s.asked,
                                    s.why.empty() ? "" : "; " + s.why));
    settings.push_back({{"name", s.name}, {"asked", s.asked}, {"in_force", s.in_force}, {"why", s.why}});
  }
  if (setup.speculates && setup.draft_tokens && setup.depth) {
    const bool tree = *setup.depth != *setup.draft_tokens;
    out.lines.push_back(fmt::format("=> {}{} per verify{}, so an acceptance length from 1 to {}", setup.draft_tokens_vary ? "at most " : "",
                                    drafts_text(*setup.draft_tokens),
                                    tree ? fmt::format(" in a tree of depth {}", *setup.depth) : std::string(), *setup.depth + 1));
  }
  if (!setup.write_instead.empty()) out.lines.push_back(fmt::format("to say what is in force: {}", fmt::join(setup.write_instead, " ")));
  for (const std::string& caveat : setup.engine.caveats) out.lines.push_back("note: " + caveat);
  out.data = {{"engine", setup.engine.text()},
              {"caveats", setup.engine.caveats},
              {"starts", setup.starts},
              {"speculates", setup.speculates},
              {"algorithm", setup.algorithm},
              {"drafter", setup.drafter},
              {"draft_tokens", or_null(setup.draft_tokens)},
              {"depth", or_null(setup.depth)},
              {"draft_tokens_vary", setup.draft_tokens_vary},
              {"faked_acceptance", setup.faked_acceptance},
              {"settings", settings},
              {"write_instead", setup.write_instead}};
  return out;
}

ReportSection describe(const MetricsReading& reading, const std::string& condition) {
  const Acceptance& a = reading.acceptance;
  ReportSection out{"metrics",
                    fmt::format("acceptance as the engine states it{} ({})", condition.empty() ? "" : ", " + condition, reading.source),
                    {},
                    Json::object()};
  if (a.length) {
    const auto error = a.length_error();
    out.lines.push_back(fmt::format("acceptance length {:.3f}{} (tokens per verify, bonus token included)", *a.length,
                                    error ? fmt::format(" +- {:.3f} (standard error at most)", *error) : std::string()));
  }
  if (a.rate) out.lines.push_back(fmt::format("acceptance rate   {:.3f} (accepted / drafted)", *a.rate));
  if (a.k) out.lines.push_back(fmt::format("{} per verify", drafts_text(*a.k)));
  if (a.verifies || a.accepted || a.drafted) {
    const auto text = [](const std::optional<uint64_t>& value) { return value ? std::to_string(*value) : std::string("?"); };
    out.lines.push_back(fmt::format("{} verifies, {} drafted, {} accepted", text(a.verifies), text(a.drafted), text(a.accepted)));
  }
  if (!a.unconditional.empty()) {
    out.lines.push_back("by step, unconditional: " + percents(a.unconditional));
    out.lines.push_back("by step, conditional:   " + percents(a.conditional));
  }
  out.lines.push_back("read as: " + reading.definition);
  out.data = {{"condition", condition},
              {"source", reading.source},
              {"definition", reading.definition},
              {"draft_tokens", or_null(a.k)},
              {"acceptance_length", or_null(a.length)},
              {"acceptance_length_error", or_null(a.length_error())},
              {"acceptance_rate", or_null(a.rate)},
              {"verifies", or_null(a.verifies)},
              {"drafted", or_null(a.drafted)},
              {"accepted", or_null(a.accepted)},
              {"unconditional", a.unconditional},
              {"conditional", a.conditional},
              {"accepted_histogram", a.histogram},
              {"captured_layers", reading.captured_layers}};
  return out;
}

ReportSection describe(const CostCurve& costs, const Acceptance& a, std::vector<Finding>& findings) {
  ReportSection out{"economics", "what drafting is worth at these costs", {}, Json::object()};
  const double plain = 1000.0 * tokens_per_second(costs, 0, 1.0);
  out.lines.push_back(fmt::format("without drafts {:.1f} tokens/s", plain));
  Json table = Json::array();
  const int most = std::max({a.k.value_or(0), static_cast<int>(a.conditional.size()), costs.measured_rows() - 1});
  for (int k = 1; k <= std::min(most, 16); ++k) {
    table.push_back({{"draft_tokens", k}, {"break_even_length", break_even_length(costs, k)}});
    out.lines.push_back(fmt::format("{:<10} pay from an acceptance length of {:.3f} on{}", drafts_text(k), break_even_length(costs, k),
                                    k + 1 > costs.measured_rows() ? " (beyond the measured rows)" : ""));
  }
  out.data = {{"plain_tokens_per_second", plain}, {"break_even", table}};
  std::optional<double> speed;
  if (a.k && a.length) {
    speed = 1000.0 * tokens_per_second(costs, *a.k, *a.length);
    out.lines.push_back(
        fmt::format("{} at acceptance length {:.3f}: {:.1f} tokens/s, {:.2f} x", drafts_text(*a.k), *a.length, *speed, *speed / plain));
    out.data["tokens_per_second"] = *speed;
    if (*speed < plain) {
      findings.push_back(
          {Severity::kError, "slower-than-plain",
           fmt::format(
               "drafting costs more than it brings: {} per verify give an acceptance length of {:.3f}, {:.3f} is needed to break even",
               drafts_text(*a.k), *a.length, break_even_length(costs, *a.k)),
           "draft fewer tokens, or none"});
    }
  }
  if (!a.conditional.empty()) {
    const DraftChoice best = best_draft_tokens(costs, a.conditional, static_cast<int>(a.conditional.size()));
    const double best_speed = 1000.0 * best.tokens_per_second;
    out.lines.push_back(fmt::format("best: {} ({:.1f} tokens/s, acceptance length {:.3f}), of those whose acceptance is known",
                                    drafts_text(best.k), best_speed, best.length));
    out.data["best"] = {{"draft_tokens", best.k}, {"acceptance_length", best.length}, {"tokens_per_second", best_speed}};
    if (speed && best.k != *a.k && best_speed > 1.03 * *speed) {
      findings.push_back(
          {Severity::kWarning, "better-k",
           fmt::format("{} would give {:.1f} tokens/s, {} give {:.1f}", drafts_text(best.k), best_speed, drafts_text(*a.k), *speed),
           fmt::format("draft {} token{}", best.k, best.k == 1 ? "" : "s")});
    }
  }
  return out;
}

}  // namespace aerie
