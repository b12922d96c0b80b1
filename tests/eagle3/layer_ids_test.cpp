// What a layer id means: a row for each producer and engine.
#include "eagle3/layer_ids.h"

#include "eagle3/draft_spec.h"
#include "gtest/gtest.h"

namespace aerie {
namespace {

struct Row {
  const char* program;
  const char* architecture;
  int blocks;
  std::vector<int> ids, boundaries;
};

TEST(LayerIds, EveryProgramCountsAsItsSourceSays) {
  const Row rows[] = {
      {"reference", "", 32, {2, 16, 29}, {2, 16, 29}},
      {"vllm", "Qwen3ForCausalLM", 94, {1, 46, 90}, {1, 46, 90}},
      {"vllm", "", 32, {0, 16, 32}, {0, 16, 32}},
      {"llama.cpp", "", 36, {24, 30, 36}, {24, 30, 36}},
      {"speculators", "", 48, {1, 23, 44}, {1, 23, 44}},
      {"atom", "", 32, {2, 16, 29}, {2, 16, 29}},
      {"openvino", "", 32, {2, 16, 29}, {3, 17, 30}},
      {"sglang", "Qwen3MoeForCausalLM", 94, {1, 46, 90}, {2, 47, 91}},
      {"sglang", "LlamaForCausalLM", 32, {-1, 15, 28}, {0, 16, 29}},
      {"sglang", "DeepseekV3ForCausalLM", 61, {1, 29, 57}, {2, 30, 58}},
      {"sglang", "KimiK25ForConditionalGeneration", 61, {2, 30, 58}, {2, 30, 58}},
      {"sglang", "deepseek2", 61, {2, 30, 58}, {2, 30, 58}},  // GGUF's name
      {"sglang", "DeepseekV4ForCausalLM", 43, {1, 21, 40}, {2, 22, 41}},
      {"sglang", "deepseek4", 43, {2, 21, 40}, {3, 22, 41}},
      {"sglang", "KimiK29ForConditionalGeneration", 61, {2, 30, 58}, {2, 30, 58}},  // a member that is not known
      {"sglang", "glm4_moe_lite", 47, {2, 23, 44}, {2, 23, 44}},
      {"sglang", "Glm4MoeForCausalLM", 46, {2, 23, 43}, {3, 24, 44}},
      {"sglang", "GptOssForCausalLM", 36, {24, 30, 36}, {24, 30, 36}},
      {"sglang", "GptOssForCausalLM", 36, {1, 17, 33}, {2, 18, 34}},
      {"sglang", "MiniMaxM3VLForConditionalGeneration", 60, {1, 29, 56}, {2, 30, 57}},
      {"specforge", "LlamaForCausalLM", 32, {1, 15, 28}, {2, 16, 29}},
      {"specforge", "DeepseekV3ForCausalLM", 61, {2, 30, 58}, {2, 30, 58}},
      {"tensorrt-llm", "", 32, {28, 1, 15}, {2, 16, 29}},
      {"tensorrt-llm", "", 32, {-1, 1, 15}, {2, 16, kFinalNormed}},
      {"modelopt", "", 36, {1, 17, 32}, {2, 18, 33}},
      {"angelslim", "", 36, {1, 17, 32}, {2, 18, 33}},
      {"nemo", "", 36, {1, 17, 32}, {2, 18, 33}},
  };
  for (const Row& row : rows) {
    const auto rule = layer_id_rule(row.program, row.architecture);
    ASSERT_TRUE(rule.ok()) << row.program;
    const auto found = to_boundaries(*rule, row.ids, row.blocks);
    ASSERT_TRUE(found.ok()) << row.program << ": " << found.status().message();
    EXPECT_EQ(*found, row.boundaries) << row.program << " " << row.architecture;
  }
  EXPECT_EQ(layer_id_rule("nobody").status().code(), StatusCode::kNotFound);
}

TEST(LayerIds, DefaultsAreTheSameBoundariesButForTwoPrograms) {
  const auto defaults = [](const char* program, const char* architecture, int blocks) {
    return default_taps(*layer_id_rule(program, architecture), blocks);
  };
  for (const char* program : {"reference", "vllm", "sglang", "specforge", "tensorrt-llm", "modelopt", "llama.cpp", "speculators"}) {
    EXPECT_EQ(defaults(program, "LlamaForCausalLM", 32), (std::vector<int>{2, 16, 29})) << program;
  }
  EXPECT_EQ(defaults("sglang", "minimax_m3_vl", 60), (std::vector<int>{3, 31, 58}));
  EXPECT_EQ(defaults("openvino", "", 32), (std::vector<int>{3, 17, 30}));
}

TEST(LayerIds, RefusesWhatARuleHasNoMeaningFor) {
  EXPECT_FALSE(to_boundaries(LayerIdRule::kBoundary, {-1, 2, 3}, 32).ok());
  EXPECT_FALSE(to_boundaries(LayerIdRule::kBlockOutput, {-2, 2, 3}, 32).ok());
  EXPECT_FALSE(to_boundaries(LayerIdRule::kLastBlock, {24, 30, 36}, 0).ok());
  EXPECT_EQ(to_boundaries(LayerIdRule::kBlockOutput, {}, 0).value(), std::vector<int>());
}

TEST(LayerIds, GuessesOnlyWhatTheNumbersShow) {
  using enum LayerIdConvention;
  using Strength = LayerIdGuess::Strength;
  struct Case {
    std::vector<int> ids;
    int blocks;
    Strength strength;
    LayerIdConvention convention;
  };
  const Case cases[] = {
      {{2, 30, 58}, 0, Strength::kCertain, kBoundary},     // Kimi-K2.5, N = 61
      {{1, 29, 57}, 0, Strength::kCertain, kBlockOutput},  // DeepSeek-V3, N = 61
      {{1, 46, 90}, 0, Strength::kCertain, kBlockOutput},  // Qwen3-235B, N = 94
      {{1, 17, 32}, 0, Strength::kCertain, kBlockOutput},  // gpt-oss-120b, N = 36
      {{1, 17, 33}, 36, Strength::kLikely, kBlockOutput},  // the same by another maker
      {{1, 23, 44}, 0, Strength::kCertain, kBlockOutput},  // Llama 4 Maverick, N = 48
      {{24, 30, 36}, 0, Strength::kNone, kBoundary},       // undecidable ...
      {{24, 30, 36}, 36, Strength::kCertain, kBoundary},   // ... unless N is known
      {{1, 21, 40}, 43, Strength::kLikely, kBlockOutput}, {{2, 10, 20}, 0, Strength::kLikely, kBoundary},
      {{-1, 2, 30}, 0, Strength::kCertain, kBlockOutput}, {{5, 9}, 0, Strength::kNone, kBoundary},
  };
  for (const Case& c : cases) {
    const LayerIdGuess guess = guess_convention(c.ids, c.blocks);
    EXPECT_EQ(guess.strength, c.strength) << c.ids[0] << "," << c.ids[1] << " " << guess.why;
    if (c.strength == Strength::kNone) continue;
    EXPECT_EQ(guess.convention, c.convention) << c.ids[0] << "," << c.ids[1];
  }
}

TEST(LayerIds, ParsesWhatAPersonWrites) {
  EXPECT_EQ(parse_taps("2,15,27").value(), (std::vector<int>{2, 15, 27}));
  EXPECT_EQ(parse_taps("embed,2,30").value(), (std::vector<int>{0, 2, 30}));
  EXPECT_EQ(parse_taps("final").value(), (std::vector<int>{kFinalNormed}));
  for (const char* text : {"", "2,", ",2", "-1", "2;3", "2, 3", "99999999999", "1e3"}) EXPECT_FALSE(parse_taps(text).ok()) << text;
  EXPECT_EQ(parse_layer_id_convention("block-output").value(), LayerIdConvention::kBlockOutput);
  EXPECT_FALSE(parse_layer_id_convention("sglang").ok());
}

}  // namespace
}  // namespace aerie
