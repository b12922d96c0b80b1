#include "doctor/metric_sources.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace aerie::metric_sources {
namespace {

using Json = nlohmann::json;

// No server has counted more; a larger number in a file is none.
constexpr double kMostCounted = 1e15;
constexpr int kMostDrafts = 1024;

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<double> number(const Json& object, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto it = object.find(name);
    if (it != object.end() && it->is_number() && std::isfinite(it->get<double>())) return it->get<double>();
  }
  return std::nullopt;
}

std::optional<uint64_t> count(const Json& object, std::initializer_list<const char*> names) {
  const std::optional<double> value = number(object, names);
  if (!value || *value < 0 || *value > kMostCounted) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

const char* definition_of(RateDefinition definition) {
  return definition == RateDefinition::kAcceptedOverDrafted ? "rate = (length - 1) / (draft tokens - 1), the bonus token in neither"
                                                            : "rate = length / draft tokens, the bonus token in both";
}

constexpr const char* kLengthWords = "length = tokens emitted per verify, bonus token included";

}  // namespace

std::optional<double> number_after(std::string_view line, std::string_view key) {
  const size_t at = line.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = line.substr(at + key.size());
  const size_t begin = rest.find_first_not_of(" \t");
  return begin == std::string_view::npos ? std::nullopt : parse_number(rest.substr(begin));
}

std::vector<double> numbers_of(std::string_view text) {
  std::vector<double> out;
  while (out.size() < kMostDrafts) {
    const size_t begin = text.find_first_not_of(" \t(,[");
    if (begin == std::string_view::npos) break;
    text = text.substr(begin);
    const auto value = parse_number(text);
    if (!value) break;
    out.push_back(*value);
    const size_t end = text.find_first_of(",)] \t");
    if (end == std::string_view::npos || text[end] == ')' || text[end] == ']') break;
    text = text.substr(end);
  }
  return out;
}

std::vector<int> integers_of(std::string_view text) {
  std::vector<int> out;
  for (const double value : numbers_of(text)) {
    if (std::abs(value) < 1e6) out.push_back(static_cast<int>(value));
  }
  return out;
}

RateDefinition sglang_log_rate(const EngineVersion& engine) {
  return engine.at_least(0, 5, 11) ? RateDefinition::kAcceptedOverDrafted : RateDefinition::kLengthOverTokens;
}

// ---- Replies ----

void RequestFigures::add(const Json& object) {
  switch (engine_.engine) {
    case Engine::kSglang: add_sglang(object); break;
    case Engine::kVllm: add_vllm(object); break;
    case Engine::kLlamaCpp: add_llama_cpp(object); break;
    default: break;
  }
}

void RequestFigures::add_histogram(const Json& object, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto it = object.find(name);
    if (it == object.end() || !it->is_array() || it->size() > kMostDrafts) continue;
    if (histogram_.size() < it->size()) histogram_.resize(it->size());
    for (size_t i = 0; i < it->size(); ++i) {
      const Json& entry = (*it)[i];
      if (entry.is_number() && entry.get<double>() >= 0 && entry.get<double>() <= kMostCounted)
        histogram_[i] += static_cast<uint64_t>(entry.get<double>());
    }
    return;
  }
}

void RequestFigures::add_sglang(const Json& object) {
  if (const auto length = number(object, {"avg_spec_accept_length"})) server_length_ = *length;
  const auto verifies = count(object, {"spec_verify_ct"});
  if (!verifies || *verifies == 0) return;
  // The names moved with 0.5.11 and 0.5.12; newer files keep older ones as aliases.
  std::optional<uint64_t> accepted = count(object, {"spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"});
  const std::optional<uint64_t> drafted = count(object, {"spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"});
  // completion_tokens counts the token of the prefill, so that spec_accept_length is 1/verifies too high.
  const std::optional<uint64_t> completed = count(object, {"completion_tokens"});
  if (!accepted && completed && *completed >= *verifies + 1) accepted = *completed - 1 - *verifies;
  if (!accepted) return;
  ++requests_;
  verifies_ += *verifies, accepted_ += *accepted;
  if (drafted) {
    drafted_ += *drafted;
    if (*drafted % *verifies == 0) k_ = static_cast<int>(std::min<uint64_t>(*drafted / *verifies, kMostDrafts));
  } else {
    drafted_known_ = false;
  }
  add_histogram(object, {"spec_correct_drafts_histogram", "spec_accept_histogram"});
  windows_.push_back({1.0 + static_cast<double>(*accepted) / static_cast<double>(*verifies), 0, static_cast<double>(*verifies)});
}

