#include "doctor/training_check.h"

#include <algorithm>
#include <cmath>

#include "eagle3/replay.h"
#include "formats/json_text.h"
#include "text/chat_template.h"

namespace aerie {
namespace {

constexpr int kReach = 8;             // tokens that a mask may be off by and still be recognised
constexpr double kMost = 0.8;         // share of the answers that a statement about a mask must hold for
constexpr double kOverfitted = 0.05;  // share of the accepted drafts that were lost again

/// Published drafters, three drafts per cycle, targets of 7 to 8 B parameters: conversations trained on, acceptance length (speculators'
/// tutorials at 5,000; Qwen2.5-7B at 50,000; SpecForge's and the EAGLE-3 paper's at 135,000 to 600,000).
constexpr std::pair<double, double> kPublished[] = {{5e3, 1.475}, {5e4, 1.9}, {3e5, 2.75}};
constexpr double kBand = 0.25;
constexpr int kPublishedDrafts = 3;

/// Acceptance length that this much data has given: straight between the published points over the logarithm, and beyond them.
double published_length(double conversations) {
  size_t i = 1;
  while (i + 1 < std::size(kPublished) && conversations > kPublished[i].first) ++i;
  const auto [x0, y0] = kPublished[i - 1];
  const auto [x1, y1] = kPublished[i];
  return std::max(1.0, y0 + (y1 - y0) * std::log(conversations / x0) / std::log(x1 / x0));
}

bool stands_before(const std::vector<int32_t>& tokens, int at, const std::vector<int32_t>& opening) {
  const int begin = at - static_cast<int>(opening.size());
  return begin >= 0 && at <= static_cast<int>(tokens.size()) && std::equal(opening.begin(), opening.end(), tokens.begin() + begin);
}

bool contains(const std::vector<int32_t>& list, int32_t value) { return std::find(list.begin(), list.end(), value) != list.end(); }

}  // namespace

Expected<AnswerFrame> AnswerFrame::of_target(const GgufFile& target) {
  AERIE_ASSIGN(const Tokenizer tokenizer, Tokenizer::from_gguf(target));
  AERIE_ASSIGN(const ChatTemplate chat, ChatTemplate::from_gguf(target, tokenizer));
  const std::vector<ChatMessage> messages = {{"user", "x"}};
  AERIE_ASSIGN(const RenderedPrompt asked, chat.render(messages, true));
  AERIE_ASSIGN(const RenderedPrompt told, chat.render(messages, false));
  const std::string with = asked.text(), without = told.text();
  if (with.size() <= without.size() || with.compare(0, without.size(), without) != 0)
    return not_found("the target's template has no opening of answers of its own");
  AnswerFrame out;
  AERIE_ASSIGN(out.opening, tokenizer.encode_with_special(with.substr(without.size())));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_end_of_generation(id)) out.ends.push_back(id);
  }
  return out;
}

void MaskCheck::add(const Conversation& conversation) {
  const std::vector<uint8_t>& mask = conversation.trace.mask;
  // One of all ones marks no answer, and is a finding of its own.
  if (frame_ == nullptr || !conversation.has_mask || marks_everything(mask)) return;
  const std::vector<int32_t>& tokens = conversation.trace.tokens;
  for (const Answer& answer : find_answers(conversation.trace.mask)) {
    ++answers_;
    const bool last_is_end = contains(frame_->ends, tokens[static_cast<size_t>(answer.last)]);
    const size_t next = static_cast<size_t>(answer.last) + 1;
    ended_ += last_is_end ? 1 : 0;
    end_left_out_ += !last_is_end && next < tokens.size() && contains(frame_->ends, tokens[next]) ? 1 : 0;
    for (int distance = 0; distance <= 2 * kReach; ++distance) {  // 0, 1, -1, 2, ...
      const int off = distance % 2 == 1 ? (distance + 1) / 2 : -distance / 2;
      if (!stands_before(tokens, answer.first - off, frame_->opening)) continue;
      ++late_[off];
      break;
    }
  }
}

std::vector<Finding> MaskCheck::findings() const {
  if (frame_ == nullptr || answers_ == 0 || frame_->opening.empty()) return {};
  std::vector<Finding> out;
  const auto most = [&](int count) { return count >= kMost * answers_; };
  int framed = 0;
  for (const auto& [off, count] : late_) {
    framed += count;
    if (off == 0 || !most(count)) continue;
    out.push_back({Severity::kWarning, off > 0 ? "mask-begins-late" : "mask-begins-early",
                   fmt::format("in {} of {} answers the mask begins {} token{} {} the answer: {}", count, answers_, std::abs(off),
                               std::abs(off) == 1 ? "" : "s", off > 0 ? "into" : "before",
                               off > 0 ? "their first tokens are never trained on, and the first draft of an answer is weak"
                                       : "the template's own words are trained on as answers"),
                   "let the mask be 1 from the first token after the template's opening of an answer to the token that ends the turn"});
  }
  if (framed < (1 - kMost) * answers_) {
    out.push_back({Severity::kWarning, "another-template",
                   fmt::format("{} of {} answers do not begin after the words with which the target's template asks for one: they were "
                               "written with another template, "
                               "and served prompts will not look like them",
                               answers_ - framed, answers_),
                   "capture with the template that is served (aerie capture does)"});
  }
  if (most(end_left_out_) && ended_ == 0) {
    out.push_back({Severity::kWarning, "mask-without-end",
                   fmt::format("in {} of {} answers the mask leaves out the token that ends the turn: the drafter never learned to end one",
                               end_left_out_, answers_),
                   "let the mask take in the token that ends the turn"});
  }
  return out;
}

