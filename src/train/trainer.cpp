#include "train/trainer.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/file_io.h"
#include "eagle3/dialects/speculators.h"
#include "formats/safetensors.h"
#include "train/batch.h"
#include "train/ceiling.h"
#include "train/dataset_check.h"
#include "train/feed.h"
#include "train/optimizer.h"
#include "train/parameters.h"
#include "train/progress.h"
#include "train/ranks.h"
#include "train/recipe.h"
#include "train/states_check.h"
#include "train/stream.h"
#include "train/target_tensors.h"
#include "train/training_report.h"
#include "train/validation.h"

namespace aerie::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr const char* kStateFile = "training_state.safetensors";
constexpr std::chrono::minutes kSaveInterval{10};  // what a kill can cost

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Where a run stands; saved with the weights.
struct RunState {
  int64_t step = 0;  // optimiser steps done
  Place place;       // of the next step in the data
  int64_t tokens = 0;
  double seconds = 0, training_seconds = 0;  // with and without validation
  double best = 0;                           // acceptance length at the trained steps
  int64_t best_step = -1;
};

class Trainer {
 public:
  Trainer(const TrainOptions& options, const std::atomic<bool>& stop)
      : o_(options), stop_(stop), progress_((fs::path(options.out) / "metrics.jsonl").string()) {}

  Status run();

 private:
  Status prepare();
  Status open_run();
  Status resume(const std::string& path);
  Status restore(const std::string& path);
  Status agree();
  Status work();
  Status next_order();
  Status saved_if_lost(const Status& status);
  Status save_state();
  Expected<StepReport> gradients(const std::vector<PackedBatch>& batches, int64_t& tokens);
  void update_weights(const StepReport& report);
  Status one_step(const std::vector<PackedBatch>& batches);
  Status tell_plan();
  Status validate_and_keep_best();
  Status write_report();
  Status save_checkpoint(const DraftValues& values);
  Status open_feed();
  Status interrupted_here();
  double matmul_share() const { return computed_ / computing_seconds_ / ceiling_; }
  double elapsed() const { return state_.seconds + seconds_since(started_); }
  double run_progress() const;
  bool finished() const;

  TrainOptions o_;
  const std::atomic<bool>& stop_;
  Progress progress_;
  TargetTensors target_;
  std::unique_ptr<Dataset> data_;
  DraftSpec spec_;
  std::vector<int32_t> to_draft_;
  json recipe_;
  at::ScalarType matmul_type_ = at::kFloat;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<TorchOps> ops_;
  Teacher teacher_;
  std::unique_ptr<ThreadPool> pool_;

  Ranks ranks_;
  // What rank 0 says of the next step, so that all do the same.
  double rate_ = 0;
  bool go_on_ = true, interrupted_ = false;

  // Operations and seconds of the steps since the program was started, against what this machine can do (rank 0 only).
  double computed_ = 0, computing_seconds_ = 0, ceiling_ = 0;

  RunState state_;
  int64_t total_steps_ = 0, eval_every_ = 0, validated_at_ = -1;
  Clock::time_point started_, last_save_;
  std::unique_ptr<StepFeed> feed_;
};

