// The page of a training run: what is trained, how it goes, and what a longer run or more data would bring.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "doctor/report.h"

namespace aerie::train {

/// metrics.jsonl as far as it counts. Where a line goes back to an earlier step the run was resumed there, and what it had lost is left
/// out.
struct TrainingLog {
  struct Step {
    int64_t step = 0;
    double loss = 0, learning_rate = 0, gradient_norm = 0, tokens_per_second = 0;
    std::vector<double> accuracy;
    std::optional<double> epoch, tokens, matmul_share;  // logs before these were written have none
  };
  struct Validation {
    int64_t step = 0;
    std::optional<double> tokens;
    std::vector<double> lengths;      // [K-1] acceptance length of the walk
    std::vector<double> conditional;  // per step
    double coverage = 0;
  };
  std::vector<Step> steps;
  std::vector<Validation> validations;
  int64_t unreadable = 0;  // lines, such as one that a full disk cut
};
TrainingLog read_training_log(std::string_view text);

/// What the trainer knows besides.
struct TrainingRun {
  std::string target;
  nlohmann::json recipe;
  int trained_steps = 0;                // unrolled
  double data_tokens = 0;               // of one epoch
  double matmul_ceiling = 0;            // operations a second; 0: not measured
  std::vector<std::string> facts = {};  // lines: where it stands
};

/// Means of at most `most` runs of neighbours that are as long as each other, the last one excepted.
std::vector<double> binned(const std::vector<double>& values, size_t most);

Report training_report(const TrainingRun& run, const TrainingLog& log);

/// The page over the log at `metrics` (none yet: an empty one), put in the place of `path` at once.
Status write_training_report(const std::string& path, const TrainingRun& run, const std::string& metrics);

}  // namespace aerie::train
