#include "doctor_replay.h"

#include <algorithm>
#include <filesystem>

#include "base/file_io.h"
#include "doctor/breakdown.h"
#include "doctor/engine_check.h"
#include "doctor/mend.h"
#include "doctor/served_check.h"
#include "doctor/slot_check.h"
#include "doctor/training_check.h"
#include "doctor/verdict.h"
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

/// Drafts per cycle of a replay where nothing says how many are served.
constexpr int kReplayDrafts = 3;

bool is_verdict_on_files(StatusCode code) {
  return code == StatusCode::kCorrupt || code == StatusCode::kNotFound || code == StatusCode::kUnsupported;
}

/// Boundaries of the slots, as a person states them. A trace that has its own must agree.
Status name_slots(const std::vector<std::string>& names, Sample& sample) {
  if (names.empty()) return {};
  if (names.size() != sample.slots.size()) {
    return invalid_argument("--slots names {} states, the trace holds {} a position", names.size(), sample.slots.size());
  }
  for (size_t s = 0; s < names.size(); ++s) {
    auto boundary = parse_taps(names[s]);
    if (!boundary.ok()) return boundary.status().with_context("--slots");
    if (boundary->size() != 1) return invalid_argument("--slots: {} is no boundary", names[s]);
    StateSlot& slot = sample.slots[s];
    if (slot.kind == StateSlot::Kind::kBoundary && boundary->front() != slot.number) {
      return invalid_argument("--slots calls state {} {}, the trace says {}", s, names[s], slot.name());
    }
    slot = boundary->front() == kFinalNormed ? StateSlot{StateSlot::Kind::kFinal, 0, StateSlot::Norm::kNormed}
                                             : StateSlot{StateSlot::Kind::kBoundary, boundary->front(), StateSlot::Norm::kRaw};
  }
  return {};
}

/// The boundary over which the trainer took the head for the target's word: as a person says it or as the trainer recorded it.
std::optional<int> recorded_teacher(const ReplayFlags& flags, const std::string& path) {
  if (flags.teacher) return flags.teacher;
  const auto config = RawCheckpoint::read_config(path);
  if (!config.ok() || !config->contains("aerie_training") || !(*config)["aerie_training"].is_object()) return std::nullopt;
  const auto& record = (*config)["aerie_training"];
  const auto it = record.find("teacher_boundary");
  return it != record.end() && it->is_number_unsigned() && it->get<uint64_t>() < (1u << 20) ? std::optional<int>(it->get<int>()) : std::nullopt;
}

/// Which state gives the target's next tokens, and what it costs where the trainer took another one for it.
Status check_final_state(const ReplayFlags& flags, const std::string& path, const Sample& sample, ReadingScorer& scorer, const TargetTables& target,
                         const Reading& reading, int k, Report& report) {
  int taken = static_cast<int>(sample.slots.size()) - 1;
  if (const std::optional<int> teacher = recorded_teacher(flags, path)) {
    const auto at = std::find_if(sample.slots.begin(), sample.slots.end(), [&](const StateSlot& slot) { return slot.kind == StateSlot::Kind::kBoundary && slot.number == *teacher; });
    if (at == sample.slots.end()) {
      report.add(std::vector<Finding>{{Severity::kWarning, "teacher-not-stored", fmt::format("the drafter's teacher read boundary {}, which the trace does not hold", *teacher), "capture it too"}});
    } else {
      taken = static_cast<int>(at - sample.slots.begin());
    }
  }
  AERIE_ASSIGN(const auto slots, next_token_agreement(sample, scorer, target));
  std::vector<Finding> findings = judge_slots(slots, taken);
  if (!findings.empty()) {
    AERIE_ASSIGN(const TeacherCost cost, teacher_cost(sample, scorer, target, reading, best_of_slot(slots, taken)->use, k));
    if (cost.rows > 0) add_cost(findings.front(), cost, k);
  }
  report.add(findings);
  report.add(describe(slots));
  return {};
}

/// What the mask, the files' record and the log tell of the training.
Status check_training(const ReplayFlags& flags, const std::string& path, const Sample& sample, const SearchResult& result, const TargetSide& side, int k,
                      std::optional<int> served, Report& report) {
  if (side.file) {
    const auto frame = AnswerFrame::of_target(*side.file);
    if (frame.ok()) report.add(judge_mask(sample, *frame));  // a target without a template has no opening
  }
  const auto config = RawCheckpoint::read_config(path);
  if (config.ok() && !result.rounds.empty()) {
    const SearchRound& last = result.rounds.back();
    report.add(judge_training(recorded_training(*config), last.winner ? last.finalists[*last.winner] : last.base, k, served));
  }
  if (flags.training_log.empty()) return {};
  constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  AERIE_ASSIGN(const std::string log, read_file(flags.training_log, kMaxBytes));
  const auto judged = judge_training_log(log);
  if (!judged.ok()) return judged.status().with_context(flags.training_log);
  report.add(*judged);
  return {};
}

