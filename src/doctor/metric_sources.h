// The three places where engines state acceptance, each read on its own; not for others than engine_metrics.cpp.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "doctor/engine_metrics.h"
#include "doctor/prometheus_text.h"

namespace aerie::metric_sources {

template <class Visit>
void for_each_line(std::string_view text, Visit&& visit) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    visit(line);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

/// The finite number that follows `key` and spaces in `line`.
std::optional<double> number_after(std::string_view line, std::string_view key);
/// The numbers of "0.730, 0.521, 0.355" or "(0.805, 0.632)", up to the first word that is none.
std::vector<double> numbers_of(std::string_view text);
std::vector<int> integers_of(std::string_view text);

/// Replies of requests: SGLang's meta_info and server info, vLLM's metrics.speculative_decoding, llama.cpp's timings.
class RequestFigures {
 public:
  explicit RequestFigures(const EngineVersion& engine) : engine_(engine) {}
  /// An object anywhere in a reply; others than those above are passed over.
  void add(const nlohmann::json& object);
  bool found() const { return requests_ != 0 || server_length_.has_value(); }
  void finish(MetricsReading& reading) const;

 private:
  void add_sglang(const nlohmann::json& object);
  void add_vllm(const nlohmann::json& object);
  void add_llama_cpp(const nlohmann::json& object);
  void add_histogram(const nlohmann::json& object, std::initializer_list<const char*> names);

  const EngineVersion& engine_;
  size_t requests_ = 0;
  bool verifies_known_ = true, drafted_known_ = true;
  uint64_t verifies_ = 0, accepted_ = 0, drafted_ = 0;
  std::optional<int> k_;
  std::optional<double> server_length_;
  std::vector<uint64_t> histogram_;
  std::vector<MetricWindow> windows_;
};

/// A metrics page.
class PageFigures {
 public:
  explicit PageFigures(const EngineVersion& engine) : engine_(engine) {}
  void add(const MetricSample& sample);
  bool found() const { return !gauges_.empty() || !counters_.empty(); }
  void finish(MetricsReading& reading) const;

 private:
  const EngineVersion& engine_;
  std::map<std::string, std::vector<double>> gauges_;  // SGLang; one value per label set
  std::map<std::string, double> counters_;             // vLLM and llama.cpp; summed over label sets
  std::map<int, double> per_position_;
};

/// Lines of a server's log.
class LogFigures {
 public:
  explicit LogFigures(const EngineVersion& engine) : engine_(engine) {}
  void add(std::string_view line);
  bool found() const { return !lines_.empty(); }
  void finish(MetricsReading& reading) const;

 private:
  struct Line {
    double length = 1.0;
    std::optional<double> rate;
    int running = 0;
    double accepted = 0, drafted = 0, verifies = 0;
    std::vector<double> unconditional;
  };
  void finish_sglang(MetricsReading& reading) const;
  void finish_counted(MetricsReading& reading) const;

  const EngineVersion& engine_;
  std::vector<Line> lines_;
};

/// The definition of the rate in SGLang's log and gauges.
RateDefinition sglang_log_rate(const EngineVersion& engine);

}  // namespace aerie::metric_sources
