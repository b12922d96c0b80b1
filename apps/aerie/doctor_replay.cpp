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
#include "eagle3/finding_text.h"
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
    if (norm.weight.size() != static_cast<size_t>(target->config().hidden))
      return corrupt("{}: output_norm.weight has {} values", path, norm.weight.size());
    tables = tables_of(*target, pool);
    return {};
  }
};

/// Drafts per cycle of a replay where nothing says how many are served.
constexpr int kReplayDrafts = 3;
/// Tokens of the trace that are looked at unless a person says how many: at first, and where more are needed to tell.
constexpr int64_t kFirstLook = 4096, kLastLook = 16384;

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

/// What was looked at, and what the search found there. Not moved: the scorer points into it.
struct Look {
  Sample sample;
  HypothesisFacts facts;
  Reading declared;
  std::optional<ReadingScorer> scorer;
  SearchResult result;
};

class Replay {
 public:
  Replay(const ReplayFlags& flags, const std::optional<EngineVersion>& engine, const std::string& target_arch, std::optional<int> served,
         int threads, Report& report)
      : flags_(flags),
        engine_(engine),
        target_arch_(target_arch),
        served_(served),
        k_(std::clamp(served.value_or(kReplayDrafts), 1, kMaxReplaySteps)),
        pool_(threads),
        report_(report) {}

  Status run() {
    std::error_code ignored;
    if (!flags_.fix.empty() && std::filesystem::exists(flags_.fix, ignored)) {
      return invalid_argument("--fix {}: is there already, give a name that is not taken", flags_.fix);
    }
    AERIE_ASSIGN(const bool readable, open());
    if (!readable && !flags_.fix.empty()) not_written("the files themselves are to be settled first");
    if (!readable) return {};
    if (flags_.traces.empty()) {
      auto look = std::make_unique<Look>();
      look->declared.spec = checkpoint_.spec;
      for (size_t tap = 0; tap < checkpoint_.spec.taps.size(); ++tap) look->declared.feature.push_back({static_cast<int>(tap), false});
      AERIE_TRY(add_facts(*look));
      return compare_with_engine(*look, look->declared);
    }
    TraceSource::Options options;
    options.rows = flags_.rows;
    options.without_mask = flags_.without_mask;
    AERIE_ASSIGN(source_, TraceSource::open(flags_.traces, options));
    AERIE_ASSIGN(const std::unique_ptr<Look> look, look_until_sure());
    return judge(*look);
  }

 private:
  void add(Severity severity, const std::string& code, const std::string& text, const std::string& fix = "") {
    report_.add(std::vector<Finding>{{severity, code, text, fix}});
  }

  /// False: the files are the answer.
  Expected<bool> open() {
    if (!flags_.target.empty()) AERIE_TRY(side_.open(flags_.target, pool_));
    AERIE_ASSIGN(path_, resolve_drafter(flags_.drafter));
    AERIE_ASSIGN(known_, flags_.reading.options());
    if (side_.file) AERIE_TRY(add_target_facts(*side_.file, known_));
    std::error_code ignored;
    auto opened = read_drafter(path_, known_);
    if (!opened.ok() && is_verdict_on_files(opened.status().code()) && std::filesystem::exists(path_, ignored)) {
      // What is wrong with the files is an answer, not a failure to answer.
      add(Severity::kError, "files-refused", opened.status().message(),
          "mend the files, then ask again: the replay needs a drafter that can be read");
      return false;
    }
    if (!opened.ok()) return opened.status();
    checkpoint_ = *std::move(opened);
    report_.add(checkpoint_.findings);
    // What the files leave open is the first thing to settle; replaying a guess would only blur it.
    if (has_error(checkpoint_.findings)) return false;
    if (const auto config = RawCheckpoint::read_config(path_); config.ok()) recorded_ = recorded_training(*config);
    if (flags_.target.empty()) {
      AERIE_ASSIGN(side_.tables, tables_without_target(checkpoint_.spec));
    }
    return true;
  }

