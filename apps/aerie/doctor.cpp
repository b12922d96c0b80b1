// aerie doctor: which reading of a drafter works on stored states, what an engine's flags put in force, what its figures say, and what
// drafting is worth.
#include "base/file_io.h"
#include "command.h"
#include "doctor/acceptance_signs.h"
#include "doctor/report.h"
#include "doctor_replay.h"

namespace aerie::cli {
namespace {

constexpr uint64_t kMaxCommandBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxLogBytes = uint64_t{1} << 30;

struct DoctorFlags {
  std::string engine, command_line, command_file, target_arch, verify_ms, html;
  std::vector<std::string> logs;
  double draft_ms = 0;
  int k = 0;
  bool json = false;
  ReplayFlags replay;
};

/// FILE or CONDITION=FILE. A file whose name holds '=' is given as ./FILE.
Status read_log(const EngineVersion& engine, const std::string& argument, std::optional<int> k, std::optional<int> depth, Report& report,
                std::vector<LabelledReading>& labelled, std::vector<MetricsReading>& readings) {
  const size_t equals = argument.find('=');
  const bool has_condition = equals != std::string::npos && argument.find('/') > equals;
  const std::string condition = has_condition ? argument.substr(0, equals) : "",
                    path = has_condition ? argument.substr(equals + 1) : argument;
  LabelledReading entry;
  if (has_condition) {
    AERIE_ASSIGN(const auto parsed, parse_condition(condition));
    entry.kind = parsed.first, entry.value = parsed.second;
  }
  AERIE_ASSIGN(const std::string text, read_file(path, kMaxLogBytes));
  auto reading = read_engine_metrics(engine, text, k);
  if (!reading.ok()) return reading.status().with_context(path);
  report.add(describe(*reading, condition));
  report.add(reading->findings);
  report.add(judge_acceptance(*reading, depth));
  if (!reading->acceptance.unconditional.empty()) {
    report.accepted_by_step.push_back(
        exact_series(has_condition ? condition : "as the engine states it", reading->acceptance.unconditional));
  }
  readings.push_back(*reading);
  if (has_condition) {
    entry.reading = *std::move(reading);
    labelled.push_back(std::move(entry));
  }
  return {};
}

Status run_doctor(const DoctorFlags& flags) {
  std::optional<EngineVersion> engine;
  if (!flags.engine.empty()) {
    AERIE_ASSIGN(engine, parse_engine(flags.engine));
  }
  std::string command = flags.command_line;
  if (!flags.command_file.empty()) {
    AERIE_ASSIGN(command, read_file(flags.command_file, kMaxCommandBytes));
  }
  if (command.empty() && flags.logs.empty() && flags.verify_ms.empty() && !flags.replay.given()) {
    return invalid_argument(
        "there is nothing to look at: give -d with --traces or --engine-trace, or --engine with --command-line or --log, or --verify-ms");
  }
  if (!flags.replay.complete())
    return invalid_argument("-d names a drafter, but there is nothing to replay it on: give --traces or --engine-trace");
  if (!engine && (!command.empty() || !flags.logs.empty())) {
    return invalid_argument("--command-line and --log are read by the rules of an engine: name it with --engine");
  }
  Report report;
  std::optional<int> k, depth;
  if (flags.k > 0) k = flags.k;
  if (!command.empty()) {
    AERIE_ASSIGN(const EngineSetup setup, read_engine_flags(*engine, command, {.target_architecture = flags.target_arch}));
    report.add(describe(setup));
    report.add(setup.findings);
    if (!setup.draft_tokens_vary && !k) k = setup.draft_tokens;
    depth = setup.depth;
  }
  if (flags.replay.given()) {
    AERIE_TRY(replay_hypotheses(flags.replay, engine, flags.target_arch, depth ? depth : k, report));
  }
  std::vector<LabelledReading> labelled;
  std::vector<MetricsReading> readings;
  for (const std::string& log : flags.logs) AERIE_TRY(read_log(*engine, log, k, depth, report, labelled, readings));
  report.add(compare_conditions(labelled));
  if (!flags.verify_ms.empty()) {
    AERIE_ASSIGN(auto points, parse_verify_costs(flags.verify_ms));
    AERIE_ASSIGN(const CostCurve costs, CostCurve::create(std::move(points), flags.draft_ms));
    std::vector<Finding> findings;
    report.add(describe(costs, readings.empty() ? Acceptance() : readings.front().acceptance, findings));
    report.add(findings);
  }
  print_report(report, flags.json);
  if (!flags.html.empty()) {
    const std::string title = flags.replay.drafter.empty() ? "aerie doctor" : "aerie doctor: " + flags.replay.drafter;
    AERIE_TRY(write_file_atomically(flags.html, report.html(title)));
  }
  return {};
}

}  // namespace

void add_doctor(CLI::App& app, Work& work) {
  auto* command =
      app.add_subcommand("doctor", "say why a drafter is not accepted: from stored states, from another engine's flags, from its figures");
  auto flags = std::make_shared<DoctorFlags>();
  flags->replay.add_to(*command);
  command->add_option(
      "--engine", flags->engine,
      "sglang, vllm, llama.cpp, tensorrt-llm or openvino, with its version: sglang:0.5.23, vllm:0.33, vllm:0.28:v1; with -d, "
      "its reading of the files is replayed too");
  auto* line = command->add_option("--command-line", flags->command_line,
                                   "how the engine was started, in one argument (TensorRT-LLM, OpenVINO: also their run configuration)");
  command->add_option("--command-file", flags->command_file, "the same from a file")->excludes(line);
  command->add_option("--target-arch", flags->target_arch,
                      "architecture of the target (LlamaForCausalLM, KimiK25), where the engine's rules depend on it");
  command->add_option(
      "--log", flags->logs,
      "log, metrics page or JSON replies of the engine; several as cold=FILE warm=FILE, batch:N=FILE or context:N=FILE are compared");
  command->add_option("-k", flags->k, "drafts per verify, if neither flags nor log say it")->check(CLI::Range(1, 1024));
  command->add_option("--verify-ms", flags->verify_ms, "cost of one forward of the target by rows: 1:27.5,2:29,4:33 (milliseconds)");
  command->add_option("--draft-ms", flags->draft_ms, "cost of one draft in milliseconds")->check(CLI::NonNegativeNumber);
  command->add_option("--html", flags->html, "write the report with plots to this file too: one page that needs no network");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, &work] { work = [flags] { return run_doctor(*flags); }; });
}

}  // namespace aerie::cli