Status Trainer::prepare() {
  if (o_.ttt_steps < 1 || o_.ttt_steps > kMaxTttSteps)
    return invalid_argument("{} unrolled steps are not 1 to {}", o_.ttt_steps, kMaxTttSteps);
  if (o_.threads <= 0) o_.threads = default_thread_count();
  at::set_num_threads(o_.threads);
  // Every step frees and takes the same few hundred megabytes: without this glibc returns them to the system each time, and
  // the page faults cost a fifth of the run. 32 MiB is as much as glibc takes, so larger tensors are made in pieces.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, -1);

  AERIE_ASSIGN(const at::Device device, device_of(o_.device));
  AERIE_ASSIGN(ranks_, Ranks::from_environment(std::chrono::seconds(o_.rank_timeout_seconds)));
  AERIE_ASSIGN(target_, read_target_tensors(o_.target));
  std::optional<DraftCheckpoint> source;
  std::vector<int> states = o_.taps;  // of data that does not say it
  if (!o_.from.empty()) {
    AERIE_ASSIGN(source, open_source(o_.from, target_));
    states = std::exchange(o_.taps, source->spec.taps);
  }
  const TargetConfig& c = target_.config;
  const TraceTarget here{c.name, target_.sha256, c.hidden, c.vocab, c.blocks, c.rms_eps};
  AERIE_ASSIGN(Dataset data,
               Dataset::open(o_.data, {o_.row_length, o_.holdout, o_.taps, o_.teacher, !o_.prompts.empty(), &here, states, o_.token_rows}));
  data_ = std::make_unique<Dataset>(std::move(data));
  const TraceTarget& traced = data_->manifest().target;
  if (traced.sha256 != here.sha256) {
    return invalid_argument("the traces were captured from {} (sha256 {}), but {} has sha256 {}: train with the target of the traces",
                            traced.name, traced.sha256, o_.target, here.sha256);
  }
  if (source && !states.empty() && data_->format() == "Aerie") {
    return invalid_argument(
        "a drafter that is gone on from keeps its taps, {}, and these traces say which boundaries they hold: leave --taps out",
        fmt::join(data_->taps(), ","));
  }
  AERIE_ASSIGN(const StatesCheck found, check_states(*data_, target_));
  if (ranks_.first()) {
    report_on_data(*data_, target_, o_.row_length);
    report_on_policy(found);
  }
  if (source) {
    spec_ = source->spec;
  } else {
    AERIE_ASSIGN(spec_, make_spec(o_, target_, *data_));
  }
  to_draft_ = invert_d2t(spec_);
  const MatmulPrecision precision = precision_on(device, o_.precision);
  matmul_type_ = precision == MatmulPrecision::kBf16 ? at::kBFloat16 : at::kFloat;
  recipe_ = recipe_of(o_, spec_, *data_, precision);
  if (o_.patience > 0 && data_->held_out().empty())
    return invalid_argument("--patience needs conversations to judge by, and none are held out");
  parameters_ = std::make_unique<Parameters>(Parameters::initial(spec_, target_, o_.head, o_.seed));
  if (source) {
    AERIE_TRY(parameters_->take(*source));
    std::vector<TensorView> weights;
    for (const auto& [name, tensor] : source->tensors) weights.push_back(tensor);
    recipe_["from"] = tensors_id(std::move(weights));
    const std::span<const uint8_t> map(reinterpret_cast<const uint8_t*>(spec_.d2t.data()), spec_.d2t.size() * sizeof(int32_t));
    recipe_["from_d2t"] = sha256_hex(map);
  }
  ops_ = std::make_unique<TorchOps>();
  parameters_->move_to(device);
  teacher_ = make_teacher(target_, spec_, at::kFloat, matmul_type_, device);
  teacher_.states_normed = found.final_normed;
  pool_ = std::make_unique<ThreadPool>(o_.threads);

  AERIE_TRY(open_feed());
  total_steps_ = feed_->steps();
  eval_every_ = o_.eval_every > 0 ? o_.eval_every : std::max<int64_t>(1, (total_steps_ + 9) / 10);

  if (ranks_.first() && !o_.plan) AERIE_TRY(open_run());
  AERIE_TRY(agree());
  spdlog::info(
      "{:.3f} M tokens to train on, {} times at most; {} conversations held out; {} optimiser steps of about {} tokens, {} matrix "
      "products, {} threads{}",
      feed_->tokens_of_epoch() / 1e6, o_.epochs, data_->held_out().size(), total_steps_, o_.tokens_per_step,
      matmul_type_ == at::kBFloat16 ? "bf16" : "f32", o_.threads,
      ranks_.alone() ? std::string() : fmt::format("; rank {} of {}", ranks_.rank(), ranks_.size()));
  return {};
}

