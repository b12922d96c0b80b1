#include "train/training_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/file_io.h"
#include "doctor/training_check.h"
#include "formats/json_text.h"
#include "train/learning_curve.h"

namespace aerie::train {
namespace {

using nlohmann::json;

constexpr size_t kMostPoints = 60;  // of a curve: what a page's width can tell apart
constexpr uint64_t kMostLog = uint64_t{4} << 30;
constexpr double kAhead[] = {2, 4};  // times the tokens

std::optional<double> number(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? std::optional(it->get<double>()) : std::nullopt;
}

/// Whether `key` is a list of numbers, which `out` then has.
bool read_numbers(const json& object, const char* key, std::vector<double>& out) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array() || !std::all_of(it->begin(), it->end(), [](const json& v) { return v.is_number(); }))
    return false;
  out = it->get<std::vector<double>>();
  return true;
}

std::optional<TrainingLog::Step> read_step(const json& line, int64_t step) {
  const auto loss = number(line, "loss"), rate = number(line, "learning_rate"), norm = number(line, "gradient_norm"),
             speed = number(line, "tokens_per_second");
  TrainingLog::Step out{step, loss.value_or(0), rate.value_or(0), norm.value_or(0), speed.value_or(0), {}, {}, {}, {}};
  if (!loss || !rate || !norm || !speed || !read_numbers(line, "accuracy", out.accuracy)) return std::nullopt;
  out.epoch = number(line, "epoch");
  out.tokens = number(line, "tokens");
  out.matmul_share = number(line, "matmul_share");
  return out;
}

std::optional<TrainingLog::Validation> read_validation(const json& line, int64_t step) {
  const json& told = line["validation"];
  TrainingLog::Validation out{step, number(line, "tokens"), {}, {}, 0};
  if (!told.is_object() || !read_numbers(told, "walk_acceptance_length", out.lengths) ||
      !read_numbers(told, "conditional", out.conditional) || !number(told, "coverage"))
    return std::nullopt;
  out.coverage = *number(told, "coverage");
  return out;
}

/// The log again, of the lines that count, as far as judge_training_log() reads it.
std::string text_of(const TrainingLog& log, int trained_steps) {
  std::string out;
  size_t told = 0;
  const auto tell_until = [&](int64_t step) {
    for (; told < log.steps.size() && log.steps[told].step <= step; ++told)
      out += json{{"step", log.steps[told].step}, {"loss", log.steps[told].loss}}.dump() + "\n";
  };
  for (const TrainingLog::Validation& v : log.validations) {
    tell_until(v.step);
    // It judges by the last one: at the draft length that the drafter is trained for, as the checkpoint is chosen.
    const size_t shown = std::min(v.lengths.size(), static_cast<size_t>(trained_steps));
    const std::vector<double> lengths(v.lengths.begin(), v.lengths.begin() + static_cast<std::ptrdiff_t>(shown));
    out += json{{"step", v.step}, {"validation", {{"walk_acceptance_length", lengths}}}}.dump() + "\n";
  }
  return out;
}

/// Neighbours that make one point; the last of each names it.
size_t bin_width(size_t count, size_t most) { return std::max<size_t>(1, (count + most - 1) / most); }
template <class T>
std::vector<T> last_of_bins(const std::vector<T>& all, size_t most) {
  std::vector<T> out;
  const size_t width = bin_width(all.size(), most);
  for (size_t begin = 0; begin < all.size(); begin += width) out.push_back(all[std::min(begin + width, all.size()) - 1]);
  return out;
}

/// "1.2 M"
std::string tokens_text(double tokens) {
  return tokens >= 1e6   ? fmt::format("{:.2f} M", tokens / 1e6)
         : tokens >= 1e4 ? fmt::format("{:.0f} k", tokens / 1e3)
                         : fmt::format("{:.0f}", tokens);
}

ReportSection section_of(const char* name, std::string title, std::vector<std::string> lines = {}) {
  return {name, std::move(title), std::move(lines), json::object(), {}};
}