std::vector<Finding> judge_mask(const Sample& sample, const AnswerFrame& frame) {
  MaskCheck check(&frame);
  for (const Conversation& conversation : sample.conversations) check.add(conversation);
  return check.findings();
}

TrainingFacts recorded_training(const nlohmann::json& config) {
  TrainingFacts out;
  const auto record = config.is_object() ? config.find("aerie_training") : config.end();
  if (record == config.end() || !record->is_object()) return out;
  const auto count = [&](const char* key, uint64_t most) -> std::optional<int64_t> {
    const auto it = record->find(key);
    if (it == record->end() || !it->is_number_unsigned() || it->get<uint64_t>() > most) return std::nullopt;
    return it->get<int64_t>();
  };
  out.conversations = count("conversations", uint64_t{1} << 40);
  if (const auto steps = count("ttt_steps", 64)) out.steps = static_cast<int>(*steps);
  if (const auto teacher = count("teacher_boundary", kMaxTap)) out.teacher = static_cast<int>(*teacher);
  return out;
}

std::vector<Finding> judge_training(const TrainingFacts& facts, const Judged& reading, int replayed, std::optional<int> served) {
  std::vector<Finding> out;
  if (facts.steps && served && *served > *facts.steps) {
    out.push_back(
        {Severity::kWarning, "drafts-beyond-trained-steps",
         fmt::format("{} tokens are drafted, the drafter was trained to draft {}: what lies beyond reads states that it never learned from",
                     *served, *facts.steps),
         fmt::format("draft {} or fewer, or train with {} steps", *facts.steps, *served)});
  }
  if (facts.conversations && *facts.conversations > 0 && replayed == kPublishedDrafts) {
    const double expected = published_length(static_cast<double>(*facts.conversations));
    const std::string text = fmt::format(
        "trained on {} conversations; published drafters of larger targets trained on as many reach an acceptance length of about {:.1f} "
        "to {:.1f} "
        "at {} drafts, this one {}",
        *facts.conversations, std::max(1.0, expected - kBand), expected + kBand, kPublishedDrafts, reading.length.text());
    if (reading.length.high < expected - kBand) {
      out.push_back({Severity::kWarning, "less-than-the-data-allows", text, "look for what else is wrong before taking more data"});
    } else {
      out.push_back({Severity::kNote, "as-the-data-allows", text,
                     "what raises it is more data: about 0.4 for ten times as many conversations, in those results"});
    }
  }
  return out;
}

Expected<std::vector<Finding>> judge_training_log(std::string_view text) {
  struct Validation {
    int64_t step = 0;
    double length = 0, loss = 0;  // the mean loss of the steps since the validation before
  };
  std::vector<Validation> validations;
  double loss = 0;
  int64_t steps = 0, number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    const auto parsed = parse_json(line);
    if (!parsed.ok()) return parsed.status().with_context(fmt::format("line {}", number));
    const auto bad = [&] {
      return corrupt("line {}: expected step with loss, or with a validation whose walk_acceptance_length is a list of numbers", number);
    };
    const auto is_number = [](const nlohmann::json& object, const char* key) { return object.contains(key) && object[key].is_number(); };
    if (!parsed->is_object() || !is_number(*parsed, "step")) return bad();
    if (is_number(*parsed, "loss")) {
      loss += (*parsed)["loss"].get<double>();
      ++steps;
      continue;
    }
    if (!parsed->contains("validation")) continue;
    const auto& validation = (*parsed)["validation"];
    if (!validation.is_object() || !validation.contains("walk_acceptance_length")) return bad();
    const auto& lengths = validation["walk_acceptance_length"];
    if (!lengths.is_array() || lengths.empty() || !lengths.back().is_number()) return bad();
    validations.push_back(
        {(*parsed)["step"].get<int64_t>(), lengths.back().get<double>(), steps == 0 ? 0.0 : loss / static_cast<double>(steps)});
    loss = 0;
    steps = 0;
  }
  if (validations.size() < 2)
    return not_found("it has {} validation{} with a walk_acceptance_length, two are needed", validations.size(),
                     validations.size() == 1 ? "" : "s");
  const auto best = std::max_element(validations.begin(), validations.end(),
                                     [](const Validation& a, const Validation& b) { return a.length < b.length; });
  const Validation& last = validations.back();
  const double lost = best->length - last.length;
  if (lost > kOverfitted * (best->length - 1) && last.loss < best->loss) {
    return std::vector<Finding>{{Severity::kWarning, "overfitted",
                                 fmt::format("acceptance length on held-out text was best at step {} ({:.3f}) and fell to {:.3f} at step "
                                             "{}, while the loss went on falling ({:.3f} to {:.3f})",
                                             best->step, best->length, last.length, last.step, best->loss, last.loss),
                                 fmt::format("take the weights of step {}; more data would help, more epochs do not", best->step)}};
  }
  const double rising = last.length - validations[validations.size() - 2].length;
  const bool still = best == validations.end() - 1 && rising > 0.01 * (last.length - 1);
  return std::vector<Finding>{
      {Severity::kNote, still ? "still-rising" : "trained-to-the-end",
       fmt::format("acceptance length on held-out text: best {:.3f} at step {}, {:.3f} at the last validation (step {})", best->length,
                   best->step, last.length, last.step),
       still ? "it was still rising: train on" : ""}};
}

}  // namespace aerie