Status Trainer::open_feed() {
  FeedOptions options;
  options.tokens_per_step = o_.tokens_per_step;
  options.row_length = o_.row_length;
  options.epochs = o_.epochs;
  options.max_steps = o_.max_steps;
  options.ttt_steps = o_.ttt_steps;
  options.to_draft = to_draft_;
  options.draws = {o_.noise, o_.anchors, o_.seed, 0};
  options.share = {ranks_.rank(), ranks_.size()};
  if (o_.prompts.empty()) {
    feed_ = std::make_unique<FolderFeed>(*data_, options);
    return {};
  }
  if (!ranks_.alone()) return invalid_argument("prompts are answered by one process; WORLD_SIZE is {}", ranks_.size());
  if (data_->format() != "Aerie")
    return invalid_argument("prompts are answered as aerie capture does, and {} is of {}", o_.data[0], data_->format());
  AERIE_ASSIGN(recipe_["prompts"], sha256_file(o_.prompts));
  AERIE_ASSIGN(feed_, StreamFeed::open(*data_, options, {o_.target, o_.prompts, o_.buffer_mb << 20, o_.threads, &stop_}));
  return {};
}

Status Trainer::open_run() {
  std::error_code error;
  fs::create_directories(o_.out, error);
  if (error) return io_error("{}: cannot be created: {}", o_.out, error.message());
  const std::string path = (fs::path(o_.out) / kStateFile).string();
  if (fs::exists(fs::path(o_.out) / "config.json", error) && !fs::exists(path, error) && !fs::exists(previous_state(path), error)) {
    return invalid_argument("{} holds a drafter, and no run to go on with, which would replace it: choose another --out", o_.out);
  }
  if (o_.resume && !fs::exists(path, error) && fs::exists(previous_state(path), error)) {
    spdlog::warn("{} is gone; going on from the state before it", path);
    fs::rename(previous_state(path), path, error);
    if (error) return io_error("{}: cannot be put in place: {}", path, error.message());
  }
  if (!fs::exists(path, error)) {
    if (o_.resume) spdlog::warn("{} holds no run to resume: starting anew", o_.out);
    return {};
  }
  if (!o_.resume) return invalid_argument("{} already holds a training run: go on with it (--resume), or choose another --out", o_.out);
  return resume(path);
}

/// Rank 0 hands out where the run stands; whoever was started otherwise says so.
Status Trainer::agree() {
  if (ranks_.alone()) return {};
  const json own = {{"recipe", recipe_}, {"epochs", o_.epochs}, {"steps", total_steps_}};
  std::string first = own.dump();
  AERIE_TRY(ranks_.share(first));
  const json theirs = json::parse(first, nullptr, false);
  for (const auto& [key, value] : own.items()) {
    const json there = theirs.is_object() ? theirs.value(key, json()) : json();
    if (there == value) continue;
    return invalid_argument("rank {} was started otherwise than rank 0, or has other data: {} {} against {}", ranks_.rank(), key,
                            value.dump(), there.dump());
  }
  const auto from_first = [&](int64_t value) { return ranks_.first() ? static_cast<double>(value) : 0.0; };
  std::vector<double> place = {from_first(state_.step), from_first(state_.place.epoch), from_first(state_.place.in_epoch)};
  AERIE_TRY(ranks_.sum(place));
  state_.step = static_cast<int64_t>(place[0]);
  state_.place = {static_cast<int64_t>(place[1]), static_cast<int64_t>(place[2])};
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> tensors = parameters_->state();
  if (!ranks_.first()) {
    for (const at::Tensor& tensor : tensors) tensor.zero_();
  }
  return ranks_.sum(tensors);
}

/// From the state that was saved last, or, where that is damaged, from the one before.
Status Trainer::resume(const std::string& path) {
  const Status last = restore(path);
  std::error_code error;
  if (last.ok() || last.code() != StatusCode::kCorrupt || !fs::exists(previous_state(path), error)) return last;
  spdlog::warn("{}; going on from the state before it", last.message());
  AERIE_TRY(restore(previous_state(path)));
  // Else the next save would put the damaged one in its place.
  fs::rename(previous_state(path), path, error);
  return error ? io_error("{}: cannot be put in place: {}", path, error.message()) : Status();
}

