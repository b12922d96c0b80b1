// aerie-train: trains a drafter on captured states. The only program that links LibTorch; `aerie train` runs it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <climits>
#include <csignal>
#include <cstdlib>

#include "base/log.h"
#include "train/trainer.h"

namespace {

std::atomic<bool> stop_requested{false};

void request_stop(int signal) {
  stop_requested = true;
  std::signal(signal, SIG_DFL);  // a second one kills
}

/// Threads of LibTorch's OpenMP spin while they wait for each other. Where the CPUs are shared with other work, that is most of
/// the time, and a run takes ten times as long. How long they spin is read before main() begins, hence the second start.
void spin_briefly(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  char self[PATH_MAX + 1] = {};
  if (::readlink("/proc/self/exe", self, PATH_MAX) <= 0) return;
  ::setenv("GOMP_SPINCOUNT", "10000", 1);
  ::execv(self, argv);  // returns only where it failed; then the run is merely slower
}

int exit_code(const aerie::Status& status) { return status.ok() ? 0 : status.code() == aerie::StatusCode::kInvalidArgument ? 2 : 1; }

}  // namespace

int main(int argc, char** argv) {
  using namespace aerie::train;
  spin_briefly(argv);
  TrainOptions o;
  bool verbose = false;
  CLI::App app{"Trains an EAGLE-3 drafter on traces that `aerie capture` made. It can be interrupted (Ctrl-C) and goes on with --resume."};
  app.option_defaults()->always_capture_default();

  app.add_option("--data", o.data, "folder of traces; may be given several times (same target, taps and template)")->required();
  app.add_option("--out", o.out, "folder for the drafter, metrics.jsonl and the state to resume from")->required();
  app.add_option("-m,--model,--target", o.target, "the target's GGUF file: its embedding, final norm and output rows are used")->required();
  app.add_flag("--resume", o.resume, "go on from the state in --out; without one there, start anew");
  auto* plan =
      app.add_flag("--plan", o.plan, "tell the time, memory and disk that the run would take, by its first steps; nothing is written");
  app.add_option("--report", o.report,
                 "HTML file that is written anew at every validation and at the end: curves of the whole run, and what more data or more "
                 "epochs would bring")
      ->excludes(plan);
  app.add_option("--seed", o.seed, "of the initial weights and the order of the data");

  auto* length = app.add_option_group("Length of the run");
  length->add_option("--epochs", o.epochs, "passes over the data")->check(CLI::PositiveNumber);
  length->add_option("--max-steps", o.max_steps, "optimiser steps at most; 0 = no limit")->check(CLI::NonNegativeNumber);
  length->add_option("--time-limit", o.time_limit_minutes, "minutes; the learning rate finishes its cosine in time; 0 = no limit")
      ->check(CLI::NonNegativeNumber);

  auto* drafter = app.add_option_group("The drafter");
  auto* from = drafter->add_option("--from", o.from,
                                   "a drafter to go on from, of any dialect: its weights, draft vocabulary, taps and norms are kept");
  drafter->add_option("--taps", o.taps, "boundaries that it reads, in order, of those that the data holds (default: all)")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->excludes(from);
  drafter
      ->add_option(
          "--teacher", o.teacher,
          "boundary over which the target's head is taken for its word (default: the one after the last block, the only right one; others "
          "show what a trainer does that mistakes a late block for it)")
      ->check(CLI::NonNegativeNumber);
  drafter->add_option("--draft-vocab", o.draft_vocab, "size of the draft vocabulary: the answers' most frequent tokens")
      ->check(CLI::PositiveNumber)
      ->excludes(from);
  drafter->add_option("--feature-norm", o.feature_norm, "RMSNorm before fc: none, over the concat, or one per tap")
      ->transform(CLI::CheckedTransformer(std::map<std::string, aerie::FeatureNorm>{
          {"none", aerie::FeatureNorm::kNone}, {"concat", aerie::FeatureNorm::kConcat}, {"per-tap", aerie::FeatureNorm::kPerTap}}))
      ->default_str("concat")
      ->excludes(from);
  drafter->add_option("--feedback", o.feedback, "state fed to the next step: before or after the last norm")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, aerie::Feedback>{{"pre", aerie::Feedback::kPreNorm}, {"post", aerie::Feedback::kPostNorm}}))
      ->default_str("post")
      ->excludes(from);
  drafter->add_flag("--norm-before-residual", o.norm_before_residual, "the residual is the normed feature")->excludes(from);
  drafter
      ->add_option("--head", o.head,
                   "warm: the target's rows, trained at 0.1 of --lr; frozen: the target's rows; free: random (with --from its own rows, "
                   "free: at the full --lr)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, HeadMode>{{"warm", HeadMode::kWarm}, {"frozen", HeadMode::kFrozen}, {"free", HeadMode::kFree}}))
      ->default_str("warm");

  auto* recipe = app.add_option_group("Recipe");
  recipe->add_option("--ttt-steps", o.ttt_steps, "unrolled steps: the draft length to train for")
      ->check(CLI::Range(1, aerie::train::kMaxTttSteps));
  recipe
      ->add_option(
          "--loss", o.loss,
          "of a row, against the target's distribution over the draft vocabulary: kl (whose gradient is that of soft cross entropy), "
          "or lk-hybrid, which goes over to the total variation where the two overlap")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Loss>{{"kl", Loss::kKl}, {"lk-hybrid", Loss::kLkHybrid}}))
      ->default_str("kl");
  recipe
      ->add_option("--teacher-temperature", o.teacher_temperature,
                   "of the target's distribution; below 1 it is sharpened towards its argmax")
      ->check(CLI::Range(0.05, 10.0));
  recipe->add_option("--optimizer", o.optimizer, "muon for the matrices but the head and AdamW for the rest, or adamw for all")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Optimizer>{{"adamw", Optimizer::kAdamW}, {"muon", Optimizer::kMuon}}))
      ->default_str("adamw");
  recipe->add_option("--step-decay", o.step_decay, "weight of step s is decay^s, normalised")->check(CLI::Range(0.01, 1.0));
  recipe->add_option("--tokens-per-step", o.tokens_per_step, "tokens of conversations per optimiser step")->check(CLI::PositiveNumber);
  recipe->add_option("--row-length", o.row_length, "tokens packed into one row; longer conversations are left out")
      ->check(CLI::PositiveNumber);
  recipe->add_option("--lr", o.learning_rate, "peak learning rate; a cosine takes it to a tenth")->check(CLI::PositiveNumber);
  recipe->add_option("--warmup", o.warmup_steps, "optimiser steps of linear warm-up")->check(CLI::NonNegativeNumber);

  auto* checking = app.add_option_group("Validation");
  checking->add_option("--holdout", o.holdout, "conversations kept for validation: a share below 1, or their number")
      ->check(CLI::NonNegativeNumber);
  checking->add_option("--eval-every", o.eval_every, "optimiser steps between validations; 0 = ten in the run")
      ->check(CLI::NonNegativeNumber);
  checking->add_option("--patience", o.patience, "validations in a row without a longer acceptance length that end the run; 0 = never")
      ->check(CLI::NonNegativeNumber);

  auto* machine = app.add_option_group("Machine");
  machine->add_option("--threads", o.threads, "threads; 0 = all CPUs this process may use")->check(CLI::Range(0, 1024));
  machine->add_option("--precision", o.precision, "of matrix products: auto takes bf16 where the CPU has it")
      ->transform(CLI::CheckedTransformer(std::map<std::string, MatmulPrecision>{
          {"auto", MatmulPrecision::kAuto}, {"bf16", MatmulPrecision::kBf16}, {"f32", MatmulPrecision::kFloat32}}))
      ->default_str("auto");
  machine
      ->add_option("--rank-timeout", o.rank_timeout_seconds,
                   "seconds without a sign of life after which a process of several (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) is lost")
      ->check(CLI::Range(2, 86400));
  app.add_flag("--verbose", verbose, "log more");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  aerie::init_logging(verbose);
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);

  const aerie::Status status = train(o, stop_requested);
  if (!status.ok()) spdlog::error("{}", status.message());
  return exit_code(status);
}