  Status add_facts(Look& look) {
    HypothesisFacts& facts = look.facts;
    facts.slots = look.sample.slots;
    facts.blocks = look.sample.blocks != 0 ? look.sample.blocks : side_.target != nullptr ? side_.target->config().blocks : 0;
    for (const Conversation& c : look.sample.conversations) facts.longest = std::max(facts.longest, static_cast<int>(c.trace.length()));
    facts.has_target = side_.target != nullptr;
    if (side_.target != nullptr) facts.target_rope_theta = side_.target->config().rope_theta;
    if (source_ != nullptr) {
      AERIE_ASSIGN(DeclaredFeature feature, nearest_feature(checkpoint_.spec, look.sample.slots, facts.blocks));
      look.declared.feature = std::move(feature.feature);
      facts.stand_ins = std::move(feature.stand_ins);
    }
    AERIE_ASSIGN(look.scorer,
                 ReadingScorer::create(checkpoint_, look.declared, side_.tables, side_.norm, look.sample, kernels::best_kernels(), pool_));
    return {};
  }

  Expected<std::unique_ptr<Look>> look_at(int64_t tokens) {
    auto out = std::make_unique<Look>();
    SampleOptions sampling;
    sampling.max_tokens = tokens;
    AERIE_ASSIGN(out->sample, take_sample(*source_, checkpoint_.spec, sampling));
    AERIE_TRY(name_slots(flags_.slots, out->sample));
    if (!flags_.domains.empty()) AERIE_TRY(name_domains(flags_.domains, out->sample));
    out->declared.spec = checkpoint_.spec;
    AERIE_TRY(add_facts(*out));
    SearchOptions options;
    options.k = k_;
    options.on_progress = [](const std::string& doing) { spdlog::info("{}", doing); };
    AERIE_ASSIGN(out->result, search_hypotheses(*out->scorer, out->declared, out->facts, options));
    return out;
  }

  /// Looks at more of the trace where something does better and may be chance.
  Expected<std::unique_ptr<Look>> look_until_sure() {
    int64_t tokens = flags_.sample_tokens.value_or(kFirstLook);
    const int64_t most = flags_.sample_tokens ? tokens : kLastLook;
    while (true) {
      AERIE_ASSIGN(std::unique_ptr<Look> look, look_at(tokens));
      const std::optional<int64_t> wanted = tokens_that_would_tell(look->result);
      if (!wanted || tokens >= most) return look;
      tokens = std::min(std::max(*wanted, 2 * tokens), most);
      spdlog::info("something does better, which may be chance: looking at {} tokens", tokens);
    }
  }

  Status judge(Look& look) {
    const SearchResult& result = look.result;
    report_.add(look.sample.findings);
    if (!look.facts.stand_ins.empty()) {
      add(Severity::kWarning, "tap-not-stored",
          fmt::format("the trace does not hold every state that the drafter declares: {}, so that its figures as declared are near ones",
                      stand_in_text(look.facts.stand_ins)),
          "capture the declared boundaries too, and their neighbours");
    }
    std::vector<int> slots;
    for (const SlotUse& use : look.declared.feature) slots.push_back(use.slot);
    report_.add(judge_sizes(look.sample, checkpoint_.spec, slots));
    report_.add(verdict(result, k_));
    report_.add(judge_coverage(result));
    const Reading& mended = result.rounds.empty() ? look.declared : last_reading(result);
    if (side_.target != nullptr) AERIE_TRY(check_final_state(look, mended));
    report_.add(judge_validation(result, flags_.validated));
    check_training(look);
    report_.add(describe(result, look.sample, k_, flags_.validated));
    for (ChartSeries& series : accepted_by_step(result)) report_.accepted_by_step.push_back(std::move(series));
    if (!flags_.fix.empty()) fix_files(look);
    if (engine_ && !result.rounds.empty()) {
      AERIE_ASSIGN(const RawCheckpoint raw, RawCheckpoint::open(path_));
      report_.add(replay_served(raw, *engine_, target_arch_, look.declared, look.facts, *look.scorer, result.rounds.front().base, k_));
    }
    return flags_.engine_trace.empty() ? Status() : compare_with_engine(look, mended);
  }