Status Trainer::restore(const std::string& path) {
  AERIE_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path));
  AERIE_TRY(check_training_state(file));
  const auto stored = file.metadata().find("aerie_training");
  const json state = stored == file.metadata().end() ? json() : json::parse(stored->second, nullptr, false);
  if (!state.is_object() || !state.contains("recipe") || !state["recipe"].is_object() || !state.contains("run")) {
    return corrupt("{}: expected the state of a training run in its metadata", path);
  }
  json either = state["recipe"];  // what only one of the two says is at its default in the other
  either.update(recipe_);
  for (const auto& [key, unused] : either.items()) {
    if (key == "data" && !state["recipe"].contains(key)) continue;  // earlier programs did not say
    const json before = state["recipe"].value(key, json()), now = recipe_.value(key, json());
    if (before != now) return invalid_argument("{}: the run was started with {} {}, now it is {}", path, key, before.dump(), now.dump());
  }
  const json& run = state["run"];
  try {
    state_.step = run.at("step");
    state_.place = {run.at("epoch"), run.at("in_epoch")};
    state_.tokens = run.at("tokens");
    state_.seconds = run.at("seconds");
    state_.training_seconds = run.at("training_seconds");
    state_.best = run.at("best");
    state_.best_step = run.at("best_step");
    validated_at_ = run.at("validated_at");
  } catch (const json::exception& e) {
    return corrupt("{}: the state of the run cannot be read: {}", path, e.what());
  }
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(spec_.d2t.data()), spec_.d2t.size() * sizeof(int32_t));
  const auto d2t = file.find("d2t");
  if (d2t.ok() == bytes.empty() || (d2t.ok() && !std::ranges::equal(bytes, (*d2t)->data))) {
    return invalid_argument("{}: the draft vocabulary differs from the one that the data gives now: were the traces changed?", path);
  }
  AERIE_TRY(load_training_state(file, *parameters_));
  spdlog::info("going on after step {}", state_.step);
  return {};
}

Status Trainer::save_state() {
  const json run = {{"step", state_.step},     {"epoch", state_.place.epoch},   {"in_epoch", state_.place.in_epoch},
                    {"tokens", state_.tokens}, {"seconds", elapsed()},          {"training_seconds", state_.training_seconds},
                    {"best", state_.best},     {"best_step", state_.best_step}, {"validated_at", validated_at_}};
  last_save_ = Clock::now();
  return save_training_state((fs::path(o_.out) / kStateFile).string(), *parameters_, spec_.d2t,
                             {{"aerie_training", json{{"recipe", recipe_}, {"run", run}}.dump()}});
}

Status Trainer::save_checkpoint(const DraftValues& values) {
  speculators::SaveOptions save;
  save.verifier = target_.config.name;
  if (target_.config.architecture == "llama") save.verifier_architectures = {"LlamaForCausalLM"};
  save.speculative_tokens = o_.ttt_steps;
  json record = recipe_;
  record["step"] = state_.step;
  record["tokens_seen"] = state_.tokens;
  if (!data_->held_out().empty()) record["held_out_walk_acceptance_length"] = state_.best;
  save.training_json = record.dump();
  return speculators::save_checkpoint(o_.out, spec_, values, DType::kBF16, save);
}

Status Trainer::validate_and_keep_best() {
  if (validated_at_ == state_.step) return {};
  validated_at_ = state_.step;
  const DraftValues values = parameters_->values();
  if (data_->held_out().empty()) return finished() ? save_checkpoint(values) : Status();
  AERIE_ASSIGN(const Validation validation,
               validate(spec_, values, target_.embedding, target_.config.blocks, *data_, data_->held_out(), o_.ttt_steps, *pool_));
  const double length = validation.acceptance_length(o_.ttt_steps);
  const bool best = state_.best_step < 0 || length > state_.best;
  AERIE_TRY(progress_.validation(state_.step, state_.tokens, validation, o_.ttt_steps, best));
  if (!best) return {};
  state_.best = length;
  state_.best_step = state_.step;
  return save_checkpoint(values);
}

