// What the readers of the engines' flags share; not for others.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "doctor/command_line.h"
#include "doctor/engine_flags.h"

namespace aerie::flag_rules {

void read_sglang(const CommandLine& line, const FlagContext& context, EngineSetup& setup);
Status read_vllm(const CommandLine& line, const FlagContext& context, EngineSetup& setup);
void read_llama_cpp(const CommandLine& line, EngineSetup& setup);
void read_run_config(std::string_view text, EngineSetup& setup);  // TensorRT-LLM, OpenVINO

inline std::optional<int> to_integer(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

inline std::optional<double> to_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Adds a finding.
inline void find(EngineSetup& setup, Severity severity, std::string code, std::string text, std::string fix = "") {
  setup.findings.push_back({severity, std::move(code), std::move(text), std::move(fix)});
}

/// The engine does not start with these flags.
inline void refuse(EngineSetup& setup, std::string code, std::string text, std::string fix) {
  setup.starts = false;
  find(setup, Severity::kError, std::move(code), std::move(text), std::move(fix));
}

/// "", or the number as text.
inline std::string asked_text(const std::optional<int>& value) { return value ? std::to_string(*value) : std::string(); }

inline void fake(EngineSetup& setup, const std::string& cause) {
  setup.faked_acceptance = true;
  find(setup, Severity::kError, "faked-acceptance",
       cause + " makes the engine pretend that drafts are accepted: its acceptance and its speed say nothing of this drafter",
       "remove " + cause + " and measure again");
}

}  // namespace aerie::flag_rules
