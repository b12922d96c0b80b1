#include "engine/capture.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <deque>

#include "base/file_io.h"
#include "base/log.h"
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

/// Renders messages and gives back the template's whole text with its tokens.
Expected<RenderedPrompt> render(const Runtime& runtime, const std::vector<ChatMessage>& messages) {
  return runtime.chat_template()->render(messages, true);
}

/// The boundaries that are stored. Refuses options that have no meaning for this target.
Expected<std::vector<int>> checked_taps(const Runtime& runtime, const CaptureOptions& options) {
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
  return options.taps.empty() ? default_taps(LayerIdRule::kBoundary, config.blocks) : options.taps;
}

/// Messages that stand before the first answer.
size_t messages_before_answer(const Prompt& prompt) { return prompt.messages.front().role == "system" ? 2 : 1; }

/// A prompt as the target is handed it first.
struct OpenedPrompt {
  std::string text;
  std::vector<int32_t> tokens;
};
Expected<OpenedPrompt> open_prompt(const Runtime& runtime, const Prompt& prompt) {
  const std::vector<ChatMessage> messages(prompt.messages.begin(),
                                          prompt.messages.begin() + static_cast<ptrdiff_t>(messages_before_answer(prompt)));
  AERIE_ASSIGN(const RenderedPrompt rendered, render(runtime, messages));
  OpenedPrompt out;
  AERIE_ASSIGN(out.tokens, runtime.tokenizer().encode(rendered));
  out.text = rendered.text();
  return out;
}

/// Rows carry their prompts' numbers: whether those that are there belong to these prompts, by some of them.
Status check_prompts(const Runtime& runtime, const std::vector<Prompt>& prompts, const std::string& folder) {
  constexpr size_t kLookedAt = 16;
  AERIE_ASSIGN(const TraceReader reader, TraceReader::open(folder));
  const std::vector<int>& rows = reader.rows();
  const size_t count = std::min(kLookedAt, rows.size());
  for (size_t i = 0; i < count; ++i) {
    const int row = rows[i * rows.size() / count];
    const Expected<Trace> trace = reader.read(row);
    if (!trace.ok()) continue;  // whoever reads the folder says so
    const bool known = static_cast<size_t>(row) < prompts.size();
    const auto opened = known ? open_prompt(runtime, prompts[static_cast<size_t>(row)]) : Expected<OpenedPrompt>(OpenedPrompt());
    if (known && opened.ok() && opened->tokens.size() <= trace->length() &&
        std::equal(opened->tokens.begin(), opened->tokens.end(), trace->tokens.begin())) {
      continue;
    }
    return invalid_argument(
        "{}: its row {} is not an answer to prompt {} of these: go on with the prompts that it was captured from, or choose "
        "another folder",
        folder, row, row);
  }
  return {};
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

}  // namespace

class TraceGenerator::Impl {
 public:
  Impl(Runtime& runtime, const std::vector<Prompt>& prompts, const CaptureOptions& options, std::vector<int> taps, std::vector<int> rows)
      : runtime_(runtime),
        prompts_(prompts),
        options_(options),
        slots_per_row_(static_cast<int>(taps.size()) + 1),
        decoder_(runtime, options.slots, options.row_budget, and_final(runtime, std::move(taps))),
        running_(static_cast<size_t>(options.slots)),
        waiting_(rows.begin(), rows.end()) {}

  Expected<bool> step(std::vector<CapturedRow>& ended);

 private:
  static std::vector<int> and_final(const Runtime& runtime, std::vector<int> taps) {
    taps.push_back(runtime.target().config().blocks);
    return taps;
  }
  Status begin_next(int slot, std::vector<CapturedRow>& ended);
  Status take(const BatchDecoder::Result& result, std::vector<CapturedRow>& ended);
  Status end_of_answer(int slot, bool ended_by_itself);
  void append(int slot, std::span<const int32_t> tokens, uint8_t mask);

  Runtime& runtime_;
  const std::vector<Prompt>& prompts_;
  const CaptureOptions options_;
  int slots_per_row_;
  BatchDecoder decoder_;
  std::vector<Conversation> running_;  // by slot; row < 0: free
  std::deque<int> waiting_;
  bool begun_ = false;
};

