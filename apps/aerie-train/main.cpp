// aerie-train: trains a drafter on captured states. The only program that links LibTorch; `aerie train` runs it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <map>
#include <string>

#include "base/log.h"
#include "engine/runtime.h"
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

/// An option whose values have names. Its default in the help is the name of the value that it has.
template <class T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& value, const std::string& help, const std::map<std::string, T>& names) {
  const auto at = std::find_if(names.begin(), names.end(), [&](const auto& named) { return named.second == value; });
  return app.add_option(name, value, help)->transform(CLI::CheckedTransformer(names))->default_str(at->first);
}

int exit_code(const aerie::Status& status) { return status.ok() ? 0 : status.code() == aerie::StatusCode::kInvalidArgument ? 2 : 1; }

}  // namespace

int main(int argc, char** argv) {
  using namespace aerie::train;
  spin_briefly(argv);
  TrainOptions o;
  bool verbose = false;
  CLI::App app{"Trains an EAGLE-3 drafter on the states of its target. It can be interrupted (Ctrl-C) and goes on with --resume."};
  app.option_defaults()->always_capture_default();

  app.add_option(
         "--data", o.data,
         "folder of traces: of aerie capture, speculators, SpecForge or Model-Optimizer; may be given several times (same target, taps and "
         "template)")
      ->required();
  auto* prompts = app.add_option(
      "--prompts", o.prompts,
      "prompts (JSON lines, plain or gzip) that the target answers while the drafter is trained, instead of stored answers: states "
      "are trained on and dropped. --data then is what the run is judged by, what gives the draft vocabulary, and what the "
      "prompts are answered like; prompts of it are left out");
  app.add_option("--buffer", o.buffer_mb, "MiB of states that may wait to be trained on")->needs(prompts)->check(CLI::Range(1, 1 << 20));
  app.add_option(
      "--trace-rows", o.token_rows,
      "the rows of a speculators folder, whose states have no mask, where they do not lie beside it: a folder that datasets saved, or "
      "JSON lines of input_ids and loss_mask");
  app.add_option("--out", o.out, "folder for the drafter, metrics.jsonl and the state to resume from")->required();
  app.add_option(
         "-m,--model,--target", o.target,
         "the target, of which the embedding, the final norm and the output rows are read: a GGUF file, the name of a known model, or "
         "a folder of Hugging Face with config.json and the safetensors shards that hold these three")
      ->required();
  app.add_flag("--resume", o.resume, "go on from the state in --out; without one there, start anew");
  auto* plan =
      app.add_flag("--plan", o.plan, "tell the time, memory and disk that the run would take, by its first steps; nothing is written");
  app.add_option("--report", o.report,
                 "HTML file that is written anew at every validation and at the end: curves of the whole run, and what more data or more "
                 "epochs would bring")
      ->excludes(plan);
  app.add_option("--seed", o.seed, "of the initial weights, the order of the data and what noise and anchors draw");

  auto* length = app.add_option_group("Length of the run");
  length->add_option("--epochs", o.epochs, "passes over the data")->check(CLI::PositiveNumber);
  length->add_option("--max-steps", o.max_steps, "optimiser steps at most; 0 = no limit")->check(CLI::NonNegativeNumber);
  length->add_option("--time-limit", o.time_limit_minutes, "minutes; the learning rate finishes its cosine in time; 0 = no limit")
      ->check(CLI::NonNegativeNumber);

  auto* drafter = app.add_option_group("The drafter");
  auto* from = drafter->add_option("--from", o.from,
                                   "a drafter to go on from, of any dialect: its weights, draft vocabulary, taps and norms are kept");
  drafter
      ->add_option(
          "--taps", o.taps,
          "boundaries that it reads, in order, of those that the data holds (default: all); of other makers' data, which do not say "
          "it: the boundaries that all of their states are, with --from too")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  drafter
      ->add_option(
          "--teacher", o.teacher,
          "boundary over which the target's head is taken for its word (default: the one after the last block, the only right one; others "
          "show what a trainer does that mistakes a late block for it)")
      ->check(CLI::NonNegativeNumber);
  auto* vocab = drafter->add_option("--draft-vocab", o.draft_vocab, "size of the draft vocabulary: the answers' most frequent tokens")
                    ->check(CLI::PositiveNumber)
                    ->excludes(from);
  drafter
      ->add_option("--draft-coverage", o.draft_coverage,
                   "in place of its size, the share of the training answers' tokens that it covers, e.g. 0.98: the smallest that does, "
                   "rounded up to a multiple of 64")
      ->check(CLI::Range(0.01, 1.0))
      ->excludes(from)
      ->excludes(vocab);
  add_choice<aerie::FeatureNorm>(
      *drafter, "--feature-norm", o.feature_norm, "RMSNorm before fc: none, over the concat, or one per tap",
      {{"none", aerie::FeatureNorm::kNone}, {"concat", aerie::FeatureNorm::kConcat}, {"per-tap", aerie::FeatureNorm::kPerTap}})
      ->excludes(from);
  add_choice<aerie::Feedback>(*drafter, "--feedback", o.feedback, "state fed to the next step: before or after the last norm",
                              {{"pre", aerie::Feedback::kPreNorm}, {"post", aerie::Feedback::kPostNorm}})
      ->excludes(from);
  drafter->add_flag("--norm-before-residual", o.norm_before_residual, "the residual is the normed feature")->excludes(from);
  add_choice<HeadMode>(
      *drafter, "--head", o.head,
      "warm: the target's rows, trained at 0.1 of --lr; frozen: the target's rows; free: random (with --from its own rows, "
      "free: at the full --lr)",
      {{"warm", HeadMode::kWarm}, {"frozen", HeadMode::kFrozen}, {"free", HeadMode::kFree}});

  auto* recipe = app.add_option_group("Recipe");
  recipe->add_option("--ttt-steps", o.ttt_steps, "unrolled steps: the draft length to train for")
      ->check(CLI::Range(1, aerie::train::kMaxTttSteps));
  add_choice<Loss>(
      *recipe, "--loss", o.loss,
      "of a row, against the target's distribution over the draft vocabulary: kl (whose gradient is that of soft cross entropy), "
      "or lk-hybrid, which goes over to the total variation where the two overlap",
      {{"kl", Loss::kKl}, {"lk-hybrid", Loss::kLkHybrid}});
  recipe
      ->add_option("--teacher-temperature", o.teacher_temperature,
                   "of the target's distribution; below 1 it is sharpened towards its argmax")
      ->check(CLI::Range(0.05, 10.0));
  recipe
      ->add_option("--noise", o.noise,
                   "every value of the drafter's feature is moved by a random number from -S to S, in training only; 0 = none")
      ->check(CLI::NonNegativeNumber);
  recipe
      ->add_option("--anchors", o.anchors,
                   "rows of a conversation, drawn anew in every epoch, at which the steps after the first are unrolled; 0 = all")
      ->check(CLI::NonNegativeNumber);
  add_choice<Optimizer>(*recipe, "--optimizer", o.optimizer, "muon for the matrices but the head and AdamW for the rest, or adamw for all",
                        {{"adamw", Optimizer::kAdamW}, {"muon", Optimizer::kMuon}});
  recipe->add_option("--step-decay", o.step_decay, "weight of step s is decay^s, normalised")->check(CLI::Range(0.01, 1.0));
  recipe->add_option("--tokens-per-step", o.tokens_per_step, "tokens of conversations per optimiser step")->check(CLI::PositiveNumber);
  recipe->add_option("--row-length", o.row_length, "tokens packed into one row; longer conversations are left out")
      ->check(CLI::PositiveNumber);
  recipe->add_option("--lr", o.learning_rate, "peak learning rate; a cosine takes it to a tenth")->check(CLI::PositiveNumber);
  recipe->add_option("--warmup", o.warmup_steps, "optimiser steps of linear warm-up")->check(CLI::NonNegativeNumber);

  auto* checking = app.add_option_group("Validation");
  checking
      ->add_option("--holdout", o.holdout,
                   "conversations kept for validation: a share below 1, or their number; with --prompts all of --data are")
      ->check(CLI::NonNegativeNumber)
      ->excludes(prompts);
  checking->add_option("--eval-every", o.eval_every, "optimiser steps between validations; 0 = ten in the run")
      ->check(CLI::NonNegativeNumber);
  checking->add_option("--patience", o.patience, "validations in a row without a longer acceptance length that end the run; 0 = never")
      ->check(CLI::NonNegativeNumber);

  auto* machine = app.add_option_group("Machine");
  machine->add_option("--threads", o.threads, "threads; 0 = all CPUs this process may use")->check(CLI::Range(0, 1024));
  machine->add_option("--device", o.device,
                      "where the weights are trained: cpu, cuda or cuda:NUMBER, for which a LibTorch with CUDA has to be linked");
  add_choice<MatmulPrecision>(*machine, "--precision", o.precision, "of matrix products: auto takes bf16 where the CPU has it, and on CUDA",
                              {{"auto", MatmulPrecision::kAuto}, {"bf16", MatmulPrecision::kBf16}, {"f32", MatmulPrecision::kFloat32}});
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

  const auto target = aerie::resolve_target(o.target);
  if (!target.ok()) {
    spdlog::error("{}", target.status().message());
    return exit_code(target.status());
  }
  o.target = *target;
  const aerie::Status status = train(o, stop_requested);
  if (!status.ok()) spdlog::error("{}", status.message());
  return exit_code(status);
}
