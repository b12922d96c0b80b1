// What a training run tells: a line for people, metrics.jsonl for programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "train/validation.h"

namespace aerie::train {

/// One optimiser step.
struct StepReport {
  int64_t step = 0, total_steps = 0, epoch = 0;
  double loss = 0;               // weighted over the unrolled steps
  std::vector<double> accuracy;  // per unrolled step, targets outside the draft vocabulary counted as misses
  double learning_rate = 0, gradient_norm = 0;
  int64_t tokens = 0;            // of the run so far
  double tokens_per_second = 0;  // of the run, validation not counted
  double matmul_share = 0;       // of the matmul ceiling (ceiling.h), over the steps since the program was started
  double progress = 0;           // of the run, 0 to 1
  double elapsed_seconds = 0;    // of the run, validation and earlier parts of a resumed run included
};

/// What a run will take, by its first steps.
struct Plan {
  int64_t steps = 0, validations = 0;
  double tokens = 0, tokens_per_second = 0;
  double generated_per_second = 0;  // of answers that are made for the run; 0: they are there
  double validation_seconds = 0;    // of all of them
  double checkpoint_bytes = 0, state_bytes = 0;
};
void tell(const Plan& plan, double time_limit_minutes);

/// "58 % of the matmul ceiling"
std::string share_text(double matmul_share);

/// "1h05m" or "3m20s".
std::string duration(double seconds);

/// The most memory that this process has held; 0 where the system does not say.
double peak_memory_gib();

/// Appends one JSON object per line to `path`; on a terminal the step line is rewritten in place, elsewhere one is printed
/// every few seconds. Not thread-safe.
class Progress {
 public:
  explicit Progress(std::string path) : path_(std::move(path)) {}
  Status step(const StepReport& report);
  const std::string& path() const { return path_; }
  Status validation(int64_t step, int64_t tokens, const Validation& validation, int trained_steps, bool best);
  /// Ends the line that step() keeps rewriting.
  void finish_line();

 private:
  Status append(const std::string& line);

  std::string path_;
  std::chrono::steady_clock::time_point last_line_{};
  bool line_open_ = false;
};

}  // namespace aerie::train
