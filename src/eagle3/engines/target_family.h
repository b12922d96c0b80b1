// What other engines do differently from one target architecture to the next.
#pragma once

#include <string>
#include <string_view>

#include "eagle3/engines/engine_version.h"

namespace aerie {

/// How SGLang turns the listed layer ids of a drafter into boundaries.
enum class SglangIds {
  kUnknown,         // a target that was not read; most do as kPlusOne
  kPlusOne,         // b = id + 1
  kFirstOne,        // b = id + 1 if the first listed id is 1, otherwise b = id (from 0.5.13; before: kPlusOne)
  kLastBlock,       // b = id if the highest id is N, otherwise b = id + 1 (from 0.5.17; before: kPlusOne)
  kShiftedDefault,  // b = id + 1, and the default is one later too
};

struct TargetFamily {
  const char* name = "";     // as it is printed
  const char* aliases = "";  // normalised architecture names, space-separated
  SglangIds sglang = SglangIds::kUnknown;
  bool sglang_captures_last = false;  // boundary N can be captured
  bool sglang_auto_544 = false;       // draft parameters that nobody gave are (5, 4, 8) rather than (3, 1, 4)
  bool llama_cpp_taps = false;        // llama.cpp can hand the target's layer inputs to a drafter
  bool dense = true;                  // no mixture of experts and no recurrent blocks
  bool vllm_024_v2 = false;           // on the list of vLLM 0.24 whose model runner is V2
};

/// The family of an architecture: "KimiK25", "KimiK25ForConditionalGeneration", "qwen3_moe". Null if it is not in the table.
const TargetFamily* find_target_family(std::string_view architecture);

/// Which of vLLM's runners serves a drafter. `certain` is false where the source decides by more than is known here (mixtures of
/// experts before 0.29, quantisation in 0.22); `why` says what decided.
struct RunnerChoice {
  VllmRunner runner = VllmRunner::kV2;
  bool certain = true;
  std::string why;
};
RunnerChoice vllm_runner(const EngineVersion& version, const TargetFamily* family);

}  // namespace aerie