TraceGenerator::TraceGenerator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceGenerator::~TraceGenerator() = default;

Expected<std::unique_ptr<TraceGenerator>> TraceGenerator::create(Runtime& runtime, const std::vector<Prompt>& prompts,
                                                                 const CaptureOptions& options, std::vector<int> rows) {
  AERIE_ASSIGN(std::vector<int> taps, checked_taps(runtime, options));
  return std::unique_ptr<TraceGenerator>(
      new TraceGenerator(std::make_unique<Impl>(runtime, prompts, options, std::move(taps), std::move(rows))));
}

Expected<bool> TraceGenerator::step(std::vector<CapturedRow>& ended) { return impl_->step(ended); }

Expected<bool> TraceGenerator::Impl::step(std::vector<CapturedRow>& ended) {
  if (!begun_) {
    for (int slot = 0; slot < decoder_.slots(); ++slot) AERIE_TRY(begin_next(slot, ended));
    begun_ = true;
  }
  AERIE_ASSIGN(const std::span<const BatchDecoder::Result> results, decoder_.step());
  for (const BatchDecoder::Result& result : results) AERIE_TRY(take(result, ended));
  return !results.empty();
}

/// Puts the next waiting prompt that leaves room for an answer into `slot`.
Status TraceGenerator::Impl::begin_next(int slot, std::vector<CapturedRow>& ended) {
  Conversation& c = running_[static_cast<size_t>(slot)];
  while (!waiting_.empty()) {
    c = Conversation();
    c.row = waiting_.front();
    waiting_.pop_front();
    const Prompt& prompt = prompts_[static_cast<size_t>(c.row)];
    c.answered = messages_before_answer(prompt);
    c.history.assign(prompt.messages.begin(), prompt.messages.begin() + static_cast<ptrdiff_t>(c.answered));
    auto opened = open_prompt(runtime_, prompt);
    if (!opened.ok()) {  // of thousands, one that the template refuses must not end all
      spdlog::warn("prompt {} is left out: {}", c.row, opened.status().message());
      ended.push_back({c.row, 0, {}});
      continue;
    }
    const std::vector<int32_t> tokens = std::move(opened->tokens);
    c.rendered = std::move(opened->text);
    if (static_cast<int>(tokens.size()) + 2 > options_.max_length) {
      ended.push_back({c.row, 0, {}});
      continue;
    }
    const size_t row = static_cast<size_t>(c.row);
    const Sampling sampling{options_.temperatures[row % options_.temperatures.size()], random_stream({options_.seed, row})};
    AERIE_TRY(decoder_.start(slot, tokens, options_.max_length, sampling));
    c.trace.slots = slots_per_row_;
    c.trace.hidden = runtime_.target().config().hidden;
    c.trace.tokens = tokens;
    c.trace.mask.assign(tokens.size(), 0);
    return {};
  }
  c.row = -1;
  decoder_.stop(slot);
  return {};
}

void TraceGenerator::Impl::append(int slot, std::span<const int32_t> tokens, uint8_t mask) {
  Conversation& c = running_[static_cast<size_t>(slot)];
  decoder_.append(slot, tokens);
  c.trace.tokens.insert(c.trace.tokens.end(), tokens.begin(), tokens.end());
  c.trace.mask.insert(c.trace.mask.end(), tokens.size(), mask);
}

Status TraceGenerator::Impl::take(const BatchDecoder::Result& result, std::vector<CapturedRow>& ended) {
  Conversation& c = running_[static_cast<size_t>(result.slot)];
  const size_t values = static_cast<size_t>(result.rows) * static_cast<size_t>(c.trace.slots) * static_cast<size_t>(c.trace.hidden);
  c.trace.states.insert(c.trace.states.end(), result.features, result.features + values);
  if (result.next < 0) return {};
  if (c.closing) {
    ended.push_back({c.row, c.answer_tokens, std::move(c.trace)});
    return begin_next(result.slot, ended);
  }

  append(result.slot, {&result.next, 1}, 1);
  c.answer.push_back(result.next);
  ++c.answer_tokens;
  const bool by_itself = runtime_.tokenizer().is_end_of_generation(result.next);
  const bool full =
      static_cast<int>(c.answer.size()) >= options_.max_new_tokens || static_cast<int>(c.trace.tokens.size()) >= options_.max_length;
  return by_itself || full ? end_of_answer(result.slot, by_itself) : Status();
}

