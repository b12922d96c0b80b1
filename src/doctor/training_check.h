// How a drafter was trained, as far as a trace, its files and its training's log tell: the causes that no other reading can mend.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/hypothesis_search.h"
#include "eagle3/finding.h"
#include "formats/gguf.h"

namespace aerie {

/// What stands around an answer of the target.
struct AnswerFrame {
  std::vector<int32_t> opening;  // with which its template asks for one: <|im_start|>assistant\n
  std::vector<int32_t> ends;     // tokens that end a turn

  /// From the target's tokenizer and template. kNotFound: it has no template, or one whose answers have no opening of their own.
  static Expected<AnswerFrame> of_target(const GgufFile& target);
};

/// Whether the answers of the mask begin after the opening, at their first token, and end with the token that ends a turn.
class MaskCheck {
 public:
  /// Without a frame nothing is said.
  explicit MaskCheck(const AnswerFrame* frame) : frame_(frame) {}

  /// A conversation whose trace has no mask is passed over.
  void add(const Conversation& conversation);
  std::vector<Finding> findings() const;

 private:
  const AnswerFrame* frame_;
  int answers_ = 0, ended_ = 0, end_left_out_ = 0;
  std::map<int, int> late_;  // answers by how many tokens behind the opening the mask begins
};

/// The same of a sample.
std::vector<Finding> judge_mask(const Sample& sample, const AnswerFrame& frame);

struct TrainingFacts {
  std::optional<int64_t> conversations = {};
  std::optional<int> steps = {};    // unrolled: tokens that it learned to draft
  std::optional<int> teacher = {};  // the boundary that it took for the final state
};

/// What the trainer recorded in the drafter's config ("aerie_training").
TrainingFacts recorded_training(const nlohmann::json& config);

/// `reading`: the one that works best, replayed with `replayed` drafts per cycle. `served`: drafts per cycle, where it is known.
std::vector<Finding> judge_training(const TrainingFacts& facts, const Judged& reading, int replayed, std::optional<int> served);

/// The log of aerie train (metrics.jsonl): whether the drafts got worse while the loss went on falling. kCorrupt names the line;
/// kNotFound: it has fewer than two validations.
Expected<std::vector<Finding>> judge_training_log(std::string_view text);

}  // namespace aerie