/// Replaces the page of the run, where one is asked for.
Status Trainer::write_report() {
  if (o_.report.empty()) return {};
  TrainingRun run;
  run.target = target_.config.name;
  run.recipe = recipe_;
  run.trained_steps = o_.ttt_steps;
  run.data_tokens = feed_->tokens_of_epoch();
  run.matmul_ceiling = ceiling_;
  run.facts = {fmt::format("step {} of {}, {:.2f} M tokens; {} epochs of {:.2f} M are the most", state_.step, total_steps_,
                           static_cast<double>(state_.tokens) / 1e6, o_.epochs, run.data_tokens / 1e6),
               fmt::format("{} since the start, {} threads{}", duration(elapsed()), o_.threads,
                           ranks_.alone() ? "" : fmt::format(", {} processes", ranks_.size()))};
  if (state_.best_step >= 0) {
    run.facts.push_back(fmt::format("{} holds the drafter of step {}: held-out acceptance length {:.3f} at {} drafts", o_.out,
                                    state_.best_step, state_.best, o_.ttt_steps));
  }
  if (computing_seconds_ > 0) {
    run.facts.push_back(
        fmt::format("{:.0f} tokens/s, {}", static_cast<double>(state_.tokens) / state_.training_seconds, share_text(matmul_share())));
  }
  return write_training_report(o_.report, run, progress_.path());
}

double Trainer::run_progress() const {
  const double by_steps = feed_->progress(state_.step, state_.place);
  const double by_time = o_.time_limit_minutes > 0 ? elapsed() / (60 * o_.time_limit_minutes) : 0.0;
  return std::min(1.0, std::max(by_steps, by_time));
}

bool Trainer::finished() const {
  const bool improving = o_.patience == 0 || state_.best_step < 0 || validated_at_ - state_.best_step < o_.patience * eval_every_;
  return run_progress() >= 1.0 || !improving;
}

/// Clocks and signals differ between ranks: rank 0 says how the next step is done, and whether it is.
Status Trainer::next_order() {
  std::vector<double> order = {
      ranks_.first() && finished() ? 1.0 : 0.0, stop_ ? 1.0 : 0.0,
      ranks_.first() ? o_.learning_rate * learning_rate_factor(state_.step, o_.warmup_steps, run_progress()) : 0.0};
  AERIE_TRY(ranks_.sum(order));
  go_on_ = order[0] == 0;
  interrupted_ = order[1] > 0;
  rate_ = order[2];
  return {};
}

/// Loss and gradients of one optimiser step; `tokens` are those of all ranks.
Expected<StepReport> Trainer::gradients(const std::vector<PackedBatch>& batches, int64_t& tokens) {
  std::vector<double> rows = loss_rows(batches, static_cast<size_t>(o_.ttt_steps));
  AERIE_TRY(ranks_.sum(rows));
  const std::vector<double> weights = row_weights(rows, o_.step_decay);
  parameters_->zero_gradients();
  std::vector<StepStats> stats(static_cast<size_t>(o_.ttt_steps));
  int64_t own_tokens = 0;
  for (const PackedBatch& batch : batches) {
    const DraftWeights<TorchOps> view = parameters_->view(spec_, matmul_type_);
    const auto sums =
        run_ttt(*ops_, spec_, view, teacher_, batch, {o_.loss, o_.teacher_temperature}, weights, true, parameters_->head_gradient());
    for (size_t s = 0; s < stats.size(); ++s) stats[s] += sums[s];
    own_tokens += batch.tokens;
  }
  if (!ranks_.alone()) AERIE_TRY(ranks_.sum(parameters_->gradients()));
  std::vector<double> figures = {static_cast<double>(own_tokens)};
  for (const StepStats& s : stats)
    figures.insert(figures.end(), {s.loss, static_cast<double>(s.correct), static_cast<double>(s.supervised)});
  AERIE_TRY(ranks_.sum(figures));
  StepReport report;
  for (size_t s = 0; s < stats.size(); ++s) {
    const double loss = figures[1 + 3 * s], correct = figures[2 + 3 * s], supervised = figures[3 + 3 * s];
    report.loss += weights[s] * loss;
    report.accuracy.push_back(supervised == 0 ? 0.0 : correct / supervised);
  }
  report.gradient_norm = parameters_->gradient_norm();
  if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm)) {
    return Status(
        StatusCode::kInternal,
        fmt::format("step {}: the loss is {} and the gradient's norm {}: training has diverged at learning rate {:.2g}; lower --lr or "
                    "lengthen --warmup. What was saved before in {} is kept",
                    state_.step + 1, report.loss, report.gradient_norm, rate_, o_.out));
  }
  tokens = static_cast<int64_t>(figures[0]);
  return report;
}

