// Training data before it is trained on: what a folder of traces holds, and what in it makes drafters that are not accepted.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "doctor/report.h"
#include "doctor/training_check.h"
#include "formats/trace_source.h"

namespace aerie {

/// Takes conversations one by one and keeps counts and a checksum of each: a folder of any size passes through.
class DataCheck {
 public:
  /// `frame`: of the target, or null. `vocab`: of the target, 0 where it is not known.
  explicit DataCheck(const AnswerFrame* frame = nullptr, int vocab = 0) : mask_(frame), vocab_(vocab) {}

  void add(const Conversation& conversation);
  /// A conversation that cannot be read: damaged, or with states that are not finite.
  void add_unreadable(const Status& why);

  std::vector<Finding> findings() const;
  /// Tokens, answers, lengths, repetition, and the draft vocabularies that cover 90, 95 and 99 % of the answers.
  ReportSection section() const;

  /// Share of the answers' tokens that the `size` most frequent of them make up.
  double coverage(size_t size) const;
  /// The smallest draft vocabulary that covers this share.
  size_t vocab_for(double share) const;

 private:
  double repeated() const;
  std::vector<int64_t> descending_counts() const;

  MaskCheck mask_;
  int vocab_;
  int64_t conversations_ = 0, tokens_ = 0, answer_tokens_ = 0, supervised_ = 0, without_answer_ = 0, without_mask_ = 0, all_ones_ = 0;
  int64_t unreadable_ = 0, duplicates_ = 0, outside_ = 0;
  int64_t grams_ = 0, repeated_grams_ = 0;
  size_t longest_ = 0;
  std::string first_unreadable_;
  std::set<std::pair<uint64_t, uint64_t>> seen_;  // two hashes of the tokens of each conversation
  std::unordered_map<int32_t, int64_t> counts_;   // of the answers' tokens
};

}  // namespace aerie
