#include "train/dataset_check.h"

#include <spdlog/spdlog.h>

#include "doctor/data_check.h"
#include "eagle3/finding_text.h"

namespace aerie::train {

void report_on_data(const Dataset& data, const TargetTensors& target) {
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