void Trainer::update_weights(const StepReport& report) {
  OptimizerOptions optimizer;
  optimizer.kind = o_.optimizer;
  optimizer.matmul_type = matmul_type_;
  update(*parameters_, optimizer, rate_, state_.step, report.gradient_norm);
}

Status Trainer::one_step(const std::vector<PackedBatch>& batches) {
  const Clock::time_point start = Clock::now();
  int64_t tokens = 0;
  AERIE_ASSIGN(StepReport report, gradients(batches, tokens));
  ++state_.step;
  state_.tokens += tokens;
  update_weights(report);
  const double seconds = seconds_since(start);
  state_.training_seconds += seconds;
  if (!ranks_.first()) return {};

  computing_seconds_ += seconds;
  computed_ += step_operations(spec_, batches, o_.head != HeadMode::kFrozen);
  report.step = state_.step;
  report.total_steps = total_steps_;
  report.epoch = state_.place.epoch;
  report.learning_rate = rate_;
  report.tokens = state_.tokens;
  report.tokens_per_second = static_cast<double>(state_.tokens) / state_.training_seconds;
  report.matmul_share = matmul_share();
  report.progress = run_progress();
  report.elapsed_seconds = elapsed();
  return progress_.step(report);
}

Status Trainer::run() {
  const Status ready = prepare();
  if (ready.ok() && o_.plan) return tell_plan();
  const Status done = ready.ok() ? work() : ready;
  if (done.ok()) return ranks_.finish();
  if (done.code() == StatusCode::kCancelled) {  // all ranks stop after the same step
    AERIE_TRY(ranks_.finish());
    return done;
  }
  ranks_.give_up(done.message());
  return done;
}

/// What the run would take, from its first steps; nothing is written.
Status Trainer::tell_plan() {
  if (!ranks_.alone()) return invalid_argument("a plan is made by one process; WORLD_SIZE is {}", ranks_.size());
  constexpr int64_t kSteps = 4;  // the first is not counted: it compiles matrix products and touches memory
  rate_ = o_.learning_rate * learning_rate_factor(0, o_.warmup_steps, 0);
  double step_seconds = 0;
  int64_t counted = 0;
  const int64_t steps = std::min(kSteps, total_steps_);
  for (int64_t i = 0; i < steps; ++i) {
    AERIE_ASSIGN(const LoadedStep loaded, feed_->next());
    if (loaded.end) break;
    const Clock::time_point start = Clock::now();
    int64_t tokens = 0;
    AERIE_ASSIGN(const StepReport report, gradients(loaded.batches, tokens));
    ++state_.step;
    update_weights(report);
    if (i == 0 && steps > 1) continue;
    step_seconds += seconds_since(start);
    counted += tokens;
  }
  const std::span<const Conversation> held = data_->held_out(), sample = held.first(std::min<size_t>(held.size(), 4));
  const Clock::time_point start = Clock::now();
  AERIE_TRY(
      validate(spec_, parameters_->values(), target_.embedding, target_.config.blocks, *data_, sample, o_.ttt_steps, *pool_).status());
  const double one_validation =
      sample.empty() ? 0.0 : seconds_since(start) * static_cast<double>(held.size()) / static_cast<double>(sample.size());

  Plan figures;
  figures.steps = total_steps_;
  figures.tokens = feed_->tokens();
  figures.generated_per_second = feed_->tokens_per_second();
  figures.tokens_per_second = step_seconds > 0 ? static_cast<double>(counted) / step_seconds : 0.0;
  figures.validations = total_steps_ / eval_every_;
  figures.validation_seconds = one_validation * static_cast<double>(figures.validations);
  for (const at::Tensor& tensor : parameters_->state()) figures.state_bytes += static_cast<double>(tensor.nbytes());
  for (const Parameter& p : parameters_->list()) figures.checkpoint_bytes += 2.0 * static_cast<double>(p.value.numel());
  tell(figures, o_.time_limit_minutes);
  return {};
}