/// Goes on with the user's next message, or lets the last token be computed and closes.
Status TraceGenerator::Impl::end_of_answer(int slot, bool ended_by_itself) {
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

Expected<TraceManifest> capture_manifest(const Runtime& runtime, const CaptureOptions& options) {
  const TargetConfig& config = runtime.target().config();
  TraceManifest manifest;
  manifest.target = {config.name, "", config.hidden, config.vocab, config.blocks, static_cast<double>(config.rms_eps)};
  AERIE_ASSIGN(manifest.target.sha256, sha256_file(runtime.file().path()));
  AERIE_ASSIGN(manifest.taps, checked_taps(runtime, options));
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
  return manifest;
}

Expected<CaptureOptions> options_of(const Runtime& runtime, const TraceManifest& manifest) {
  CaptureOptions out;
  out.taps = manifest.taps;
  const auto said = [&](const char* key) {
    const auto found = manifest.generation.find(key);
    return found == manifest.generation.end() ? std::string() : found->second;
  };
  const auto number = [](const std::string& text, auto& value) { std::from_chars(text.data(), text.data() + text.size(), value); };
  number(said("max_new_tokens"), out.max_new_tokens);
  number(said("max_length"), out.max_length);
  number(said("seed"), out.seed);
  if (std::string list = said("temperature"); !list.empty()) {
    out.temperatures.clear();
    for (size_t begin = 0; begin <= list.size(); begin = std::min(list.find(',', begin), list.size()) + 1) {
      number(list.substr(begin, list.find(',', begin) - begin), out.temperatures.emplace_back());
    }
  }
  // Whatever could not be read, or is not known here, shows in what these options would write.
  AERIE_ASSIGN(const TraceManifest again, capture_manifest(runtime, out));
  AERIE_TRY(manifest.check_same_source(again));
  if (again.generation != manifest.generation) {
    return unsupported("the traces were generated with settings that this version does not know: it cannot go on with them");
  }
  return out;
}

Expected<CaptureProgress> capture(Runtime& runtime, const std::vector<Prompt>& prompts, const CaptureOptions& options,
                                  const std::function<void(const CaptureProgress&)>& on_progress) {
  AERIE_ASSIGN(const TraceManifest manifest, capture_manifest(runtime, options));
  AERIE_ASSIGN(TraceWriter writer, TraceWriter::open(options.out, manifest));
  AERIE_TRY(check_prompts(runtime, prompts, options.out));
  const auto start = std::chrono::steady_clock::now();
  CaptureProgress progress;
  std::vector<int> rows;
  const int all = static_cast<int>(prompts.size()), last = options.limit > 0 ? std::min(options.first + options.limit, all) : all;
  for (int row = options.first; row < last; ++row) {
    ++progress.total;
    if (writer.has_row(row)) {
      ++progress.done;
    } else {
      rows.push_back(row);
    }
  }
  AERIE_ASSIGN(const auto generator, TraceGenerator::create(runtime, prompts, options, std::move(rows)));
  for (bool more = true; more;) {
    if (options.cancel != nullptr && options.cancel->load()) {
      return cancelled("interrupted after {} of {} conversations; the same command goes on from there", progress.done, progress.total);
    }
    std::vector<CapturedRow> ended;
    AERIE_ASSIGN(more, generator->step(ended));
    for (const CapturedRow& row : ended) {
      if (row.trace.tokens.empty()) {
        ++progress.skipped;
        continue;
      }
      AERIE_TRY(writer.write_row(row.row, row.trace));
      ++progress.done;
      progress.answer_tokens += row.answer_tokens;
      progress.tokens += static_cast<int64_t>(row.trace.tokens.size());
    }
    progress.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (on_progress) on_progress(progress);
  }
  return progress;
}

}  // namespace aerie
