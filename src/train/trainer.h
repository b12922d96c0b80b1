// The training run: data in, the best drafter of the run out.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "eagle3/draft_spec.h"
#include "train/batch.h"

namespace aerie::train {

/// How the draft head is treated. All but kFree start from the target's output rows.
enum class HeadMode {
  kWarm,    // trained at a tenth of the learning rate
  kFrozen,  // kept
  kFree,    // drawn at random, trained at the full rate
};

/// The type that matrices are multiplied in; everything else is float32, and so are the weights that are trained.
enum class MatmulPrecision { kAuto, kBf16, kFloat32 };

/// kMuon: for the matrices but the head; AdamW for the rest.
enum class Optimizer { kAdamW, kMuon };

struct TrainOptions {
  std::vector<std::string> data;  // folders of traces, of Aerie or other makers (formats/trace_source.h)
  /// Prompts that the target answers while it is trained for, instead of stored answers; `data` then gives the settings, the draft
  /// vocabulary and what is judged by (stream.h).
  std::string prompts;
  int64_t buffer_mb = 256;  // of states that wait to be trained on
  std::string token_rows;   // the masks of a speculators folder, if not beside it
  std::string out;
  std::string target;     // GGUF file, or a folder of Hugging Face
  std::vector<int> taps;  // of the captured boundaries, in the order of the feature; empty: all. Of other makers' states: what they are
  std::optional<int> teacher;  // the captured boundary that the teacher's head reads; none: N, the only right one

  /// A drafter to go on from, of any dialect: its weights, its draft vocabulary and every field of its forward; the taps and the fields
  /// below, up to draft_vocab, are then its own.
  std::string from;
  FeatureNorm feature_norm = FeatureNorm::kPerTap;
  Feedback feedback = Feedback::kPostNorm;
  bool norm_before_residual = false;
  HeadMode head = HeadMode::kWarm;
  int draft_vocab = 8192;
  std::optional<double> draft_coverage;  // the share of the answers' tokens that the draft vocabulary covers, in place of its size

  int ttt_steps = 3;
  Loss loss = Loss::kKl;
  double teacher_temperature = 1.0;
  Optimizer optimizer = Optimizer::kMuon;
  double step_decay = 0.8;
  double noise = 0;  // see Draws
  int anchors = 0;
  int64_t epochs = 5;
  int64_t max_steps = 0;          // 0 = no limit
  double time_limit_minutes = 0;  // 0 = no limit
  int64_t tokens_per_step = 512;
  int row_length = 4096;
  double learning_rate = 2e-3;
  int64_t warmup_steps = 50;
  uint64_t seed = 1;

  double holdout = 0.02;       // below 1 a share of the conversations, otherwise their number
  int64_t eval_every = 0;      // steps; 0 = ten times in the run
  int threads = 0;             // 0 = all
  std::string device = "cpu";  // or "cuda", "cuda:1": where the weights are trained; validation is done by the CPU, as it serves
  MatmulPrecision precision = MatmulPrecision::kAuto;
  int patience = 0;   // validations without a better one after which the run ends; 0 = never
  bool plan = false;  // tell what the run would take, and leave nothing
  bool resume = false;
  std::string report;             // the page of the run (training_report.h) is kept in this file; empty: there is none
  int rank_timeout_seconds = 30;  // of several processes (ranks.h), one that is silent for so long is lost
};

/// Trains and leaves in `out` the checkpoint with the highest acceptance length on the held-out conversations (the last one
/// where none are held out), metrics.jsonl and training_state.safetensors. When `stop` becomes true the running step is
/// finished and saved, and the result is kCancelled. The same options, data, threads and machine give the same weights.
Status train(const TrainOptions& options, const std::atomic<bool>& stop);

}  // namespace aerie::train
