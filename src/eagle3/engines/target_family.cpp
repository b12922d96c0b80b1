#include "eagle3/engines/target_family.h"

#include <cctype>

namespace aerie {
namespace {

constexpr TargetFamily kFamilies[] = {
    {.name = "Llama", .aliases = "llama", .sglang = true, .sglang_auto_544 = true, .llama_cpp_taps = true, .vllm_024_v2 = true},
    {.name = "Mistral", .aliases = "mistral", .vllm_024_v2 = true},
    {.name = "Grok", .aliases = "grok grok1 grok1model", .sglang_auto_544 = true, .dense = false},
    {.name = "Qwen2", .aliases = "qwen2", .sglang = true},
    {.name = "Qwen2-MoE", .aliases = "qwen2moe", .sglang = true, .dense = false, .vllm_024_v2 = true},
    {.name = "Qwen3", .aliases = "qwen3", .sglang = true, .llama_cpp_taps = true, .vllm_024_v2 = true},
    {.name = "Qwen3-MoE", .aliases = "qwen3moe", .sglang = true, .llama_cpp_taps = true, .dense = false},
    {.name = "Qwen3-Next", .aliases = "qwen3next", .sglang = true, .llama_cpp_taps = true, .dense = false},
    {.name = "Qwen3.5", .aliases = "qwen35 qwen35text", .sglang = true, .llama_cpp_taps = true, .dense = false},
    {.name = "Qwen2.5-VL", .aliases = "qwen25vl", .sglang = true},
    {.name = "Qwen3-VL", .aliases = "qwen3vl", .sglang = true},
    {.name = "MiniMax-01", .aliases = "minimax01 minimaxtext01", .llama_cpp_taps = true, .dense = false},
    {.name = "MiniMax-M2", .aliases = "minimaxm2", .sglang = true, .llama_cpp_taps = true, .dense = false},
    {.name = "MiniMax-M3", .aliases = "minimaxm3", .sglang = true, .sglang_captures_last = true, .dense = false},
    {.name = "MiniMax-M3-VL",
     .aliases = "minimaxm3vl",
     .sglang = true,
     .sglang_ids = LayerIdRule::kShiftedDefault,
     .sglang_captures_last = true,
     .dense = false},
    {.name = "Gemma 3", .aliases = "gemma3 gemma3text", .sglang = true},
    {.name = "Gemma 4", .aliases = "gemma4", .sglang = true, .llama_cpp_taps = true},
    {.name = "GLM-4-MoE", .aliases = "glm4moe", .sglang = true, .sglang_auto_named = true, .dense = false},
    {.name = "GLM-4-MoE-Lite", .aliases = "glm4moelite", .sglang = true, .sglang_ids = LayerIdRule::kFirstOne, .dense = false},
    {.name = "GLM-5-Next", .aliases = "glm5next", .sglang = true, .dense = false},
    {.name = "EXAONE-MoE", .aliases = "exaonemoe", .sglang = true, .dense = false},
    {.name = "Apertus", .aliases = "apertus", .sglang = true},
    {.name = "Bailing", .aliases = "bailing bailingmoe bailingmoev2 bailingmoe3", .sglang = true, .llama_cpp_taps = true, .dense = false},
    {.name = "LongCat", .aliases = "longcat longcatflash", .sglang = true, .dense = false},
    {.name = "GPT-OSS",
     .aliases = "gptoss",
     .sglang = true,
     .sglang_auto_named = true,
     .sglang_ids = LayerIdRule::kLastBlock,
     .sglang_captures_last = true,
     .llama_cpp_taps = true,
     .dense = false},
    {.name = "DeepSeek-V2",
     .aliases = "deepseekv2",
     .sglang = true,
     .sglang_auto_named = true,
     .sglang_ids = LayerIdRule::kFirstOne,
     .dense = false,
     .vllm_024_v2 = true},
    // GGUF's one name for V2, V3 and Kimi-K2.
    {.name = "DeepSeek-V2/V3",
     .aliases = "deepseek2",
     .sglang = true,
     .sglang_auto_named = true,
     .sglang_ids = LayerIdRule::kFirstOne,
     .dense = false},
    {.name = "DeepSeek-V3",
     .aliases = "deepseekv3 deepseekv31 deepseekv32 deepseek",
     .sglang = true,
     .sglang_auto_named = true,
     .sglang_ids = LayerIdRule::kFirstOne,
     .blocks = 61,
     .dense = false},
    {.name = "Kimi-K2",
     .aliases = "kimik2 kimik25 kimik26",
     .sglang = true,
     .sglang_auto_named = true,
     .sglang_ids = LayerIdRule::kFirstOne,
     .blocks = 61,
     .dense = false},
    {.name = "DeepSeek-V4", .aliases = "deepseekv4 deepseek4", .llama_cpp_taps = true, .dense = false},
    {.name = "Nemotron-H", .aliases = "nemotronh", .llama_cpp_taps = true, .dense = false},
    {.name = "MiMo-V2", .aliases = "mimo2 mimov2", .llama_cpp_taps = true, .dense = false},
    {.name = "Hunyuan-VL", .aliases = "hunyuanvl", .llama_cpp_taps = true},
    {.name = "LFM2", .aliases = "lfm2", .llama_cpp_taps = true, .dense = false},
    {.name = "Nanbeige", .aliases = "nanbeige", .llama_cpp_taps = true},
    {.name = "Granite-MoE", .aliases = "granitemoe", .dense = false, .vllm_024_v2 = true},
};

/// "KimiK25ForConditionalGeneration", "kimi-k2.5" -> "kimik25".
std::string normalise(std::string_view architecture) {
  std::string out;
  for (const unsigned char c : architecture) {
    if (std::isalnum(c)) out += static_cast<char>(std::tolower(c));
  }
  for (const std::string_view ending : {"forcausallm", "forconditionalgeneration", "lmheadmodel", "model"}) {
    if (out.size() > ending.size() && out.ends_with(ending)) out.resize(out.size() - ending.size());
  }
  return out;
}

/// Calls `visit` with every alias of a family.
template <class Visit>
void each_alias(const TargetFamily& family, Visit&& visit) {
  std::string_view words = family.aliases;
  while (!words.empty()) {
    const size_t space = words.find(' ');
    visit(words.substr(0, space));
    words = space == std::string_view::npos ? std::string_view() : words.substr(space + 1);
  }
}

}  // namespace

const TargetFamily* find_target_family(std::string_view architecture) {
  const std::string name = normalise(architecture);
  const TargetFamily* out = nullptr;
  for (const TargetFamily& family : kFamilies) {
    each_alias(family, [&](std::string_view alias) { out = alias == name ? &family : out; });
  }
  return out;
}

LayerIdRule sglang_layer_ids(std::string_view architecture) {
  const std::string name = normalise(architecture);
  LayerIdRule out = LayerIdRule::kBlockOutput;
  size_t longest = 0;
  for (const TargetFamily& family : kFamilies) {
    each_alias(family, [&](std::string_view alias) {
      if (alias.size() <= longest || !name.starts_with(alias)) return;
      longest = alias.size();
      out = family.sglang_ids;
    });
  }
  return out;
}

RunnerChoice vllm_runner(const EngineVersion& version, const TargetFamily* family) {
  if (version.runner != VllmRunner::kByDefault) return {version.runner, true, "asked for"};
  if (version.at_least(0, 29)) return {VllmRunner::kV2, true, "the default for EAGLE-3 from 0.29 on"};
  if (version.at_least(0, 25)) {
    if (family == nullptr)
      return {VllmRunner::kV2, false, "0.25 to 0.28 take V2 for dense targets and some mixtures of experts; the target is not known"};
    if (family->dense) return {VllmRunner::kV2, true, "0.25 to 0.28 take V2 for dense targets"};
    return {VllmRunner::kV1, false, "0.25 to 0.28 take V2 for a short list of mixtures of experts only"};
  }
  if (version.at_least(0, 24)) {
    if (family != nullptr && family->vllm_024_v2) return {VllmRunner::kV2, true, "0.24 lists this target for V2"};
    return {VllmRunner::kV1, false, "0.24 takes V2 for a list of targets of which only a part is known here"};
  }
  if (version.at_least(0, 22)) {
    const bool qwen3 = family != nullptr && std::string_view(family->name) == "Qwen3";
    if (qwen3) return {VllmRunner::kV2, false, "0.22 takes V2 for Qwen3, unless it is quantised"};
    return {VllmRunner::kV1, family != nullptr, "0.22 takes V2 for Qwen3 alone"};
  }
  return {VllmRunner::kV1, true, "before 0.22 V2 is never the default"};
}

}  // namespace aerie
