// The conversations that a diagnosis looks at: drawn from all over a trace, and no more than memory and time allow.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "eagle3/draft_spec.h"
#include "eagle3/finding.h"
#include "formats/trace_source.h"

namespace aerie {

/// Of a conversation that is cut short: tokens from the begin of its first answer.
inline constexpr int kLeastAnswer = 64;

struct SampleOptions {
  int64_t max_tokens = 8192;  // of all conversations, prompts included
  int max_length = 1024;      // of one conversation; what lies behind is not looked at
  /// Conversations are cut short so that as many fit in: an interval over a few long ones says little. (Never to fewer than
  /// kLeastAnswer tokens of their answers.)
  int wanted_conversations = 32;
  uint64_t max_bytes = uint64_t{1} << 30;  // of states in memory
};

struct Sample {
  std::vector<Conversation> conversations;  // each has at least one row at which a cycle can stand
  std::vector<StateSlot> slots;
  int hidden = 0;
  int blocks = 0;          // N of the target, 0 where the trace does not say it
  std::string sampled_at;  // temperatures that the answers were drawn at; empty: greedily, or the trace does not say it
  int64_t tokens = 0;
  int64_t rows = 0;                  // at which a cycle can stand
  size_t available = 0;              // conversations that the trace holds
  std::string how;                   // what was taken of how much, in words
  std::vector<std::string> domains;  // of the conversations, or none
  std::vector<Finding> findings;     // what was wrong with the trace

  std::vector<std::string> slot_names() const;
};

/// Reads each conversation's domain out of JSON lines: line i is of row i (the last number in the conversation's id), and its domain is
/// `domain`, `category` or `source`, whichever is there first. Where there are more than 12 domains, the rarest become "other".
Status name_domains(const std::string& path, Sample& sample);

/// Warns where the states that a drafter without a feature norm reads are of very unlike size: the largest drowns the others, and
/// training runs away.
std::vector<Finding> judge_sizes(const Sample& sample, const DraftSpec& spec, std::span<const int> slots);

/// Reads conversations in an order that spreads evenly over the source, until one of the bounds is reached, cut short where more would not
/// fit. Conversations without two
/// tokens of an answer are passed over; those that cannot be read are too, with a finding. kInvalidArgument: states of another width
/// or tokens of another vocabulary than the drafter's, or nothing that could be replayed.
Expected<Sample> take_sample(const TraceSource& source, const DraftSpec& spec, const SampleOptions& options);

}  // namespace aerie
