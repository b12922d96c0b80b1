// What the layer ids of a checkpoint mean: every producer and engine counts in its own way, Aerie only in boundaries.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace aerie {

/// The last boundary that is believed, and the most blocks of a target: far above any real model.
inline constexpr int kMaxTap = 1 << 14;
/// Stands for a tap that the files do not state and nobody gave; no spec with it is valid.
inline constexpr int kUnknownTap = -2;

enum class LayerIdConvention {
  kBoundary,     // id k is boundary k
  kBlockOutput,  // id k is what block k (0-based) hands on: boundary k + 1
};
/// "boundary", "block-output".
const char* layer_id_convention_name(LayerIdConvention convention);
Expected<LayerIdConvention> parse_layer_id_convention(std::string_view text);

/// A rule by which some program turns listed ids into boundaries.
enum class LayerIdRule {
  kBoundary,             // b = id
  kBlockOutput,          // b = id + 1, so that -1 is the embedding; the default is in boundaries already
  kFirstOne,             // b = id + 1 if the first listed id is 1, otherwise b = id
  kLastBlock,            // b = id if the highest id is N, otherwise b = id + 1
  kShiftedDefault,       // b = id + 1, and the default is one later too
  kBlockOutputAndFinal,  // b = id + 1 in ascending order; -1 is the final state after its norm, and comes last
};

/// How `program` reads the ids of a drafter for a target. Programs: reference, vllm, llama.cpp, speculators, openvino, atom, sglang,
/// specforge, tensorrt-llm, modelopt, angelslim, nemo. Architectures matter to SGLang and SpecForge only ("DeepseekV3ForCausalLM",
/// "gpt_oss", ...; any other word, and none, reads as most targets do). kNotFound where the program is none of these.
Expected<LayerIdRule> layer_id_rule(std::string_view program, std::string_view target_architecture = "");

/// The boundaries of listed ids. `blocks` is N, or 0 where it is not known. kInvalidArgument: an id that the rule has no meaning
/// for, or that needs N to be known.
Expected<std::vector<int>> to_boundaries(LayerIdRule rule, const std::vector<int>& ids, int blocks);

/// The ids that `rule` reads as these taps, and how they count. kUnsupported: there are none; kInvalidArgument: N must be known.
struct LayerIds {
  std::vector<int> ids;
  LayerIdConvention convention = LayerIdConvention::kBoundary;
};
Expected<LayerIds> to_layer_ids(LayerIdRule rule, const std::vector<int>& taps, int blocks);

/// The taps of a drafter that lists none: (2, N/2, N-3), one later under kShiftedDefault. N must be at least 6.
std::vector<int> default_taps(LayerIdRule rule, int blocks);

/// What a list of ids says of itself, whoever wrote it.
struct LayerIdGuess {
  enum class Strength {
    kNone,     // the numbers fit both conventions
    kLikely,   // a rule of thumb: drafters start at boundary 2, which is id 1 of those who count block outputs
    kCertain,  // exactly a convention's default, or a number that only one of them can hold
  };
  LayerIdConvention convention = LayerIdConvention::kBoundary;
  Strength strength = Strength::kNone;
  std::string why;
};
LayerIdGuess guess_convention(const std::vector<int>& ids, int blocks);

/// Taps as a person writes them: "2,15,27", "embed" for boundary 0 and "final" for the normed final state.
Expected<std::vector<int>> parse_taps(std::string_view text);

}  // namespace aerie