  /// Which state gives the target's next tokens, and what it costs where the trainer took another one for it.
  Status check_final_state(Look& look, const Reading& reading) {
    int taken = static_cast<int>(look.sample.slots.size()) - 1;
    // As a person says it or as the trainer recorded it.
    if (const std::optional<int> teacher = flags_.teacher ? flags_.teacher : recorded_.teacher) {
      const auto& all = look.sample.slots;
      const auto at = std::find_if(all.begin(), all.end(), [&](const StateSlot& slot) {
        return slot.kind == StateSlot::Kind::kBoundary && slot.number == *teacher;
      });
      if (at == all.end()) {
        add(Severity::kWarning, "teacher-not-stored",
            fmt::format("the drafter's teacher read boundary {}, which the trace does not hold", *teacher), "capture it too");
      } else {
        taken = static_cast<int>(at - all.begin());
      }
    }
    AERIE_ASSIGN(const auto agreement, next_token_agreement(look.sample, *look.scorer, side_.tables));
    const bool sampled = !look.sample.sampled_at.empty();
    std::vector<Finding> findings = judge_slots(agreement, taken, sampled);
    if (!findings.empty() && !sampled) {  // the cost is told against words that are all the target's own
      AERIE_ASSIGN(const TeacherCost cost,
                   teacher_cost(look.sample, *look.scorer, side_.tables, reading, best_of_slot(agreement, taken)->use, k_));
      if (cost.rows > 0) add_cost(findings.front(), cost, k_);
    }
    report_.add(findings);
    report_.add(describe(agreement));
    return {};
  }

  /// What the mask, the files' record and the log tell of the training.
  void check_training(const Look& look) {
    if (side_.file) {
      const auto frame = AnswerFrame::of_target(*side_.file);
      if (frame.ok()) report_.add(judge_mask(look.sample, *frame));  // a target without a template has no opening
    }
    if (!look.result.rounds.empty()) report_.add(judge_training(recorded_, last_judged(look.result), k_, served_));
    if (flags_.training_log.empty()) return;
    constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
    const auto log = read_file(flags_.training_log, kMaxBytes);
    const auto judged = log.ok() ? judge_training_log(*log) : Expected<std::vector<Finding>>(log.status());
    if (judged.ok()) {
      report_.add(*judged);
    } else {
      add(Severity::kWarning, "training-log-not-read", fmt::format("{}: {}", flags_.training_log, judged.status().message()),
          "give the metrics.jsonl of aerie train");
    }
  }

  void not_written(const std::string& why) {
    add(Severity::kNote, "nothing-written", fmt::format("{} is not written: {}", flags_.fix, why));
  }

  /// Writes what was named, or says why nothing was written: the diagnosis stands in any case.
  void fix_files(const Look& look) {
    ConvertOptions options;
    options.tokenizer = side_.file ? &*side_.file : nullptr;
    options.target = {known_.target_architecture, known_.target_blocks};
    const auto mend = mend_checkpoint(checkpoint_, look.result, look.facts, options.target, k_);
    if (!mend.ok()) return not_written(mend.status().message());
    if (const Status written = write_mend(*mend, flags_.fix, options); !written.ok()) return not_written(written.message());
    report_.add(describe(*mend, flags_.fix));
  }

  Status compare_with_engine(Look& look, const Reading& reading) {
    AERIE_ASSIGN(const EngineTraceReader reader, EngineTraceReader::open(flags_.engine_trace));
    // Where a neighbour stands for a tap, the engine's states cannot be compared with the stored ones.
    const HypothesisFacts& facts = look.facts;
    const auto is_used = [&](const StandIn& s) {
      return s.tap < reading.feature.size() && facts.slots[static_cast<size_t>(reading.feature[s.tap].slot)].number == s.used;
    };
    const bool comparable = std::none_of(facts.stand_ins.begin(), facts.stand_ins.end(), is_used);
    AERIE_ASSIGN(const std::vector<EngineCase> cases, read_engine_cases(reader, comparable ? source_.get() : nullptr));
    AERIE_ASSIGN(const EngineComparison comparison, compare_engine(cases, *look.scorer, reading, facts));
    report_.add(comparison.findings);
    report_.add(describe(comparison, reader.manifest()));
    report_.accepted_by_step.push_back(accepted_by_step("served by " + reader.manifest().engine, comparison.accepted));
    return {};
  }

