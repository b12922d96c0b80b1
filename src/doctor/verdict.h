// What a search over hypotheses amounts to: findings for people, a section with the figures.
#pragma once

#include "doctor/hypothesis_search.h"
#include "doctor/report.h"

namespace aerie {

/// One finding for each fault named, or what can be said instead: no fault, perhaps a fault, too little data, no reading works.
std::vector<Finding> verdict(const SearchResult& result, int k);

/// Warns where the draft vocabulary leaves out much of what the target writes: no draft can be one of those tokens.
std::vector<Finding> judge_coverage(const SearchResult& result);

/// The figures behind it: each round's ranking.
ReportSection describe(const SearchResult& result, const Sample& sample, int k);

/// An engine's reading beside the declared one.
std::vector<Finding> judge_served(const std::string& engine, const Judged& served, const Judged& declared, const std::vector<std::string>& differences,
                                  int k);

}  // namespace aerie
