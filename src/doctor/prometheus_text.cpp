#include "doctor/prometheus_text.h"

#include <cctype>
#include <charconv>
#include <cmath>

namespace aerie {
namespace {

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':'; }

void skip_spaces(std::string_view& rest) {
  while (!rest.empty() && (rest.front() == ' ' || rest.front() == '\t')) rest.remove_prefix(1);
}

std::string take_name(std::string_view& rest) {
  size_t length = 0;
  while (length < rest.size() && is_name(rest[length])) ++length;
  std::string out(rest.substr(0, length));
  rest.remove_prefix(length);
  return out;
}

/// What stands between the quotes, with \\, \" and \n undone. False without a closing quote.
bool take_quoted(std::string_view& rest, std::string& out) {
  if (rest.empty() || rest.front() != '"') return false;
  for (size_t i = 1; i < rest.size(); ++i) {
    if (rest[i] == '"') {
      rest.remove_prefix(i + 1);
      return true;
    }
    if (rest[i] == '\\' && i + 1 < rest.size()) {
      ++i;
      out += rest[i] == 'n' ? '\n' : rest[i];
    } else {
      out += rest[i];
    }
  }
  return false;
}

bool take_labels(std::string_view& rest, MetricSample& sample) {
  rest.remove_prefix(1);
  while (true) {
    skip_spaces(rest);
    if (rest.empty()) return false;
    if (rest.front() == '}') break;
    std::string name = take_name(rest), value;
    skip_spaces(rest);
    if (name.empty() || rest.empty() || rest.front() != '=') return false;
    rest.remove_prefix(1);
    skip_spaces(rest);
    if (!take_quoted(rest, value)) return false;
    sample.labels.emplace_back(std::move(name), std::move(value));
    skip_spaces(rest);
    if (!rest.empty() && rest.front() == ',') rest.remove_prefix(1);
  }
  rest.remove_prefix(1);
  return true;
}

}  // namespace

std::string MetricSample::label(std::string_view label_name) const {
  for (const auto& [name_of, value_of] : labels) {
    if (name_of == label_name) return value_of;
  }
  return "";
}

std::optional<MetricSample> parse_metric_line(std::string_view line) {
  skip_spaces(line);
  if (line.empty() || line.front() == '#' || std::isdigit(static_cast<unsigned char>(line.front()))) return std::nullopt;
  MetricSample sample;
  sample.name = take_name(line);
  if (sample.name.empty()) return std::nullopt;
  if (!line.empty() && line.front() == '{' && !take_labels(line, sample)) return std::nullopt;
  if (line.empty() || (line.front() != ' ' && line.front() != '\t')) return std::nullopt;
  skip_spaces(line);
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), sample.value);
  if (error != std::errc() || !std::isfinite(sample.value)) return std::nullopt;
  if (end != line.data() + line.size() && *end != ' ' && *end != '\t' && *end != '\r') return std::nullopt;
  return sample;
}

}  // namespace aerie
