#include "doctor/engine_metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "doctor/metric_sources.h"
#include "doctor/prometheus_text.h"
#include "formats/json_text.h"

namespace aerie {
namespace {

using namespace metric_sources;
using Json = nlohmann::json;

/// Every object inside `value` that holds acceptance goes to its reader.
void walk_json(const Json& value, RequestFigures& requests) {
  if (value.is_object()) {
    requests.add(value);
    for (const auto& [key, inner] : value.items()) walk_json(inner, requests);
  } else if (value.is_array()) {
    for (const Json& inner : value) walk_json(inner, requests);
  }
}

/// The whole text as JSON, or each line that is a JSON object.
Status read_json(std::string_view text, RequestFigures& requests) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || (text[begin] != '{' && text[begin] != '[')) return {};
  const auto whole = parse_json(text);
  if (whole.ok()) {
    walk_json(*whole, requests);
    return {};
  }
  size_t lines = 0;
  for_each_line(text, [&](std::string_view line) {
    if (line.empty() || line.front() != '{') return;
    const auto one = parse_json(line);
    if (!one.ok()) return;
    ++lines;
    walk_json(*one, requests);
  });
  // A log's first line may begin with a bracket; then the text simply is no JSON.
  return lines != 0 || text[begin] == '[' ? Status() : whole.status();
}

constexpr std::string_view kFakes[] = {"SGLANG_SIMULATE_ACC_LEN",
                                       "--spec-synth-len",
                                       "--spec-synth-rates",
                                       "rejection_sample_method='synthetic'",
                                       "\"rejection_sample_method\": \"synthetic\"",
                                       "\"rejection_sample_method\":\"synthetic\""};

void note_fakes(std::string_view text, MetricsReading& reading) {
  for (const std::string_view fake : kFakes) {
    if (text.find(fake) == std::string_view::npos) continue;
    reading.findings.push_back(
        {Severity::kError, "faked-acceptance",
         fmt::format("the text mentions {}: acceptance may be simulated, then its figures say nothing of this drafter", fake),
         fmt::format("serve without {} and measure again", fake)});
  }
}

/// vLLM states at start which layers it captures, and where it took them from.
void note_layers(std::string_view text, MetricsReading& reading) {
  constexpr std::string_view kLead = "Using Eagle3 auxiliary layers from ";
  const size_t at = text.find(kLead);
  if (at == std::string_view::npos) return;
  std::string_view rest = text.substr(at + kLead.size());
  rest = rest.substr(0, rest.find('\n'));
  const bool from_model = rest.starts_with("model");
  const size_t open = rest.find_first_of("([");
  if (open == std::string_view::npos) return;
  reading.captured_layers = integers_of(rest.substr(open));
  if (reading.captured_layers.empty()) return;
  reading.findings.push_back(
      {from_model ? Severity::kWarning : Severity::kNote, from_model ? "default-layers" : "configured-layers",
       fmt::format("vLLM captures the boundaries {} {}", fmt::join(reading.captured_layers, ", "),
                   from_model ? "by its own default: it read no layer ids in the drafter's config" : "as the drafter's config lists them"),
       from_model
           ? "compare with the boundaries that the drafter was trained on; write them as a top-level eagle_aux_hidden_state_layer_ids"
           : ""});
}

void check_k(std::optional<int> k, MetricsReading& reading) {
  if (!k) return;
  std::optional<int>& found = reading.acceptance.k;
  if (found && *found != *k) {
    reading.findings.push_back({Severity::kWarning, "k-contradicts-flags",
                                fmt::format("the figures are those of {} drafts per verify, the flags say {}", *found, *k),
                                "check that log and command line belong together"});
  }
  if (!found) found = k;
}

}  // namespace

Expected<MetricsReading> read_engine_metrics(const EngineVersion& engine, std::string_view text, std::optional<int> k) {
  MetricsReading reading;
  RequestFigures requests(engine);
  PageFigures page(engine);
  LogFigures log(engine);
  AERIE_TRY(read_json(text, requests));
  for_each_line(text, [&](std::string_view line) {
    if (const auto sample = parse_metric_line(line)) page.add(*sample);
    log.add(line);
  });
  if (requests.found()) {
    requests.finish(reading);
  } else if (page.found()) {
    page.finish(reading);
  } else if (log.found()) {
    log.finish(reading);
  } else {
    return not_found("nothing of the acceptance of {} stands there: expected its log lines, its metrics page, or the JSON of a reply",
                     engine.text());
  }
  note_fakes(text, reading);
  if (engine.engine == Engine::kVllm) note_layers(text, reading);
  check_k(k, reading);
  reading.acceptance.complete();
  return reading;
}

}  // namespace aerie
