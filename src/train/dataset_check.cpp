#include "train/dataset_check.h"

#include <spdlog/spdlog.h>

#include "doctor/data_check.h"
#include "eagle3/finding_text.h"

namespace aerie::train {

void report_on_data(const Dataset& data, const TargetTensors& target, int row_length) {
  const DatasetReport& report = data.report();
  for (const std::string& why : report.unreadable) spdlog::warn("left out: {}", why);
  for (const std::string& folder : report.sampled)
    spdlog::info("the answers of {} were drawn: accuracy and acceptance count matches with the token drawn", folder);
  if (report.too_long > 0) spdlog::warn("left out {} conversations longer than {} tokens (--row-length)", report.too_long, row_length);
  if (report.nothing_supervised > 0) spdlog::warn("left out {} conversations without an answer to train on", report.nothing_supervised);
  if (data.teacher() != data.manifest().target.blocks) {
    spdlog::warn(
        "the teacher is the head over {}, which is not the target's final state (boundary {}): what is learned is another model's word",
        boundary_name(data.teacher()), data.manifest().target.blocks);
  }
  DataCheck check(target.frame ? &*target.frame : nullptr, target.config.vocab);
  for (const auto* conversations : {&data.training(), &data.held_out()}) {
    for (const Conversation& conversation : *conversations) {
      aerie::Conversation looked_at;
      looked_at.trace.tokens = conversation.tokens;
      looked_at.trace.mask = conversation.mask;
      check.add(looked_at);
    }
  }
  for (const Finding& finding : ranked(check.findings())) {
    spdlog::log(finding.severity == Severity::kNote ? spdlog::level::info : spdlog::level::warn, "the data: {}", finding_text(finding));
  }
}

}  // namespace aerie::train
