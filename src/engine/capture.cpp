#include "engine/capture.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>

#include "base/file_io.h"
#include "base/random.h"
#include "eagle3/layer_ids.h"
#include "engine/batch_decoder.h"

namespace aerie {
namespace {

/// One conversation on its way through a slot.
struct Conversation {
  int row = -1;
  size_t answered = 0;  // messages of the prompt that have been rendered into the tokens
  int answer_tokens = 0;
  bool closing = false;  // the last token only has to be computed
  std::vector<ChatMessage> history;
  std::string rendered;  // the template's text of `history`, open for an answer
  std::vector<int32_t> answer;
  Trace trace;
};

class Capture {
 public:
  Capture(Runtime& runtime, const std::vector<Prompt>& prompts, const CaptureOptions& options, TraceWriter writer)
      : runtime_(runtime),
        prompts_(prompts),
        options_(options),
        writer_(std::move(writer)),
        decoder_(runtime, options.slots, options.row_budget, taps_and_final(runtime, writer_.manifest().taps)),
        running_(static_cast<size_t>(options.slots)) {}

  Expected<CaptureProgress> run(const std::function<void(const CaptureProgress&)>& on_progress);

 private:
  static std::vector<int> taps_and_final(const Runtime& runtime, std::vector<int> taps) {
    taps.push_back(runtime.target().config().blocks);
    return taps;
  }
  Status begin_next(int slot);
  Status take(const BatchDecoder::Result& result);
  Status end_of_answer(int slot, bool ended_by_itself);
  Status finish(int slot);
  void append(int slot, std::span<const int32_t> tokens, uint8_t mask);