/// Adds to what a lost rank says, after saving where the run stands.
Status Trainer::saved_if_lost(const Status& status) {
  if (status.ok() || !ranks_.lost() || !ranks_.first()) return status;
  AERIE_TRY(save_state());
  return io_error("{}; saved after step {}. Go on with --resume", status.message(), state_.step);
}

Status Trainer::interrupted_here() {
  if (ranks_.first()) AERIE_TRY(save_state());
  progress_.finish_line();
  if (ranks_.first()) AERIE_TRY(write_report());
  return cancelled("interrupted after step {} of {}; saved. Go on with --resume", state_.step, total_steps_);
}

Status Trainer::work() {
  const bool first = ranks_.first();
  const int64_t usual_rows = std::min<int64_t>(o_.tokens_per_step, o_.row_length);  // of one packed row of a step
  if (first) ceiling_ = matmul_ceiling(spec_, rounded_up(usual_rows, kRowMultiple), matmul_type_, teacher_.embedding.device());
  started_ = last_save_ = Clock::now();
  // A run that was interrupted where a validation was due has it now.
  if (first && state_.step > 0 && state_.step % eval_every_ == 0 && !finished()) AERIE_TRY(validate_and_keep_best());
  if (first) AERIE_TRY(write_report());  // that it cannot be written is better known now
  AERIE_TRY(next_order());
  feed_->go_to(state_.place);
  while (go_on_) {
    const Expected<LoadedStep> loaded = feed_->next();
    if (!loaded.ok()) {
      if (loaded.status().code() == StatusCode::kCancelled) return interrupted_here();
      if (first && state_.step > 0) AERIE_TRY(save_state());
      return loaded.status();
    }
    const Status stepped = loaded->end ? Status() : one_step(loaded->batches);
    // Where another rank is lost the weights are those of the last whole step, and this one is to be done again.
    if (!ranks_.lost()) state_.place = loaded->next;
    AERIE_TRY(saved_if_lost(stepped));
    AERIE_TRY(saved_if_lost(next_order()));
    if (interrupted_ && go_on_) return interrupted_here();
    if (first && go_on_) {
      const bool due = state_.step % eval_every_ == 0;
      if (due) AERIE_TRY(validate_and_keep_best());
      if (due || Clock::now() - last_save_ > kSaveInterval) AERIE_TRY(save_state());
      if (due) AERIE_TRY(write_report());
    }
  }
  progress_.finish_line();
  if (!first) return {};
  if (run_progress() < 1.0) {
    spdlog::info("stopped after step {} of {}: {} validations did not better step {}", state_.step, total_steps_, o_.patience,
                 state_.best_step);
  }
  AERIE_TRY(validate_and_keep_best());
  AERIE_TRY(save_state());
  AERIE_TRY(write_report());
  if (data_->held_out().empty()) {
    spdlog::info("done: the drafter of step {} is in {}; none were held out, so it was not judged", state_.step, o_.out);
  } else {
    spdlog::info("done: the best drafter, of step {}, is in {}: held-out acceptance length {:.3f} at {} drafts", state_.best_step, o_.out,
                 state_.best, o_.ttt_steps);
  }
  const std::string share =
      computing_seconds_ > 0 ? fmt::format(", {} ({:.0f} GFLOP/s)", share_text(matmul_share()), ceiling_ / 1e9) : std::string();
  spdlog::info("{:.0f} tokens/s{} in {}; peak memory {:.2f} GiB", static_cast<double>(state_.tokens) / state_.training_seconds, share,
               duration(elapsed()), peak_memory_gib());
  if (feed_->tokens_per_second() > 0) {
    spdlog::info(
        "the target answered at {:.0f} tokens/s, prompts included; {} conversations were left out: too long, without an answer, or what "
        "the run is judged by",
        feed_->tokens_per_second(), feed_->left_out());
  }
  return {};
}

}  // namespace

Status train(const TrainOptions& options, const std::atomic<bool>& stop) { return Trainer(options, stop).run(); }

}  // namespace aerie::train