Status compare_with_engine(const std::string& folder, const TraceSource* source, ReadingScorer& scorer, const Reading& reading, const HypothesisFacts& facts,
                           Report& report) {
  AERIE_ASSIGN(const EngineTraceReader reader, EngineTraceReader::open(folder));
  // Where a neighbour stands for a tap, the engine's states cannot be compared with the stored ones.
  const auto is_used = [&](const StandIn& s) { return s.tap < reading.feature.size() && facts.slots[static_cast<size_t>(reading.feature[s.tap].slot)].number == s.used; };
  const bool comparable = std::none_of(facts.stand_ins.begin(), facts.stand_ins.end(), is_used);
  AERIE_ASSIGN(const std::vector<EngineCase> cases, read_engine_cases(reader, comparable ? source : nullptr));
  AERIE_ASSIGN(const EngineComparison comparison, compare_engine(cases, scorer, reading, facts));
  report.add(comparison.findings);
  report.add(describe(comparison, reader.manifest()));
  report.accepted_by_step.push_back(accepted_by_step("served by " + reader.manifest().engine, comparison.accepted));
  return {};
}

/// Writes what was named, or says why nothing was written.
Status fix_files(const std::string& out, const DraftCheckpoint& checkpoint, const SearchResult& result, const HypothesisFacts& facts, const OpenOptions& known,
                 const GgufFile* target, int k, Report& report) {
  ConvertOptions options;
  options.tokenizer = target;
  options.target = {known.target_architecture, known.target_blocks};
  const auto mend = mend_checkpoint(checkpoint, result, facts, options.target, k);
  if (!mend.ok() && (mend.status().code() == StatusCode::kNotFound || mend.status().code() == StatusCode::kUnsupported)) {
    report.add(std::vector<Finding>{{Severity::kNote, "nothing-written", fmt::format("{} is not written: {}", out, mend.status().message()), ""}});
    return {};
  }
  if (!mend.ok()) return mend.status();
  AERIE_TRY(write_mend(*mend, out, options));
  report.add(describe(*mend, out));
  return {};
}

}  // namespace

