#include "eagle3/engines/engine_version.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <span>

#include "formats/printable.h"

namespace aerie {
namespace {

struct EngineName {
  Engine engine;
  const char* name;     // as people type it
  const char* display;  // as its makers write it
};
constexpr EngineName kNames[] = {
    {Engine::kSglang, "sglang", "SGLang"},         {Engine::kVllm, "vllm", "vLLM"},
    {Engine::kLlamaCpp, "llama.cpp", "llama.cpp"}, {Engine::kTensorRtLlm, "tensorrt-llm", "TensorRT-LLM"},
    {Engine::kOpenVino, "openvino", "OpenVINO"},   {Engine::kLlamaCpp, "llamacpp", ""},
    {Engine::kTensorRtLlm, "trtllm", ""},
};

// The releases whose source the rules were read from, oldest first.
constexpr Release kSglangRead[] = {{{0, 5, 3}},     {{0, 5, 6}},  {{0, 5, 9}},  {{0, 5, 10}}, {{0, 5, 11}}, {{0, 5, 12}},
                                   {{0, 5, 12, 1}}, {{0, 5, 13}}, {{0, 5, 14}}, {{0, 5, 15}}, {{0, 5, 16}}, {{0, 5, 17}},
                                   {{0, 5, 18}},    {{0, 5, 20}}, {{0, 5, 22}}, {{0, 5, 23}}};
constexpr Release kVllmRead[] = {{{0, 18}}, {{0, 20}}, {{0, 22}}, {{0, 24}}, {{0, 25}},
                                 {{0, 28}}, {{0, 29}}, {{0, 30}}, {{0, 31}}, {{0, 33}}};

// The rules of engines that number no releases, or whose sources could not be tied to one.
constexpr const char* kLlamaCppRead = "commit 0c1e57098 of 2026-10-01";
constexpr const char* kTensorRtRead = "several commits of 2026 that are tied to no release";
constexpr const char* kOpenVinoRead = "genai da1db86 of 2026-08-21 and optimum-intel 2.2.0";

std::span<const Release> releases_read(Engine engine) {
  if (engine == Engine::kSglang) return kSglangRead;
  if (engine == Engine::kVllm) return kVllmRead;
  return {};
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

/// The part up to the next ':', which is consumed.
std::string_view next_part(std::string_view& rest) {
  const size_t colon = rest.find(':');
  const std::string_view part = rest.substr(0, colon);
  rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
  return part;
}

/// Digits at the front of `text`, which are consumed; -1 without any or above a million.
int leading_number(std::string_view& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > 1'000'000) return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

Expected<Release> parse_release(std::string_view text) {
  const std::string given(text);
  const auto wrong = [&given] {
    return invalid_argument("the version {} is no release number: expected one like 0.5.23 or 0.5.12.post1", printable(given));
  };
  if (text.starts_with('v')) text.remove_prefix(1);
  Release release;
  for (size_t i = 0; i < 3; ++i) {
    const int part = leading_number(text);
    if (part < 0) return wrong();
    release.parts[i] = part;
    if (text.empty() || text.front() != '.' || text.starts_with(".post")) break;
    text.remove_prefix(1);
  }
  if (text.starts_with(".post")) {
    text.remove_prefix(5);
    release.parts[3] = leading_number(text);
    if (release.parts[3] < 0) return wrong();
  }
  // A candidate (rc1) has the rules of its release; what follows '+' names a build.
  if (!text.empty() && text.front() != '+' && !text.starts_with("rc")) return wrong();
  return release;
}

void note_unread(EngineVersion& version) {
  const std::span<const Release> read = releases_read(version.engine);
  if (read.empty()) return;
  const char* name = display_name(version.engine);
  if (version.release > read.back()) {
    version.caveats.push_back(fmt::format("{} {} is newer than {}, the newest release that was read: its rules are assumed", name,
                                          version.release.text(), read.back().text()));
  } else if (version.release < read.front()) {
    version.caveats.push_back(fmt::format("{} {} is older than {}, the oldest release that was read: its rules are assumed", name,
                                          version.release.text(), read.front().text()));
  } else if (std::find(read.begin(), read.end(), version.release) == read.end()) {
    const auto next = std::upper_bound(read.begin(), read.end(), version.release);
    version.caveats.push_back(fmt::format("{} {} was not read; a change that was first seen in {} may already be in it", name,
                                          version.release.text(), next->text()));
  }
}

}  // namespace

const char* display_name(Engine engine) {
  for (const EngineName& known : kNames) {
    if (known.engine == engine) return known.display;
  }
  return "?";
}

std::string Release::text() const {
  std::string out = fmt::format("{}.{}", parts[0], parts[1]);
  if (parts[2] != 0 || parts[3] != 0) out += fmt::format(".{}", parts[2]);
  if (parts[3] != 0) out += fmt::format(".post{}", parts[3]);
  return out;
}

std::string EngineVersion::text() const {
  std::string out = display_name(engine);
  if (!releases_read(engine).empty()) out += " " + release.text();
  if (!revision.empty()) out += " " + revision;
  if (runner != VllmRunner::kByDefault) out += runner == VllmRunner::kV1 ? " (V1 runner)" : " (V2 runner)";
  return out;
}

Expected<EngineVersion> parse_engine(std::string_view text) {
  const std::string given(text), all = lower(text);
  std::string_view rest = all;
  const std::string_view name = next_part(rest), number = next_part(rest), runner = next_part(rest);
  const auto known = std::find_if(std::begin(kNames), std::end(kNames), [&](const EngineName& k) { return name == k.name; });
  if (known == std::end(kNames)) {
    return invalid_argument(
        "the engine {} is not known: expected sglang, vllm, llama.cpp, tensorrt-llm or openvino, with a version as in sglang:0.5.23",
        printable(given));
  }
  EngineVersion version;
  version.engine = known->engine;
  const std::span<const Release> read = releases_read(version.engine);
  if (read.empty()) {
    const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '-' || c == '_'; };
    if (number.size() > 64 || !std::all_of(number.begin(), number.end(), plain)) {
      return invalid_argument("{}: the version may hold letters, digits, '.', '-' and '_', at most 64 of them", printable(given));
    }
    version.revision = std::string(number);
    const char* source = version.engine == Engine::kLlamaCpp      ? kLlamaCppRead
                         : version.engine == Engine::kTensorRtLlm ? kTensorRtRead
                                                                  : kOpenVinoRead;
    version.caveats.push_back(fmt::format("the rules of {} are those of {}", known->display, source));
    if (version.engine == Engine::kTensorRtLlm) version.caveats.push_back("TensorRT-LLM: the PyTorch flow");
  } else if (number.empty()) {
    version.release = read.back();
    version.caveats.push_back(fmt::format("no version was given: the rules are those of {}", read.back().text()));
  } else {
    AERIE_ASSIGN(version.release, parse_release(number));
    note_unread(version);
  }
  if (!runner.empty()) {
    if (version.engine != Engine::kVllm || (runner != "v1" && runner != "v2")) {
      return invalid_argument("{}: only vllm has a third part, its model runner, v1 or v2", printable(given));
    }
    version.runner = runner == "v1" ? VllmRunner::kV1 : VllmRunner::kV2;
  }
  if (!rest.empty()) return invalid_argument("{}: expected ENGINE:VERSION, for vllm also ENGINE:VERSION:RUNNER", printable(given));
  return version;
}

std::vector<EngineVersion> known_engines() {
  // Each of these reads some drafter differently from its neighbours.
  constexpr const char* kNamed[] = {"sglang:0.5.23", "sglang:0.5.18", "sglang:0.5.16", "sglang:0.5.12", "sglang:0.5.11",
                                    "sglang:0.5.9",  "vllm:0.33:v2",  "vllm:0.33:v1",  "vllm:0.28:v2",  "vllm:0.24:v1",
                                    "vllm:0.22:v1",  "vllm:0.20:v1",  "llama.cpp",     "tensorrt-llm",  "openvino"};
  std::vector<EngineVersion> out;
  for (const char* named : kNamed) {
    if (auto version = parse_engine(named); version.ok()) out.push_back(*std::move(version));
  }
  return out;
}

}  // namespace aerie
