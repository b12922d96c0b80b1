// How often a text holds each token, and how much of it a draft vocabulary covers.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "eagle3/draft_spec.h"
#include "eagle3/finding.h"

namespace aerie {

/// How often each target token occurs [V]. `path` is a JSON object from id to count, a JSON list of V counts, lines "ID COUNT", a file
/// of torch.save with a dict from id to count (speculators' token_freq.pt), or a folder of traces (any that TraceSource reads), whose
/// answers are counted. Refused: another shape, ids outside the vocabulary or given twice, negative counts, no token at all.
Expected<std::vector<double>> read_token_frequencies(const std::string& path, int vocab);

struct VocabularyCoverage {
  double share = 0;  // of the text's tokens that the drafter can propose: no acceptance rate exceeds it
  double best = 0;   // of its draft_vocab most frequent tokens: no map of this size covers more
};
/// `frequencies` [V] has a positive sum.
VocabularyCoverage vocabulary_coverage(const DraftSpec& spec, const std::vector<double>& frequencies);

/// "coverage-low": a warning, less than 90 % is covered, or a map of the same size would cover 5 % more.
std::vector<Finding> coverage_findings(const DraftSpec& spec, const VocabularyCoverage& coverage);

}  // namespace aerie