void ReplayFlags::add_to(CLI::App& app) {
  auto* drafter_option = app.add_option("-d,--drafter", drafter, "drafter whose reading is in doubt: a folder or GGUF file, or a known name (smollm2)");
  auto* traces_option = app.add_option("--traces", traces, "stored states: of aerie capture, speculators, SpecForge, Model-Optimizer or SafeAILab");
  traces_option->needs(drafter_option);
  app.add_option("--engine-trace", engine_trace, "what an engine's drafter was handed and answered (docs/trace-format.md): is compared with the replay")
      ->needs(drafter_option);
  app.add_option("-m,--model", target, "its target: adds the check of the final state, and shared tables as hypotheses")->needs(drafter_option);
  reading.add_to(app);
  app.add_option("--trace-rows", rows, "JSON lines of input_ids and loss_mask: the rows of a speculators trace")->needs(traces_option);
  app.add_option("--slots", slots, "boundaries of the trace's states in their order, where it does not say them: 0,2,15,28; final is the normed final state")
      ->needs(traces_option)->delimiter(',');
  app.add_option("--teacher", teacher, "boundary that its trainer took for the final state (default: what the files record, else the trace's last state)")
      ->needs(traces_option)->check(CLI::NonNegativeNumber);
  app.add_option("--validated", validated, "share of drafts right that its training reported, by step: 0.747,0.61")->needs(traces_option)->delimiter(',')->check(CLI::Range(0.0, 1.0));
  app.add_option("--domains", domains, "JSON lines whose line i names the domain, category or source of row i of the trace (the prompts that were captured): acceptance by domain")
      ->needs(traces_option);
  app.add_option("--training-log", training_log, "metrics.jsonl of aerie train: whether it was trained too long, or not long enough")->needs(traces_option);
  app.add_option("--fix", fix, "write the drafter with the named faults mended to this folder (or NAME.gguf), where files can state it")->needs(traces_option);
  app.add_flag("--without-mask", without_mask, "take every token for the target's own where the trace has no mask")->needs(traces_option);
  app.add_option("--sample-tokens", sample_tokens, "tokens of the trace to look at, drawn from all over it")
      ->needs(traces_option)
      ->check(CLI::Range(int64_t{64}, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--threads", threads, "threads that compute (default: the cores this process may use)")->check(CLI::Range(1, 4 * default_thread_count()));
}

Status replay_hypotheses(const ReplayFlags& flags, const std::optional<EngineVersion>& engine, const std::string& target_arch, std::optional<int> served,
                         Report& report) {
  AERIE_ASSIGN(const int threads, choose_threads(flags.threads));
  ThreadPool pool(threads);
  TargetSide side;
  if (!flags.target.empty()) AERIE_TRY(side.open(flags.target, pool));
  AERIE_ASSIGN(const std::string path, resolve_drafter(flags.drafter));
  AERIE_ASSIGN(OpenOptions known, flags.reading.options());
  if (side.file) AERIE_TRY(add_target_facts(*side.file, known));
  std::error_code ignored;
  auto opened = read_drafter(path, known);
  if (!opened.ok() && is_verdict_on_files(opened.status().code()) && std::filesystem::exists(path, ignored)) {
    // What is wrong with the files is an answer, not a failure to answer.
    report.add(std::vector<Finding>{{Severity::kError, "files-refused", opened.status().message(), "mend the files, then ask again: the replay needs a drafter that can be read"}});
    return {};
  }
  AERIE_ASSIGN(const DraftCheckpoint checkpoint, std::move(opened));
  report.add(checkpoint.findings);
  const auto is_error = [](const Finding& finding) { return finding.severity == Severity::kError; };
  // What the files leave open is the first thing to settle; replaying a guess would only blur it.
  if (std::any_of(checkpoint.findings.begin(), checkpoint.findings.end(), is_error)) return {};
  if (flags.target.empty()) {
    AERIE_ASSIGN(side.tables, tables_without_target(checkpoint.spec));
  }

  std::unique_ptr<TraceSource> source;
  Sample sample;
  HypothesisFacts facts;
  Reading declared;
  declared.spec = checkpoint.spec;
  if (flags.traces.empty()) {
    for (size_t tap = 0; tap < checkpoint.spec.taps.size(); ++tap) declared.feature.push_back({static_cast<int>(tap), false});
  } else {
    TraceSource::Options trace_options;
    trace_options.rows = flags.rows;
    trace_options.without_mask = flags.without_mask;
    AERIE_ASSIGN(source, TraceSource::open(flags.traces, trace_options));
    SampleOptions sampling;
    sampling.max_tokens = flags.sample_tokens;
    AERIE_ASSIGN(sample, take_sample(*source, checkpoint.spec, sampling));
    AERIE_TRY(name_slots(flags.slots, sample));
    if (!flags.domains.empty()) AERIE_TRY(name_domains(flags.domains, sample));
    report.add(sample.findings);
    facts.slots = sample.slots;
  }
  facts.blocks = sample.blocks != 0 ? sample.blocks : side.target != nullptr ? side.target->config().blocks : 0;
  for (const Conversation& c : sample.conversations) facts.longest = std::max(facts.longest, static_cast<int>(c.trace.length()));
  facts.has_target = side.target != nullptr;
  if (side.target != nullptr) facts.target_rope_theta = side.target->config().rope_theta;
  if (source != nullptr) {
    AERIE_ASSIGN(DeclaredFeature feature, nearest_feature(checkpoint.spec, sample.slots, facts.blocks));
    declared.feature = std::move(feature.feature);
    facts.stand_ins = std::move(feature.stand_ins);
    if (!facts.stand_ins.empty()) {
      report.add(std::vector<Finding>{{Severity::kWarning, "tap-not-stored",
                                       fmt::format("the trace does not hold every state that the drafter declares: {}, so that its figures as declared are near ones", stand_in_text(facts.stand_ins)),
                                       "capture the declared boundaries too, and their neighbours"}});
    }
    std::vector<int> slots;
    for (const SlotUse& use : declared.feature) slots.push_back(use.slot);
    report.add(judge_sizes(sample, checkpoint.spec, slots));
  }
  AERIE_ASSIGN(ReadingScorer scorer, ReadingScorer::create(checkpoint, declared, side.tables, side.norm, sample, kernels::best_kernels(), pool));
  const int k = std::clamp(served.value_or(kReplayDrafts), 1, kMaxReplaySteps);
  Reading mended = declared;
  if (source != nullptr) {
    SearchOptions options;
    options.k = k;
    options.on_progress = [](const std::string& doing) { spdlog::info("{}", doing); };
    AERIE_ASSIGN(const SearchResult result, search_hypotheses(scorer, declared, facts, options));
    report.add(verdict(result, k));
    report.add(judge_coverage(result));
    if (!result.rounds.empty()) mended = last_reading(result);
    if (side.target != nullptr) AERIE_TRY(check_final_state(flags, path, sample, scorer, side.tables, mended, k, report));
    report.add(judge_validation(result, flags.validated));
    AERIE_TRY(check_training(flags, path, sample, result, side, k, served, report));
    report.add(describe(result, sample, k, flags.validated));
    for (ChartSeries& series : accepted_by_step(result)) report.accepted_by_step.push_back(std::move(series));
    if (!flags.fix.empty()) AERIE_TRY(fix_files(flags.fix, checkpoint, result, facts, known, side.file ? &*side.file : nullptr, k, report));
    if (engine && !result.rounds.empty()) {
      AERIE_ASSIGN(const RawCheckpoint raw, RawCheckpoint::open(path));
      AERIE_ASSIGN(const auto as_served, replay_served(raw, *engine, target_arch, declared, facts, scorer, result.rounds.front().base, k));
      report.add(as_served);
    }
  }
  if (!flags.engine_trace.empty()) AERIE_TRY(compare_with_engine(flags.engine_trace, source.get(), scorer, mended, facts, report));
  return {};
}

}  // namespace aerie::cli
