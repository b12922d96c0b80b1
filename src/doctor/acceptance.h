// Acceptance under one set of definitions, and the arithmetic between the definitions of others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace aerie {

/// What an engine calls its acceptance rate.
enum class RateDefinition {
  kAcceptedOverDrafted,  // the bonus token in neither: (length - 1) / K (vLLM, llama.cpp, SGLang's log from 0.5.11, its requests always)
  kLengthOverTokens,     // the bonus token in both: length / (K + 1) (SGLang's log from 0.5.6 to 0.5.10)
};

/// `length` is tokens emitted per verify, bonus token included; K drafts per verify, K >= 1.
double rate_from_length(double length, int k, RateDefinition definition);
double length_from_rate(double rate, int k, RateDefinition definition);

/// Unconditional p_s (the draft of step s is accepted) and conditional a_s (given that all before it were): a_s = p_s / p_(s-1), 0 where
/// nothing got that far.
std::vector<double> conditional_from_unconditional(const std::vector<double>& p);
std::vector<double> unconditional_from_conditional(const std::vector<double>& a);
/// 1 + the sum of p.
double length_from_unconditional(const std::vector<double>& p);

/// What is known of a drafter's acceptance. A verify is one forward of the target for one sequence.
struct Acceptance {
  std::optional<int> k;          // drafts per verify (tree nodes in a tree)
  std::optional<double> length;  // tokens emitted per verify, bonus token included
  std::optional<double> rate;    // accepted / drafted
  std::optional<uint64_t> verifies, drafted, accepted;
  std::vector<double> unconditional, conditional;  // by draft step, as far as known
  std::vector<uint64_t> histogram;                 // verifies by number of accepted drafts, the bonus token not counted

  /// Fills what follows from what is known; nothing that is known is overwritten.
  void complete();
  /// An upper bound of the standard error of `length`, for verifies that are independent; nothing without their number.
  std::optional<double> length_error() const;
};

}  // namespace aerie