  const ReplayFlags& flags_;
  const std::optional<EngineVersion>& engine_;
  const std::string& target_arch_;
  const std::optional<int> served_;
  const int k_;
  ThreadPool pool_;
  Report& report_;
  TargetSide side_;
  std::string path_;
  OpenOptions known_;
  DraftCheckpoint checkpoint_;
  TrainingFacts recorded_;  // by the drafter's trainer
  std::unique_ptr<TraceSource> source_;
};

}  // namespace

void ReplayFlags::add_to(CLI::App& app) {
  auto* drafter_option =
      app.add_option("-d,--drafter", drafter, "drafter whose reading is in doubt: a folder or GGUF file, or a known name (smollm2)");
  auto* traces_option =
      app.add_option("--traces", traces, "stored states: of aerie capture, speculators, SpecForge, Model-Optimizer or SafeAILab");
  traces_option->needs(drafter_option);
  app.add_option("--engine-trace", engine_trace,
                 "what an engine's drafter was handed and answered (docs/trace-format.md): is compared with the replay")
      ->needs(drafter_option);
  app.add_option("-m,--model", target, "its target: adds the check of the final state, and shared tables as hypotheses")
      ->needs(drafter_option);
  reading.add_to(app);
  app.add_option(
         "--trace-rows", rows,
         "the rows of a speculators trace, where they do not lie beside it: a folder that datasets saved, or JSON lines of input_ids and "
         "loss_mask")
      ->needs(traces_option);
  app.add_option("--slots", slots,
                 "boundaries of the trace's states in their order, where it does not say them: 0,2,15,28; final is the normed final state")
      ->needs(traces_option)
      ->delimiter(',');
  app.add_option("--teacher", teacher,
                 "boundary that its trainer took for the final state (default: what the files record, else the trace's last state)")
      ->needs(traces_option)
      ->check(CLI::NonNegativeNumber);
  app.add_option("--validated", validated, "share of drafts right that its training reported, by step: 0.747,0.61")
      ->needs(traces_option)
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--domains", domains,
                 "JSON lines whose line i names the domain, category or source of row i of the trace (the prompts that were captured): "
                 "acceptance by domain")
      ->needs(traces_option);
  app.add_option("--training-log", training_log, "metrics.jsonl of aerie train: whether it was trained too long, or not long enough")
      ->needs(traces_option);
  app.add_option("--fix", fix, "write the drafter with the named faults mended to this folder (or NAME.gguf), where files can state it")
      ->needs(traces_option);
  app.add_flag("--without-mask", without_mask, "take every token for the target's own where the trace has no mask")->needs(traces_option);
  app.add_option("--sample-tokens", sample_tokens,
                 fmt::format("tokens of the trace to look at, drawn from all over it (default: {}, and up to {} where more would settle "
                             "what may be chance)",
                             kFirstLook, kLastLook))
      ->needs(traces_option)
      ->check(CLI::Range(int64_t{64}, int64_t{1} << 24));
  app.add_option("--threads", threads, "threads that compute (default: the cores this process may use)")
      ->check(CLI::Range(1, 4 * default_thread_count()));
}

Status replay_hypotheses(const ReplayFlags& flags, const std::optional<EngineVersion>& engine, const std::string& target_arch,
                         std::optional<int> served, Report& report) {
  AERIE_ASSIGN(const int threads, choose_threads(flags.threads));
  return Replay(flags, engine, target_arch, served, threads, report).run();
}

}  // namespace aerie::cli