void RequestFigures::add_vllm(const Json& object) {
  const auto verifies = count(object, {"num_spec_steps"});
  const auto accepted = count(object, {"num_accepted_draft_tokens"});
  if (!verifies || *verifies == 0 || !accepted) return;
  ++requests_;
  verifies_ += *verifies, accepted_ += *accepted;
  if (const auto drafted = count(object, {"num_draft_tokens"}))
    drafted_ += *drafted;
  else
    drafted_known_ = false;
  if (const auto k = count(object, {"num_spec_tokens"}); k && *k >= 1 && *k <= kMostDrafts) k_ = static_cast<int>(*k);
  add_histogram(object, {"acceptance_histogram"});
  windows_.push_back({1.0 + static_cast<double>(*accepted) / static_cast<double>(*verifies), 0, static_cast<double>(*verifies)});
}

void RequestFigures::add_llama_cpp(const Json& object) {
  const auto drafted = count(object, {"draft_n"}), accepted = count(object, {"draft_n_accepted"});
  if (!drafted || !accepted || *drafted == 0) return;
  ++requests_;
  drafted_ += *drafted, accepted_ += *accepted;
  verifies_known_ = false;  // the timings do not say how many verifies there were
}

void RequestFigures::finish(MetricsReading& reading) const {
  Acceptance& a = reading.acceptance;
  if (requests_ == 0) {
    a.length = server_length_;
    reading.source = "server info";
    reading.definition = std::string(kLengthWords) + " (avg_spec_accept_length, since the server started)";
    return;
  }
  a.accepted = accepted_;
  if (verifies_known_) a.verifies = verifies_;
  if (drafted_known_) a.drafted = drafted_;
  a.k = k_;
  a.histogram = histogram_;
  reading.windows = windows_;
  reading.source = fmt::format("{} request{}", requests_, requests_ == 1 ? "" : "s");
  switch (engine_.engine) {
    case Engine::kSglang:
      reading.definition =
          "length = 1 + correct drafts / verifies (spec_accept_length itself also counts the prefill's token, 1/verifies too much); rate = "
          "correct / proposed drafts";
      break;
    case Engine::kVllm:
      reading.definition = "length = 1 + accepted / steps; rate = accepted / drafted; the histogram does not count the bonus token";
      break;
    default: reading.definition = "rate = accepted / kept drafts; the number of verifies is not said, so that no length follows"; break;
  }
}

// ---- The metrics page ----

void PageFigures::add(const MetricSample& sample) {
  std::string name = sample.name;
  if (name.ends_with("_total")) name.resize(name.size() - 6);
  if (engine_.engine == Engine::kSglang && name.starts_with("sglang:spec_")) {
    gauges_[name.substr(12)].push_back(sample.value);
    return;
  }
  const std::string_view prefix = engine_.engine == Engine::kVllm ? "vllm:spec_decode_num_" : "llamacpp:spec_decode_num_";
  if ((engine_.engine != Engine::kVllm && engine_.engine != Engine::kLlamaCpp) || !name.starts_with(prefix)) return;
  if (sample.value < 0 || sample.value > kMostCounted) return;
  name = name.substr(prefix.size());
  if (const std::string position = sample.label("position"); !position.empty()) {
    const auto at = parse_number(position);
    if (at && *at >= 0 && *at < kMostDrafts) per_position_[static_cast<int>(*at)] += sample.value;
  } else {
    counters_[name] += sample.value;
  }
}

