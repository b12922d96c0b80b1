#include "doctor_replay.h"

#include <algorithm>

#include "doctor/slot_check.h"
#include "doctor/verdict.h"
#include "eagle3/engines/as_served.h"
#include "eagle3/spec_fields.h"

namespace aerie::cli {
namespace {

/// The target as far as it was given: its tables, or only the sizes that the drafter states.
struct TargetSide {
  std::optional<GgufFile> file;
  std::unique_ptr<Target> target;
  TargetTables tables;
  FinalNorm norm;

  Status open(const std::string& path_or_name, ThreadPool& pool) {
    AERIE_ASSIGN(const std::string path, resolve_target(path_or_name));
    AERIE_ASSIGN(file, GgufFile::open(path));
    AERIE_ASSIGN(target, load_target(*file, {}, pool));
    AERIE_ASSIGN(const TensorView* weight, file->find("output_norm.weight"));
    AERIE_ASSIGN(norm.weight, to_float(*weight));
    norm.eps = target->config().rms_eps;
    if (norm.weight.size() != static_cast<size_t>(target->config().hidden)) return corrupt("{}: output_norm.weight has {} values", path, norm.weight.size());
    tables = tables_of(*target, pool);
    return {};
  }
};

Status replay_served(const std::string& path, const EngineVersion& engine, const std::string& target_arch, const Reading& declared, const HypothesisFacts& facts,
                     ReadingScorer& scorer, const Judged& base, int k, Report& report) {
  AERIE_ASSIGN(const RawCheckpoint raw, RawCheckpoint::open(path));
  for (const ServedReading& served : read_as_served(drafter_files(raw), engine, {target_arch, facts.blocks}, &declared.spec)) {
    const auto cannot = [&](const std::string& why) {
      report.add(std::vector<Finding>{{Severity::kNote, "served-not-replayed", fmt::format("what {} runs cannot be replayed: {}", served.engine, why), ""}});
    };
    report.add(served.refusals);
    report.add(served.misreadings);
    if (!served.unknown.empty()) cannot(served.unknown);
    if (!served.spec || served.refuses() || served.differences.empty()) continue;
    Hypothesis hypothesis{"served", "as " + served.engine + " reads it", "", declared};
    hypothesis.reading.spec = *served.spec;
    hypothesis.reading.norms.clear();
    auto feature = declared_feature(*served.spec, facts.slots);
    if (!feature.ok()) {
      cannot(feature.status().message());
      continue;
    }
    hypothesis.reading.feature = *std::move(feature);
    auto judged = judge_reading(scorer, hypothesis, base, k);
    if (!judged.ok()) {
      cannot(judged.status().message());
      continue;
    }
    std::vector<std::string> differences;
    for (const ServedDifference& d : served.differences) differences.push_back(fmt::format("{} {} in place of {}", d.field, d.served, d.trained));
    report.add(judge_served(served.engine, *judged, base, differences, k));
  }
  return {};
}

}  // namespace

void ReplayFlags::add_to(CLI::App& app) {
  auto* drafter_option = app.add_option("-d,--drafter", drafter, "drafter whose reading is in doubt: a folder or GGUF file, or a known name (smollm2)");
  auto* traces_option = app.add_option("--traces", traces, "stored states: of aerie capture, speculators, SpecForge, Model-Optimizer or SafeAILab");
  drafter_option->needs(traces_option);
  traces_option->needs(drafter_option);
  app.add_option("-m,--model", target, "its target: adds the check of the final state, and shared tables as hypotheses")->needs(drafter_option);
  reading.add_to(app);
  app.add_option("--trace-rows", rows, "JSON lines of input_ids and loss_mask: the rows of a speculators trace")->needs(traces_option);
  app.add_flag("--without-mask", without_mask, "take every token for the target's own where the trace has no mask")->needs(traces_option);
  app.add_option("--sample-tokens", sample_tokens, "tokens of the trace to look at, drawn from all over it")
      ->needs(traces_option)
      ->check(CLI::Range(int64_t{64}, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--threads", threads, "threads that compute (default: the cores this process may use)")->check(CLI::Range(1, 4 * default_thread_count()));
}

Status replay_hypotheses(const ReplayFlags& flags, const std::optional<EngineVersion>& engine, const std::string& target_arch, int k, Report& report) {
  AERIE_ASSIGN(const int threads, choose_threads(flags.threads));
  ThreadPool pool(threads);
  TargetSide side;
  if (!flags.target.empty()) AERIE_TRY(side.open(flags.target, pool));
  AERIE_ASSIGN(const std::string path, resolve_drafter(flags.drafter));
  AERIE_ASSIGN(OpenOptions known, flags.reading.options());
  if (side.file) AERIE_TRY(add_target_facts(*side.file, known));
  AERIE_ASSIGN(const DraftCheckpoint checkpoint, read_drafter(path, known));
  report.add(checkpoint.findings);
  const auto is_error = [](const Finding& finding) { return finding.severity == Severity::kError; };
  // What the files leave open is the first thing to settle; replaying a guess would only blur it.
  if (std::any_of(checkpoint.findings.begin(), checkpoint.findings.end(), is_error)) return {};
  if (flags.target.empty()) {
    AERIE_ASSIGN(side.tables, tables_without_target(checkpoint.spec));
  }

  TraceSource::Options trace_options;
  trace_options.rows = flags.rows;
  trace_options.without_mask = flags.without_mask;
  AERIE_ASSIGN(const auto source, TraceSource::open(flags.traces, trace_options));
  SampleOptions sampling;
  sampling.max_tokens = flags.sample_tokens;
  AERIE_ASSIGN(const Sample sample, take_sample(*source, checkpoint.spec, sampling));
  report.add(sample.findings);

  HypothesisFacts facts;
  facts.slots = sample.slots;
  facts.blocks = sample.blocks != 0 ? sample.blocks : side.target != nullptr ? side.target->config().blocks : 0;
  for (const Conversation& c : sample.conversations) facts.longest = std::max(facts.longest, static_cast<int>(c.trace.length()));
  facts.has_target = side.target != nullptr;
  if (side.target != nullptr) facts.target_rope_theta = side.target->config().rope_theta;
  Reading declared;
  declared.spec = checkpoint.spec;
  AERIE_ASSIGN(declared.feature, declared_feature(checkpoint.spec, sample.slots));
  AERIE_ASSIGN(ReadingScorer scorer, ReadingScorer::create(checkpoint, declared, side.tables, side.norm, sample, kernels::best_kernels(), pool));

  if (side.target != nullptr) {
    AERIE_ASSIGN(const auto slots, next_token_agreement(sample, scorer, side.tables));
    report.add(judge_slots(slots, static_cast<int>(sample.slots.size()) - 1));
    report.add(describe(slots));
  }
  SearchOptions options;
  options.k = std::min(k, kMaxReplaySteps);
  options.on_progress = [](const std::string& doing) { spdlog::info("{}", doing); };
  AERIE_ASSIGN(const SearchResult result, search_hypotheses(scorer, declared, facts, options));
  report.add(verdict(result, options.k));
  report.add(describe(result, sample, options.k));
  if (engine && !result.rounds.empty()) {
    AERIE_TRY(replay_served(path, *engine, target_arch, declared, facts, scorer, result.rounds.front().base, options.k, report));
  }
  return {};
}

}  // namespace aerie::cli