ReportSection describe_run(const TrainingRun& run, const TrainingLog& log) {
  ReportSection out = section_of("training", "what is trained", run.facts);
  if (log.unreadable > 0) out.lines.push_back(fmt::format("{} lines of the log cannot be read and are left out", log.unreadable));
  out.lines.push_back("");
  for (const auto& [key, value] : run.recipe.items())
    out.lines.push_back(fmt::format("{:<22} {}", key, value.is_string() ? value.get<std::string>() : value.dump()));
  return out;
}

/// A curve over the steps for each figure; points that a part of the log does not have are left open.
class StepCharts {
 public:
  explicit StepCharts(const TrainingLog& log) : log_(log) {
    std::vector<int64_t> steps;
    for (const TrainingLog::Step& s : log.steps) steps.push_back(s.step);
    for (const int64_t step : last_of_bins(steps, kMostPoints)) labels_.push_back(std::to_string(step));
  }

  Chart chart(const char* name, std::string title, bool percent = false) const {
    return {name, std::move(title), labels_, {}, percent, false, true};
  }
  template <class Figure>
  ChartSeries series(const std::string& name, const Figure& figure) const {
    std::vector<double> values;
    for (const TrainingLog::Step& s : log_.steps) values.push_back(figure(s));
    ChartSeries out{name, {}};
    for (const double value : binned(values, kMostPoints))
      out.points.push_back(std::isnan(value) ? std::nullopt : std::optional(Interval{value, value, value}));
    return out;
  }

 private:
  const TrainingLog& log_;
  std::vector<std::string> labels_;
};

ReportSection describe_steps(const TrainingRun& run, const TrainingLog& log) {
  const StepCharts charts(log);
  ReportSection out = section_of("steps", "over the optimiser steps");
  const size_t width = bin_width(log.steps.size(), kMostPoints);
  if (log.steps.empty()) out.lines.push_back("no step was done yet");
  if (width > 1) out.lines.push_back(fmt::format("each point is the mean of {} steps and stands at the last of them", width));
  const auto add = [&](const char* name, const char* title, bool percent, const auto& figure) {
    out.charts.push_back(charts.chart(name, title, percent));
    out.charts.back().series.push_back(charts.series(title, figure));
  };
  using Step = TrainingLog::Step;
  add("loss", "loss, weighted over the unrolled steps", false, [](const Step& s) { return s.loss; });
  Chart accuracy = charts.chart("accuracy", "accuracy of each unrolled step, on the conversations trained on", true);
  for (size_t i = 0; i < static_cast<size_t>(run.trained_steps); ++i) {
    accuracy.series.push_back(
        charts.series(fmt::format("step {}", i + 1), [&](const Step& s) { return i < s.accuracy.size() ? s.accuracy[i] : NAN; }));
  }
  out.charts.push_back(std::move(accuracy));
  add("gradient_norm", "norm of the gradient, before it is clipped", false, [](const Step& s) { return s.gradient_norm; });
  add("learning_rate", "learning rate", false, [](const Step& s) { return s.learning_rate; });
  add("tokens_per_second", "tokens/s of the run so far, validation not counted", false, [](const Step& s) { return s.tokens_per_second; });
  add("matmul_share", "share of the matmul ceiling since the program was started", true,
      [](const Step& s) { return s.matmul_share.value_or(NAN); });
  if (run.matmul_ceiling > 0) {
    out.lines.push_back(
        fmt::format("matmul ceiling {:.3g} GFLOP/s: the fastest product of the drafter's own size that this machine made "
                    "before the run",
                    run.matmul_ceiling / 1e9));
    out.lines.push_back(
        "a step's share counts every trained matrix forward and backward, the head over the rows with a loss and the teacher's;");
    out.lines.push_back("not the products of attention nor the optimiser's");
  }
  return out;
}