  Runtime& runtime_;
  const std::vector<Prompt>& prompts_;
  const CaptureOptions& options_;
  TraceWriter writer_;
  BatchDecoder decoder_;
  std::vector<Conversation> running_;  // by slot; row < 0: free
  std::deque<int> waiting_;
  CaptureProgress progress_;
};

/// Renders messages and gives back the template's whole text with its tokens.
Expected<RenderedPrompt> render(const Runtime& runtime, const std::vector<ChatMessage>& messages) {
  return runtime.chat_template()->render(messages, true);
}

/// The part of `prompt` from byte `begin` on.
RenderedPrompt suffix_of(const RenderedPrompt& prompt, size_t begin) {
  RenderedPrompt rest;
  for (const PromptSpan& span : prompt.spans) {
    if (begin >= span.text.size()) {
      begin -= span.text.size();
      continue;
    }
    rest.spans.push_back({span.text.substr(begin), span.from_template});
    begin = 0;
  }
  return rest;
}

Expected<CaptureProgress> Capture::run(const std::function<void(const CaptureProgress&)>& on_progress) {
  const auto start = std::chrono::steady_clock::now();
  const int last = options_.limit > 0 ? std::min<int>(options_.first + options_.limit, static_cast<int>(prompts_.size()))
                                      : static_cast<int>(prompts_.size());
  for (int row = options_.first; row < last; ++row) {
    ++progress_.total;
    if (writer_.has_row(row)) {
      ++progress_.done;
    } else {
      waiting_.push_back(row);
    }
  }
  for (int slot = 0; slot < decoder_.slots(); ++slot) AERIE_TRY(begin_next(slot));
  for (;;) {
    if (options_.cancel != nullptr && options_.cancel->load()) {
      return cancelled("interrupted after {} of {} conversations; the same command goes on from there", progress_.done, progress_.total);
    }
    AERIE_ASSIGN(const std::span<const BatchDecoder::Result> results, decoder_.step());
    if (results.empty()) break;
    for (const BatchDecoder::Result& result : results) AERIE_TRY(take(result));
    progress_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (on_progress) on_progress(progress_);
  }
  return progress_;
}

/// Puts the next waiting prompt that leaves room for an answer into `slot`.
Status Capture::begin_next(int slot) {
  Conversation& c = running_[static_cast<size_t>(slot)];
  while (!waiting_.empty()) {
    c = Conversation();
    c.row = waiting_.front();
    waiting_.pop_front();
    const Prompt& prompt = prompts_[static_cast<size_t>(c.row)];
    c.answered = prompt.messages.front().role == "system" ? 2 : 1;
    c.history.assign(prompt.messages.begin(), prompt.messages.begin() + static_cast<ptrdiff_t>(c.answered));
    AERIE_ASSIGN(const RenderedPrompt rendered, render(runtime_, c.history));
    AERIE_ASSIGN(const std::vector<int32_t> tokens, runtime_.tokenizer().encode(rendered));
    c.rendered = rendered.text();
    if (static_cast<int>(tokens.size()) + 2 > options_.max_length) {
      ++progress_.skipped;
      continue;
    }
    const size_t row = static_cast<size_t>(c.row);
    const Sampling sampling{options_.temperatures[row % options_.temperatures.size()], random_stream({options_.seed, row})};
    AERIE_TRY(decoder_.start(slot, tokens, options_.max_length, sampling));
    c.trace.slots = writer_.manifest().slots();
    c.trace.hidden = runtime_.target().config().hidden;
    c.trace.tokens = tokens;
    c.trace.mask.assign(tokens.size(), 0);
    return {};
  }
  c.row = -1;
  decoder_.stop(slot);
  return {};
}

void Capture::append(int slot, std::span<const int32_t> tokens, uint8_t mask) {
  Conversation& c = running_[static_cast<size_t>(slot)];
  decoder_.append(slot, tokens);
  c.trace.tokens.insert(c.trace.tokens.end(), tokens.begin(), tokens.end());
  c.trace.mask.insert(c.trace.mask.end(), tokens.size(), mask);
}

Status Capture::take(const BatchDecoder::Result& result) {
  Conversation& c = running_[static_cast<size_t>(result.slot)];
  const size_t values = static_cast<size_t>(result.rows) * static_cast<size_t>(c.trace.slots) * static_cast<size_t>(c.trace.hidden);
  c.trace.states.insert(c.trace.states.end(), result.features, result.features + values);
  if (result.next < 0) return {};
  if (c.closing) return finish(result.slot);

  append(result.slot, {&result.next, 1}, 1);
  c.answer.push_back(result.next);
  ++c.answer_tokens;
  const bool ended = runtime_.tokenizer().is_end_of_generation(result.next);
  const bool full =
      static_cast<int>(c.answer.size()) >= options_.max_new_tokens || static_cast<int>(c.trace.tokens.size()) >= options_.max_length;
  return ended || full ? end_of_answer(result.slot, ended) : Status();
}

/// Goes on with the user's next message, or lets the last token be computed and closes.
Status Capture::end_of_answer(int slot, bool ended_by_itself) {
  Conversation& c = running_[static_cast<size_t>(slot)];
  c.closing = true;
  const Prompt& prompt = prompts_[static_cast<size_t>(c.row)];
  if (!ended_by_itself || c.answered == prompt.messages.size()) return {};
  // The tokens of the new turn are what the template writes after the answer. That is only well defined if the template
  // writes the conversation so far as it was generated; where it does not, the conversation ends here.
  AERIE_ASSIGN(const std::string answer, runtime_.tokenizer().decode(c.answer));  // with the end token's spelling
  AERIE_ASSIGN(const std::string plain, runtime_.tokenizer().decode({c.answer.begin(), c.answer.end() - 1}));
  c.history.push_back({"assistant", plain});
  c.history.push_back(prompt.messages[c.answered++]);
  AERIE_ASSIGN(const RenderedPrompt rendered, render(runtime_, c.history));
  const std::string text = rendered.text(), so_far = c.rendered + answer;
  if (text.compare(0, so_far.size(), so_far) != 0) return {};
  AERIE_ASSIGN(const std::vector<int32_t> tokens, runtime_.tokenizer().encode(suffix_of(rendered, so_far.size())));
  if (static_cast<int>(c.trace.tokens.size() + tokens.size()) + 2 > options_.max_length) return {};
  append(slot, tokens, 0);
  c.rendered = text;
  c.answer.clear();
  c.closing = false;
  return {};
}

Status Capture::finish(int slot) {
  Conversation& c = running_[static_cast<size_t>(slot)];
  AERIE_TRY(writer_.write_row(c.row, c.trace));
  ++progress_.done;
  progress_.answer_tokens += c.answer_tokens;
  progress_.tokens += static_cast<int64_t>(c.trace.tokens.size());
  return begin_next(slot);
}

}  // namespace

Expected<CaptureProgress> capture(Runtime& runtime, const std::vector<Prompt>& prompts, const CaptureOptions& options,
                                  const std::function<void(const CaptureProgress&)>& on_progress) {
  const TargetConfig& config = runtime.target().config();
  if (runtime.chat_template() == nullptr)
    return unsupported("{}: has no chat template, so prompts cannot be put to it", runtime.file().path());
  if (options.slots < 1 || options.row_budget < options.slots) {
    return invalid_argument("expected at least one slot and a row budget of no less than the slots, found {} and {}", options.slots,
                            options.row_budget);
  }
  if (options.max_new_tokens < 1 || options.max_length < 3) return invalid_argument("answers and conversations need room for tokens");
  if (options.temperatures.empty()) return invalid_argument("a temperature is needed, 0 for greedy answers");
  for (const double temperature : options.temperatures) {
    if (!std::isfinite(temperature) || temperature < 0) return invalid_argument("{} is no temperature", temperature);
  }
  if (options.taps.empty() && config.blocks < 6) {
    return invalid_argument("the default taps 2, N/2 and N-3 need a target of 6 blocks or more, this one has {}: give --taps",
                            config.blocks);
  }
  TraceManifest manifest;
  manifest.target = {config.name, "", config.hidden, config.vocab, config.blocks, static_cast<double>(config.rms_eps)};
  AERIE_ASSIGN(manifest.target.sha256, sha256_file(runtime.file().path()));
  manifest.taps = options.taps.empty() ? default_taps(LayerIdRule::kBoundary, config.blocks) : options.taps;
  manifest.template_sha256 = runtime.chat_template()->sha256();
  manifest.precision =
      runtime.target().precision() == Precision::kServed ? std::string("weights as in the file, 12-bit activations, f16 kv") : "float32";
  manifest.aerie_version = AERIE_VERSION;
  manifest.generation = {{"decoding", "greedy"},
                         {"max_new_tokens", std::to_string(options.max_new_tokens)},
                         {"max_length", std::to_string(options.max_length)}};
  if (std::ranges::any_of(options.temperatures, [](double temperature) { return temperature > 0; })) {
    manifest.generation["decoding"] = "sampled";
    manifest.generation["temperature"] = fmt::format("{}", fmt::join(options.temperatures, ","));
    manifest.generation["seed"] = std::to_string(options.seed);
  }
  AERIE_ASSIGN(TraceWriter writer, TraceWriter::open(options.out, manifest));
  return Capture(runtime, prompts, options, std::move(writer)).run(on_progress);
}

}  // namespace aerie