void PageFigures::finish(MetricsReading& reading) const {
  Acceptance& a = reading.acceptance;
  reading.source = "metrics page";
  if (engine_.engine == Engine::kSglang) {
    const auto mean = [this](const char* name) -> std::optional<double> {
      const auto it = gauges_.find(name);
      if (it == gauges_.end()) return std::nullopt;
      double sum = 0;
      for (const double value : it->second) sum += value;
      return sum / static_cast<double>(it->second.size());
    };
    const RateDefinition definition = sglang_log_rate(engine_);
    a.length = mean("accept_length");
    if (const auto tokens = mean("num_draft_tokens"); tokens && *tokens >= 2 && *tokens <= kMostDrafts)
      a.k = static_cast<int>(std::lround(*tokens)) - 1;
    if (const auto verifies = mean("verify_calls")) a.verifies = static_cast<uint64_t>(std::clamp(*verifies, 0.0, kMostCounted));
    const auto rate = mean("accept_rate");
    if (rate && a.k && !a.length) a.length = length_from_rate(*rate, *a.k, definition);
    if (rate && definition == RateDefinition::kAcceptedOverDrafted) a.rate = *rate;
    reading.definition = fmt::format("gauges of the last window; {}; {}", kLengthWords, definition_of(definition));
    return;
  }
  const auto counter = [this](const char* name) -> std::optional<uint64_t> {
    const auto it = counters_.find(name);
    if (it == counters_.end()) return std::nullopt;
    return static_cast<uint64_t>(it->second);
  };
  a.verifies = counter("drafts"), a.drafted = counter("draft_tokens"), a.accepted = counter("accepted_tokens");
  if (a.verifies && *a.verifies != 0) {
    const double verifies = static_cast<double>(*a.verifies);
    for (const auto& [position, accepted] : per_position_) {
      if (position != static_cast<int>(a.unconditional.size())) break;
      a.unconditional.push_back(accepted / verifies);
    }
    if (a.drafted && *a.drafted % *a.verifies == 0) a.k = static_cast<int>(std::min<uint64_t>(*a.drafted / *a.verifies, kMostDrafts));
  }
  if (!a.k && !a.unconditional.empty()) a.k = static_cast<int>(a.unconditional.size());
  reading.definition =
      "counters since the server started; length = 1 + accepted / drafts; rate = accepted / drafted; positions unconditional, over all "
      "drafts";
}

// ---- Log lines ----

void LogFigures::add(std::string_view text) {
  Line line;
  switch (engine_.engine) {
    case Engine::kSglang: {
      const auto length = number_after(text, "accept len:");
      if (!length || text.find("Decode batch") == std::string_view::npos) return;
      line.length = *length;
      line.rate = number_after(text, ", accept rate:");
      line.running = static_cast<int>(std::clamp(number_after(text, "#running-req:").value_or(0), 0.0, 1e6));
      break;
    }
    case Engine::kVllm: {
      const auto length = number_after(text, "Mean acceptance length:");
      if (!length) return;
      line.length = *length;
      line.accepted = std::clamp(number_after(text, "Accepted:").value_or(0), 0.0, kMostCounted);
      line.drafted = std::clamp(number_after(text, "Drafted:").value_or(0), 0.0, kMostCounted);
      constexpr std::string_view kPositions = "Per-position acceptance rate:";
      if (const size_t at = text.find(kPositions); at != std::string_view::npos)
        line.unconditional = numbers_of(text.substr(at + kPositions.size()));
      if (!line.unconditional.empty()) line.verifies = std::round(line.drafted / static_cast<double>(line.unconditional.size()));
      break;
    }
    case Engine::kLlamaCpp: {
      constexpr std::string_view kPositions = "acc per pos =";
      if (const size_t at = text.find(kPositions); at != std::string_view::npos && !lines_.empty()) {
        lines_.back().unconditional = numbers_of(text.substr(at + kPositions.size()));
        return;
      }
      const bool older = text.find("draft acceptance rate =") != std::string_view::npos;
      const auto rate = number_after(text, older ? "draft acceptance rate =" : "draft acceptance =");
      const size_t open = text.find('(');
      if (!rate || open == std::string_view::npos) return;
      line.rate = *rate;
      line.accepted = number_after(text.substr(open), "(").value_or(0);
      const size_t slash = text.find('/', open);
      if (slash == std::string_view::npos) return;
      line.drafted = number_after(text.substr(slash), "/").value_or(0);
      if (line.accepted < 0 || line.drafted < line.accepted || line.drafted > kMostCounted) return;
      auto length = number_after(text, "mean len =");
      for (const std::string_view key : {"mean acceptance length =", "mean acceptance length:"}) {
        if (!length) length = number_after(text, key);
      }
      line.length = length.value_or(0);
      if (length && *length > 1.0) line.verifies = std::round(line.accepted / (*length - 1.0));
      break;
    }
    default: return;
  }
  lines_.push_back(std::move(line));
}