ReportSection describe_validations(const TrainingLog& log) {
  ReportSection out = section_of("validations", "on the held-out conversations");
  if (log.validations.empty()) {
    out.lines.push_back("no validation was made yet");
    return out;
  }
  const std::vector<TrainingLog::Validation> shown = last_of_bins(log.validations, kMostPoints);
  Chart length{"acceptance_length", "acceptance length at each draft length K", {}, {}},
      by_step{"conditional", "drafts accepted of those whose earlier ones all were, by step", {}, {}, true};
  length.curve = by_step.curve = true;
  const auto series = [&](const std::string& name, const auto& figures, size_t i) {
    ChartSeries line{name, {}};
    for (const TrainingLog::Validation& v : shown) {
      const std::vector<double>& all = figures(v);
      line.points.push_back(i < all.size() ? std::optional(Interval{all[i], all[i], all[i]}) : std::nullopt);
    }
    return line;
  };
  const auto lengths = [](const auto& v) -> const std::vector<double>& { return v.lengths; };
  const auto conditional = [](const auto& v) -> const std::vector<double>& { return v.conditional; };
  for (size_t i = 0; i < shown.back().lengths.size(); ++i) length.series.push_back(series(fmt::format("K = {}", i + 1), lengths, i));
  for (size_t i = 0; i < shown.back().conditional.size(); ++i)
    by_step.series.push_back(series(fmt::format("step {}", i + 1), conditional, i));
  ChartSeries covered{"coverage", {}};
  for (const TrainingLog::Validation& v : shown) {
    length.labels.push_back(fmt::format("step {}", v.step));
    covered.points.push_back(Interval{v.coverage, v.coverage, v.coverage});
  }
  by_step.labels = length.labels;
  by_step.series.push_back(std::move(covered));
  const double coverage = log.validations.back().coverage;
  out.lines.push_back(
      fmt::format("coverage {:.1f} %: the share of the answers' tokens inside the draft vocabulary, and with that about the most that the "
                  "first draft can reach",
                  100 * coverage));
  out.charts = {std::move(length), std::move(by_step)};
  return out;
}

/// Tokens that were new: those of the first epoch, which the log knows better than whoever had to guess the length of answers.
double new_tokens(const TrainingRun& run, const TrainingLog& log) {
  const bool repeats = !log.steps.empty() && log.steps.back().epoch.value_or(0) > 0;
  double out = 0;
  for (const TrainingLog::Step& s : log.steps) {
    if (s.epoch == 0.0 && s.tokens) out = *s.tokens;
  }
  return repeats && out > 0 ? out : std::max(out, run.data_tokens);
}

std::vector<CurvePoint> curve_points(const TrainingLog& log, int trained_steps) {
  std::vector<CurvePoint> out;
  const size_t place = static_cast<size_t>(trained_steps) - 1;
  for (const TrainingLog::Validation& v : log.validations) {
    if (v.tokens && place < v.lengths.size() && *v.tokens > (out.empty() ? 0.0 : out.back().tokens))
      out.push_back({*v.tokens, v.lengths[place]});
  }
  return out;
}

ReportSection describe_learning_curve(const TrainingRun& run, const std::vector<CurvePoint>& points, double fresh, double most) {
  ReportSection out =
      section_of("learning_curve", fmt::format("held-out acceptance length at K = {} against the tokens trained on", run.trained_steps));
  const std::vector<CurvePoint> shown = last_of_bins(points, kMostPoints);
  Chart chart{"learning_curve", "as measured, and the fitted curve with its 95 % band up to four times the tokens", {}, {}};
  chart.curve = true;
  ChartSeries measured{"measured", {}}, fitted{"fitted", {}};
  for (const CurvePoint& p : shown) {
    chart.labels.push_back(tokens_text(p.tokens));
    measured.points.push_back(Interval{p.length, p.length, p.length});
  }
  const auto curve = LearningCurve::fit(points, most);
  if (curve) {
    for (const CurvePoint& p : shown) fitted.points.push_back(curve->at(p.tokens));
    const double last = points.back().tokens;
    for (const double times : kAhead) {
      chart.labels.push_back(tokens_text(times * last));
      measured.points.push_back(std::nullopt);
      fitted.points.push_back(curve->at(times * last));
      out.lines.push_back(fmt::format("at {:.0f} x the tokens ({}): {}, a gain of {} over the curve's value now", times,
                                      tokens_text(times * last), fitted.points.back()->text(), curve->gain(last, times * last).text()));
    }
    out.lines.push_back("");
    out.lines.push_back(
        fmt::format("The curve is a - b * tokens^-c by least squares over c from {:.2f} to {:.0f}: a = {:.3f}, c = {:.2f}; the "
                    "validations scatter by {:.3f} around it.",
                    LearningCurve::kLeastExponent, LearningCurve::kMostExponent, curve->limit(), curve->exponent(), curve->scatter()));
    out.lines.push_back(
        "The band holds every such curve that the validations do not exclude at 95 %, if they scatter independently around one.");
    out.lines.push_back("It is the band of the curve: a single validation scatters around that.");
  } else {
    out.lines.push_back(
        fmt::format("no curve: {} validations at different numbers of tokens are needed, there are {}", kLeastValidations, points.size()));
  }
  out.lines.push_back(
      "Not in it: which conversations are held out, as they are the same at every validation; and the learning rate, whose cosine");
  out.lines.push_back("lifts the last validations. A longer run has a longer cosine, and is not this one gone on with.");
  out.lines.push_back(fmt::format(
      "The first {} tokens are new, later ones repeat them: the curve goes on as the run did, with no new data.", tokens_text(fresh)));
  chart.series = {std::move(measured)};
  if (curve) chart.series.push_back(std::move(fitted));
  const std::vector<std::string> table = chart_lines(chart);
  if (!points.empty()) {
    out.lines.push_back("");
    out.lines.insert(out.lines.end(), table.begin(), table.end());
  }
  out.charts = {std::move(chart)};
  return out;
}

}  // namespace

