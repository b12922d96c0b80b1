// Other engines that serve EAGLE-3 drafters, and their releases: what a rule that changed with a release is looked up by.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace aerie {

enum class Engine { kSglang, kVllm, kLlamaCpp, kTensorRtLlm, kOpenVino };

/// "SGLang", as its makers write it.
const char* display_name(Engine engine);

/// A release number: 0.5.12.post1 is {0, 5, 12, 1}. Later parts are 0.
struct Release {
  std::array<int, 4> parts{};
  auto operator<=>(const Release&) const = default;
  std::string text() const;
};

/// vLLM has two model runners, which read a drafter's layer ids differently.
enum class VllmRunner { kByDefault, kV1, kV2 };

/// An engine as a person names it: "sglang:0.5.23", "vllm:0.28:v1", "llama.cpp".
struct EngineVersion {
  Engine engine = Engine::kSglang;
  Release release;                             // of the newest release whose source was read, where none was given
  VllmRunner runner = VllmRunner::kByDefault;  // vLLM: what was asked for
  std::string revision;                        // llama.cpp, TensorRT-LLM, OpenVINO: the given build, or ""
  std::vector<std::string> caveats;            // why the rules may not be those of this very release

  bool at_least(int major, int minor, int patch = 0) const { return release >= Release{{major, minor, patch, 0}}; }
  std::string text() const;  // "SGLang 0.5.23", "vLLM 0.28 (V1 runner)", "llama.cpp"
};

/// Parses ENGINE[:VERSION[:RUNNER]]. Engines without numbered releases that were read (all but SGLang and vLLM) take any word as their
/// version. A release that was not read gets a caveat: newer than the newest, older than the oldest, or between two with different rules.
Expected<EngineVersion> parse_engine(std::string_view text);

/// One version of each set of rules that is told apart, newest first: what "all" means.
std::vector<EngineVersion> known_engines();

}  // namespace aerie
