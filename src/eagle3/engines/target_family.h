// What other engines do differently from one target architecture to the next.
#pragma once

#include <string>
#include <string_view>

#include "eagle3/engines/engine_version.h"
#include "eagle3/layer_ids.h"

namespace aerie {

struct TargetFamily {
  const char* name = "";                               // as it is printed
  const char* aliases = "";                            // normalised architecture names, space-separated
  bool sglang = false;                                 // SGLang can capture its layers, as far as was read
  bool sglang_auto_544 = false;                        // draft parameters that nobody gave are (5, 4, 8) rather than (3, 1, 4)
  bool sglang_auto_named = false;                      // they are (3, 1, 4) before 0.5.9 too
  LayerIdRule sglang_ids = LayerIdRule::kBlockOutput;  // how SGLang 0.5.23 counts listed layers
  bool sglang_captures_last = false;                   // boundary N can be captured
  bool llama_cpp_taps = false;                         // llama.cpp can hand the target's layer inputs to a drafter
  int blocks = 0;                                      // N, where all of the family have the same; 0: not known
  bool dense = true;                                   // no mixture of experts and no recurrent blocks
  bool vllm_024_v2 = false;                            // on the list of vLLM 0.24 whose model runner is V2
};

/// The family of an architecture: "KimiK25", "KimiK25ForConditionalGeneration", "qwen3_moe". Null if it is not in the table.
const TargetFamily* find_target_family(std::string_view architecture);

/// How SGLang counts the listed layers of a target: as its family, or, for a member that is not in the table, as the family of which
/// its name begins with the longest alias. Most targets, and the unknown ones, kBlockOutput.
LayerIdRule sglang_layer_ids(std::string_view architecture);

/// Which of vLLM's runners serves a drafter. `certain` is false where the source decides by more than is known here (mixtures of
/// experts before 0.29, quantisation in 0.22); `why` says what decided.
struct RunnerChoice {
  VllmRunner runner = VllmRunner::kV2;
  bool certain = true;
  std::string why;
};
RunnerChoice vllm_runner(const EngineVersion& version, const TargetFamily* family);

}  // namespace aerie
