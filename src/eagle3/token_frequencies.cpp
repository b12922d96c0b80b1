#include "eagle3/token_frequencies.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string_view>

#include "base/file_io.h"
#include "formats/json_text.h"
#include "formats/printable.h"
#include "formats/torch_file.h"
#include "formats/trace_source.h"

namespace aerie {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;
constexpr double kLowShare = 0.9, kLowBesideBest = 0.05;

/// Counts by token, each of them given once.
class Counts {
 public:
  explicit Counts(int vocab) : values_(static_cast<size_t>(vocab), -1.0) {}

  Status set(int64_t id, double count) {
    AERIE_TRY(check(id));
    if (!(count >= 0.0) || !std::isfinite(count)) return invalid_argument("token {} occurs {} times, expected 0 or more", id, count);
    double& value = values_[static_cast<size_t>(id)];
    if (value >= 0.0) return invalid_argument("the count of token {} is given twice", id);
    value = count;
    return {};
  }
  Status add(int64_t id) {
    AERIE_TRY(check(id));
    double& value = values_[static_cast<size_t>(id)];
    value = std::max(value, 0.0) + 1.0;
    return {};
  }
  size_t vocab() const { return values_.size(); }
  Expected<std::vector<double>> finish() {
    for (double& value : values_) value = std::max(value, 0.0);
    const double sum = std::accumulate(values_.begin(), values_.end(), 0.0);
    if (!(sum > 0.0) || !std::isfinite(sum)) return invalid_argument("no token is counted at all");
    return std::move(values_);
  }

 private:
  Status check(int64_t id) const {
    if (id >= 0 && id < static_cast<int64_t>(values_.size())) return {};
    return invalid_argument("the token {} is outside the target's vocabulary of {}", id, values_.size());
  }

  std::vector<double> values_;  // -1: not given
};

/// The whole of `text` as a number.
template <class Number>
bool parse_number(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

Status read_torch(const std::string& path, Counts& out) {
  AERIE_ASSIGN(const TorchFile file, TorchFile::open(path));
  const TorchValue root = file.root();
  if (root.kind() != PickleKind::kDict) return invalid_argument("it holds {}, expected a dict from token id to count", root.kind_name());
  for (size_t i = 0; i < root.size(); ++i) {
    const auto id = root.key_at(i).integer(), count = root.at(i).integer();
    const auto real = root.at(i).real();
    if (!id || (!count && !real)) return invalid_argument("entry {} is no token id with a count", i);
    AERIE_TRY(out.set(*id, count ? static_cast<double>(*count) : *real));
  }
  return {};
}

Status read_json(std::string_view text, Counts& out) {
  AERIE_ASSIGN(const nlohmann::json json, parse_json(text));
  if (json.is_array() && json.size() != out.vocab()) {
    return invalid_argument("it lists {} counts, the target's vocabulary has {} tokens", json.size(), out.vocab());
  }
  int64_t index = 0;
  for (const auto& [key, value] : json.items()) {
    int64_t id = index++;
    if (json.is_object() && !parse_number(key, id)) return invalid_argument("the key {} is no token id", printable(key));
    if (!value.is_number()) return invalid_argument("the count of token {} is no number", id);
    AERIE_TRY(out.set(id, value.get<double>()));
  }
  return {};
}

Status read_lines(std::string_view text, Counts& out) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) continue;
    line = line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
    const size_t gap = line.find_first_of(" \t,");
    const size_t second = gap == std::string_view::npos ? gap : line.find_first_not_of(" \t,", gap);
    int64_t id = 0;
    double count = 0;
    if (second == std::string_view::npos || !parse_number(line.substr(0, gap), id) || !parse_number(line.substr(second), count)) {
      return invalid_argument("line {} is {}, expected a token id and a count", number, printable(line));
    }
    AERIE_TRY(out.set(id, count).with_context(fmt::format("line {}", number)));
  }
  return {};
}

Status count_answers(const std::string& path, Counts& out) {
  AERIE_ASSIGN(const std::unique_ptr<TraceSource> source, TraceSource::open(path));
  for (size_t i = 0; i < source->size(); ++i) {
    AERIE_ASSIGN(const Conversation conversation, source->read(i));
    const Trace& trace = conversation.trace;
    for (size_t t = 0; t < trace.length(); ++t) {
      if (trace.mask[t] != 0) AERIE_TRY(out.add(trace.tokens[t]));
    }
  }
  return {};
}

Status read_counts(const std::string& path, Counts& out) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return count_answers(path, out);
  AERIE_ASSIGN(const std::string text, read_file(path, kMaxFileBytes));
  if (looks_like_torch({reinterpret_cast<const uint8_t*>(text.data()), text.size()})) return read_torch(path, out);
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string::npos && (text[first] == '{' || text[first] == '[');
  return json ? read_json(text, out) : read_lines(text, out);
}

}  // namespace

Expected<std::vector<double>> read_token_frequencies(const std::string& path, int vocab) {
  Counts counts(vocab);
  if (const Status read = read_counts(path, counts); !read.ok()) return read.with_context(path);
  auto out = counts.finish();
  if (!out.ok()) return out.status().with_context(path);
  return out;
}

VocabularyCoverage vocabulary_coverage(const DraftSpec& spec, const std::vector<double>& frequencies) {
  const double all = std::accumulate(frequencies.begin(), frequencies.end(), 0.0);
  VocabularyCoverage out;
  for (int d = 0; d < spec.draft_vocab; ++d) out.share += frequencies[static_cast<size_t>(spec.to_target(d))] / all;
  std::vector<double> sorted = frequencies;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  out.best = std::accumulate(sorted.begin(), sorted.begin() + spec.draft_vocab, 0.0) / all;
  return out;
}

std::vector<Finding> coverage_findings(const DraftSpec& spec, const VocabularyCoverage& coverage) {
  if (coverage.share >= kLowShare && coverage.best - coverage.share <= kLowBesideBest) return {};
  const bool other_map = coverage.best - coverage.share > kLowBesideBest;
  return {
      {Severity::kWarning, "coverage-low",
       fmt::format("the draft vocabulary holds {:.1f} % of the text's tokens, and no acceptance rate can exceed that; its {} most frequent "
                   "tokens are {:.1f} %",
                   100.0 * coverage.share, spec.draft_vocab, 100.0 * coverage.best),
       other_map ? "choose the draft vocabulary from text like this, or look whether d2t is the one that the drafter was trained with"
                 : "choose a larger draft vocabulary"}};
}

}  // namespace aerie
