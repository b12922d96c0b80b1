// Where acceptance is lost: by draft step, position, domain and conversation.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "doctor/chart.h"
#include "doctor/hypothesis_search.h"

namespace aerie {

/// Parts of each conversation or request, and whose they are: "as declared".
using NamedParts = std::pair<std::string, std::vector<RatioPart>>;

/// The charts of a search that was made: shares right by step as a validation counts them (beside `validated`, what the training
/// reported), first drafts by position, acceptance length by domain where the sample knows them, conversations by acceptance length,
/// and the readings of each round.
std::vector<Chart> breakdown(const SearchResult& result, const Sample& sample, std::span<const double> validated);

/// Cycles that accept the draft of each step, of a search: as declared, and as mended where something was named.
std::vector<ChartSeries> accepted_by_step(const SearchResult& result);
/// The same from parts [step][request].
ChartSeries accepted_by_step(const std::string& name, const std::vector<std::vector<RatioPart>>& parts);

/// How many conversations or requests have which acceptance length.
Chart length_histogram(const std::string& title, const std::vector<NamedParts>& lengths);

/// Whether the replay bears out what the training reported of its first drafts: a warning where it is worse beyond chance, else a note,
/// which says so where it is better.
/// None without a report or a search.
std::vector<Finding> judge_validation(const SearchResult& result, std::span<const double> validated);

}  // namespace aerie