TrainingLog read_training_log(std::string_view text) {
  TrainingLog out;
  // The steps and validations of a part that the run lost when it was stopped.
  const auto go_back = [&](int64_t first_step, int64_t first_validation) {
    while (!out.steps.empty() && out.steps.back().step >= first_step) out.steps.pop_back();
    while (!out.validations.empty() && out.validations.back().step >= first_validation) out.validations.pop_back();
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const auto parsed = parse_json(line);
    const auto step = parsed.ok() && parsed->is_object() ? number(*parsed, "step") : std::nullopt;
    if (step && parsed->contains("validation")) {
      if (auto validation = read_validation(*parsed, static_cast<int64_t>(*step))) {
        go_back(validation->step + 1, validation->step);
        out.validations.push_back(std::move(*validation));
        continue;
      }
    } else if (step) {
      if (auto done = read_step(*parsed, static_cast<int64_t>(*step))) {
        go_back(done->step, done->step);
        out.steps.push_back(std::move(*done));
        continue;
      }
    }
    ++out.unreadable;
  }
  return out;
}

std::vector<double> binned(const std::vector<double>& values, size_t most) {
  std::vector<double> out;
  const size_t width = bin_width(values.size(), most);
  for (size_t begin = 0; begin < values.size(); begin += width) {
    const size_t end = std::min(begin + width, values.size());
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += values[i];
    out.push_back(sum / static_cast<double>(end - begin));
  }
  return out;
}

Report training_report(const TrainingRun& run, const TrainingLog& log) {
  Report out;
  const std::vector<CurvePoint> points = curve_points(log, run.trained_steps);
  const double most = run.trained_steps + 1;
  out.add(judge_learning_curve(points, new_tokens(run, log), most));
  if (const auto judged = judge_training_log(text_of(log, run.trained_steps)); judged.ok()) {
    // Its notes say how the last two validations compare; that is said above, with an interval.
    for (const Finding& finding : *judged) {
      if (finding.severity != Severity::kNote) out.findings.push_back(finding);
    }
  }
  out.add(describe_run(run, log));
  out.add(describe_learning_curve(run, points, new_tokens(run, log), most));
  out.add(describe_validations(log));
  out.add(describe_steps(run, log));
  return out;
}

Status write_training_report(const std::string& path, const TrainingRun& run, const std::string& metrics) {
  std::string text;
  std::error_code error;
  if (std::filesystem::exists(metrics, error)) {
    AERIE_ASSIGN(text, read_file(metrics, kMostLog));
  }
  return write_file_atomically(path, training_report(run, read_training_log(text)).html("training a drafter for " + run.target));
}

}  // namespace aerie::train
