// What a search over hypotheses amounts to: findings for people, a section with the figures.
#pragma once

#include "doctor/hypothesis_search.h"
#include "doctor/report.h"

namespace aerie {

/// One finding for each fault named, or what can be said instead: no fault, perhaps a fault, too little data, no reading works.
std::vector<Finding> verdict(const SearchResult& result, int k);

/// Where something does better that may be chance, or two readings explain a fault alike, and the trace holds enough to tell: tokens of it
/// that probably would.
std::optional<int64_t> tokens_that_would_tell(const SearchResult& result);

/// The reading with the faults mended that verdict() calls errors, up to the first that it is less sure of; null where there is none.
const Reading* certain_reading(const SearchResult& result, int k);

/// Warns where the draft vocabulary leaves out much of what the target writes: no draft can be one of those tokens.
std::vector<Finding> judge_coverage(const SearchResult& result);

/// The figures behind it: each round's ranking, and where acceptance is lost (breakdown.h). `validated`: see there.
ReportSection describe(const SearchResult& result, const Sample& sample, int k, std::span<const double> validated = {});

}  // namespace aerie
