#include "train/progress.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace aerie::train {
namespace {

constexpr std::chrono::seconds kLineInterval{10};

std::string joined(const std::vector<double>& values, const char* separator) {
  std::string text;
  for (const double value : values) text += fmt::format("{}{:.3f}", text.empty() ? "" : separator, value);
  return text;
}

}  // namespace

std::string share_text(double matmul_share) { return fmt::format("{:.0f} % of the matmul ceiling", 100 * matmul_share); }

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole >= 3600) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}m{:02}s", whole / 60, whole % 60);
}

double peak_memory_gib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtod(line.c_str() + 6, nullptr) / (1024.0 * 1024.0);  // in kB
  }
  return 0;
}

void tell(const Plan& p, double time_limit_minutes) {
  const double training = p.tokens_per_second > 0 ? p.tokens / p.tokens_per_second : 0.0;
  const double generating = p.generated_per_second > 0 ? p.tokens / p.generated_per_second : 0.0;
  const double all = training + generating + p.validation_seconds;
  const bool limited = time_limit_minutes > 0 && 60 * time_limit_minutes < all;
  spdlog::info("time: {} for {} steps over {:.2f} M tokens at {:.0f} tokens/s, {} for {} validations{}", duration(training), p.steps,
               p.tokens / 1e6, p.tokens_per_second, duration(p.validation_seconds), p.validations,
               limited ? fmt::format("; --time-limit ends it after {:.0f} minutes", time_limit_minutes) : std::string());
  if (generating > 0) spdlog::info("and {} for the target's answers, at {:.0f} tokens/s", duration(generating), p.generated_per_second);
  spdlog::info("memory: {:.2f} GiB so far, about what the run will hold", peak_memory_gib());
  spdlog::info("disk: {:.1f} MB for the drafter, {:.0f} MB for the states to resume from", p.checkpoint_bytes / 1e6,
               3 * p.state_bytes / 1e6);
}

Status Progress::append(const std::string& line) {
  std::ofstream out(path_, std::ios::app);
  out << line << '\n';
  out.flush();
  if (!out) return io_error("{}: cannot be written; is the disk full?", path_);
  return {};
}

Status Progress::step(const StepReport& r) {
  AERIE_TRY(append(nlohmann::json{{"step", r.step},
                                  {"epoch", r.epoch},
                                  {"loss", r.loss},
                                  {"accuracy", r.accuracy},
                                  {"learning_rate", r.learning_rate},
                                  {"gradient_norm", r.gradient_norm},
                                  {"tokens", r.tokens},
                                  {"tokens_per_second", r.tokens_per_second},
                                  {"matmul_share", r.matmul_share},
                                  {"elapsed_seconds", r.elapsed_seconds}}
                       .dump()));
  const auto now = std::chrono::steady_clock::now();
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  if (!terminal && r.step != r.total_steps && now - last_line_ < kLineInterval) return {};
  last_line_ = now;
  const double remaining = r.progress <= 0 ? 0.0 : r.elapsed_seconds * (1.0 - r.progress) / r.progress;
  const int filled = static_cast<int>(r.progress * 20);
  const std::string line =
      fmt::format("[{:#<{}}{:.<{}}] step {}/{} epoch {}  loss {:.3f}  accuracy per step {}  {:.0f} tokens/s  {}  ETA {}", "", filled, "",
                  20 - filled, r.step, r.total_steps, r.epoch + 1, r.loss, joined(r.accuracy, " "), r.tokens_per_second,
                  share_text(r.matmul_share), duration(remaining));
  std::fprintf(stderr, terminal ? "\r\x1b[K%s" : "%s\n", line.c_str());
  std::fflush(stderr);
  line_open_ = terminal;
  return {};
}

void Progress::finish_line() {
  if (line_open_) std::fputc('\n', stderr);
  line_open_ = false;
}

Status Progress::validation(int64_t step, int64_t tokens, const Validation& validation, int trained_steps, bool best) {
  std::vector<double> unconditional, conditional;
  for (const StepAcceptance& s : validation.summary.steps) {
    unconditional.push_back(s.unconditional());
    conditional.push_back(s.conditional());
  }
  AERIE_TRY(append(nlohmann::json{{"step", step},
                                  {"tokens", tokens},
                                  {"validation",
                                   {{"walk_acceptance_length", validation.acceptance_lengths},
                                    {"unconditional", unconditional},
                                    {"conditional", conditional},
                                    {"coverage", validation.summary.coverage()},
                                    {"best", best}}}}
                       .dump()));
  finish_line();
  spdlog::info("step {}: held-out acceptance length {:.3f} at {} drafts{} (K = 1..{}: {}); coverage {:.1f} %", step,
               validation.acceptance_length(trained_steps), trained_steps, best ? ", the best so far" : "",
               validation.acceptance_lengths.size(), joined(validation.acceptance_lengths, " "), 100 * validation.summary.coverage());
  return {};
}

}  // namespace aerie::train
