// aerie data check: what a folder of traces holds, and what in it makes drafters that are not accepted.
#include "command.h"
#include "doctor/data_check.h"
#include "eagle3/finding_text.h"
#include "eagle3/target_fit.h"

namespace aerie::cli {
namespace {

struct DataFlags {
  std::vector<std::string> traces;
  std::string target, rows;
  bool json = false;
};

Status run_check(const DataFlags& flags) {
  if (!flags.rows.empty() && flags.traces.size() > 1)
    return invalid_argument("--trace-rows belongs to one folder, {} were given", flags.traces.size());
  std::optional<AnswerFrame> frame;
  int vocab = 0;
  if (!flags.target.empty()) {
    AERIE_ASSIGN(const std::string path, resolve_target(flags.target));
    AERIE_ASSIGN(const GgufFile file, GgufFile::open(path));
    AERIE_ASSIGN(const TargetFacts facts, target_facts(file));
    vocab = facts.vocab;
    auto framed = AnswerFrame::of_target(file);
    if (framed.ok()) {
      frame = *std::move(framed);
    } else {
      spdlog::warn("{}: {}; where answers begin is not checked", path, framed.status().message());
    }
  }
  DataCheck check(frame ? &*frame : nullptr, vocab);
  for (const std::string& folder : flags.traces) {
    TraceSource::Options options;
    options.rows = flags.rows;
    options.without_mask = flags.rows.empty();  // is a finding, not a failure to look
    AERIE_ASSIGN(const auto source, TraceSource::open(folder, options));
    if (source->manifest() != nullptr && !source->manifest()->sampled_at().empty()) {
      spdlog::info("{}: the answers were drawn at temperature {}", folder, source->manifest()->sampled_at());
    }
    for (size_t i = 0; i < source->size(); ++i) {
      const auto conversation = source->read(i);
      if (conversation.ok()) {
        check.add(*conversation);
      } else {
        check.add_unreadable(conversation.status());
      }
    }
  }
  Report report;
  report.add(check.findings());
  report.add(check.section());
  print_report(report, flags.json);
  if (has_error(report.findings)) return corrupt("this data is not fit to be trained on: see the errors");
  return {};
}

}  // namespace

void add_data(CLI::App& app, Work& work) {
  auto* data = app.add_subcommand("data", "look at traces before they are trained on");
  data->require_subcommand(1);
  auto* command = data->add_subcommand(
      "check",
      "mask, template, coverage, duplicates, repetition and damage of traces; exit code 1 where a drafter should not be trained on them");
  auto flags = std::make_shared<DataFlags>();
  command->add_option("traces", flags->traces, "folders of traces: of aerie capture, speculators, SpecForge, Model-Optimizer or SafeAILab")
      ->required();
  command->add_option("-m,--model", flags->target, "the target: adds where its template begins answers, and its vocabulary");
  command->add_option(
      "--trace-rows", flags->rows,
      "the rows of a speculators trace, where they do not lie beside it: a folder that datasets saved, or JSON lines of input_ids and "
      "loss_mask");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, &work] { work = [flags] { return run_check(*flags); }; });
}

}  // namespace aerie::cli