void LogFigures::finish(MetricsReading& reading) const {
  reading.source = fmt::format("{} log line{}", lines_.size(), lines_.size() == 1 ? "" : "s");
  for (const Line& line : lines_) {
    if (line.length > 0) reading.windows.push_back({line.length, line.running, line.verifies});
  }
  if (engine_.engine == Engine::kSglang) {
    finish_sglang(reading);
  } else {
    finish_counted(reading);
  }
}

void LogFigures::finish_sglang(MetricsReading& reading) const {
  Acceptance& a = reading.acceptance;
  // A window holds a fixed number of forwards, so that the sequences in it weigh by their number.
  double sum = 0, weight = 0;
  // The K for which length and rate agree in every line, under each definition; both are rounded to two places.
  const auto agreeing = [this](RateDefinition definition) {
    std::vector<int> out;
    for (int k = 1; k <= 256; ++k) {
      bool agrees = false;
      for (const Line& line : lines_) {
        if (!line.rate) continue;
        const double low = rate_from_length(line.length - 0.006, k, definition) - 0.006,
                     high = rate_from_length(line.length + 0.006, k, definition) + 0.006;
        agrees = *line.rate >= low && *line.rate <= high;
        if (!agrees) break;
      }
      if (agrees) out.push_back(k);
    }
    return out;
  };
  bool rated = false;
  for (const Line& line : lines_) {
    const double w = std::max(line.running, 1);
    sum += w * line.length, weight += w;
    rated = rated || line.rate.has_value();
  }
  a.length = sum / weight;
  reading.definition = kLengthWords;
  if (!rated) return;
  RateDefinition definition = sglang_log_rate(engine_);
  std::vector<int> possible = agreeing(definition);
  if (possible.empty()) {
    const RateDefinition other =
        definition == RateDefinition::kAcceptedOverDrafted ? RateDefinition::kLengthOverTokens : RateDefinition::kAcceptedOverDrafted;
    const std::vector<int> others = agreeing(other);
    if (!others.empty()) {
      reading.findings.push_back(
          {Severity::kWarning, "definition-contradicts-version",
           fmt::format("length and rate do not fit the definition of {} ({}) for any number of drafts, but they fit the other one ({})",
                       engine_.text(), definition_of(definition), definition_of(other)),
           "check the version: the definition changed with 0.5.11"});
      definition = other, possible = others;
    }
  }
  if (possible.size() == 1) a.k = possible.front();
  reading.definition += fmt::format("; {}", definition_of(definition));
  if (possible.empty()) {
    reading.findings.push_back({Severity::kNote, "k-unknown", "length and rate of the lines fit no one number of drafts per verify",
                                "the number may vary (adaptive steps)"});
  }
}

void LogFigures::finish_counted(MetricsReading& reading) const {
  Acceptance& a = reading.acceptance;
  double accepted = 0, drafted = 0, verifies = 0, positions_weight = 0;
  bool counted = true;
  size_t width = 0;
  for (const Line& line : lines_) {
    accepted += line.accepted, drafted += line.drafted, verifies += line.verifies;
    counted = counted && (line.verifies > 0 || line.drafted == 0);
    width = std::max(width, line.unconditional.size());
  }
  std::vector<double> positions(width, 0.0);
  for (const Line& line : lines_) {
    if (line.unconditional.size() != width || width == 0) continue;
    const double w = std::max(line.verifies, 1.0);
    positions_weight += w;
    for (size_t i = 0; i < width; ++i) positions[i] += w * line.unconditional[i];
  }
  if (positions_weight > 0) {
    for (double& value : positions) value /= positions_weight;
    a.unconditional = positions;
  }
  a.accepted = static_cast<uint64_t>(accepted);
  a.drafted = static_cast<uint64_t>(drafted);
  if (counted && verifies > 0) a.verifies = static_cast<uint64_t>(verifies);
  if (engine_.engine == Engine::kVllm) {
    if (width != 0) a.k = static_cast<int>(width);
    // One line states the length itself, to more places than its rounded count of drafts would give.
    if (lines_.size() == 1) a.length = lines_.front().length;
    reading.definition = "length = 1 + accepted / drafts; rate = accepted / drafted; positions unconditional, over all drafts";
    return;
  }
  if (lines_.size() == 1 && lines_.front().length > 0) a.length = lines_.front().length;
  reading.definition =
      "length = 1 + accepted / verifies that had a draft (verifies without one are left out); rate = accepted / kept drafts, comparable "
      "only at the same p-min; positions unconditional";
}

}  // namespace aerie::metric_sources
