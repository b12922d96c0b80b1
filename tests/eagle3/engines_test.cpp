// What other engines make of a drafter's files: one row of data/as_served.json for each thing that is known of one of them.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <fstream>

#include "eagle3/engines/as_served.h"
#include "eagle3/engines/target_family.h"
#include "eagle3/spec_fields.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kHidden = 64, kVocab = 256, kDraftVocab = 128;

Json llama_config() {
  return {{"architectures", {"LlamaForCausalLMEagle3"}},
          {"model_type", "llama"},
          {"hidden_size", kHidden},
          {"intermediate_size", 96},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"num_hidden_layers", 1},
          {"vocab_size", kVocab},
          {"draft_vocab_size", kDraftVocab},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"max_position_embeddings", 4096},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", false}};
}

std::vector<std::string> layer_parts(bool mla) {
  std::vector<std::string> out = {"input_layernorm", "hidden_norm",   "post_attention_layernorm", "mlp.gate_proj",
                                  "mlp.up_proj",     "mlp.down_proj", "self_attn.o_proj"};
  const std::vector<std::string> attention =
      mla ? std::vector<std::string>{"q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"}
          : std::vector<std::string>{"q_proj", "k_proj", "v_proj"};
  for (const std::string& part : attention) out.push_back("self_attn." + part);
  return out;
}

/// A healthy classic drafter in one of three dialects; widths other than fc's do not matter here.
DrafterFiles base_files(const std::string& base) {
  DrafterFiles out;
  out.config = llama_config();
  const bool mla = base == "mla", speculators = base == "speculators";
  if (mla) {
    out.config.update({{"architectures", {"Eagle3DeepseekV2ForCausalLM"}},
                       {"q_lora_rank", 24},
                       {"kv_lora_rank", 16},
                       {"qk_nope_head_dim", 8},
                       {"qk_rope_head_dim", 4},
                       {"v_head_dim", 8}});
  }
  if (speculators) {
    Json layer = out.config;
    for (const char* key : {"architectures", "draft_vocab_size"}) layer.erase(key);
    out.config = {{"speculators_model_type", "eagle3"},
                  {"architectures", {"Eagle3Speculator"}},
                  {"draft_vocab_size", kDraftVocab},
                  {"transformer_layer_config", layer}};
  }
  const std::string prefix = mla || speculators ? "layers.0." : "midlayer.";
  for (const std::string& part : layer_parts(mla)) out.tensors[prefix + part + ".weight"] = {1};
  for (const char* name : {"norm.weight", "lm_head.weight", "d2t", "t2d"}) out.tensors[name] = {1};
  out.tensors["fc.weight"] = {kHidden, 3 * kHidden};
  return out;
}

/// "transformer_layer_config.model_type" is nested; "(absent)" removes the key.
void patch(Json& config, const Json& changes) {
  for (const auto& [key, value] : changes.items()) {
    const size_t dot = key.find('.');
    Json& object = dot == std::string::npos ? config : config[key.substr(0, dot)];
    const std::string name = dot == std::string::npos ? key : key.substr(dot + 1);
    if (value == "(absent)") {
      object.erase(name);
    } else {
      object[name] = value;
    }
  }
}

DrafterFiles files_of(const Json& row) {
  DrafterFiles files = base_files(row["base"]);
  patch(files.config, row.value("config", Json::object()));
  for (const Json& name : row.value("drop", Json::array())) EXPECT_EQ(files.tensors.erase(name.get<std::string>()), 1u) << name;
  const Json added = row.value("add", Json::object()), renames = row.value("rename", Json::object());
  for (const auto& [name, shape] : added.items()) files.tensors[name] = shape.get<std::vector<uint64_t>>();
  for (const auto& [from, to] : renames.items()) {
    std::map<std::string, std::vector<uint64_t>> renamed;
    for (const auto& [name, shape] : files.tensors)
      renamed[name.rfind(from, 0) == 0 ? to.get<std::string>() + name.substr(from.size()) : name] = shape;
    files.tensors = renamed;
  }
  files.d2t = row.value("d2t", std::vector<int64_t>());
  return files;
}

std::vector<std::string> codes(const std::vector<Finding>& findings) {
  std::vector<std::string> out;
  for (const Finding& f : findings) out.push_back(f.code);
  return out;
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST(AsServed, EveryRowOfTheTable) {
  const Json rows = Json::parse(std::ifstream(std::string(AERIE_SOURCE_DIR) + "/tests/eagle3/data/as_served.json"));
  ASSERT_GE(rows.size(), 140u);
  for (const Json& row : rows) {
    SCOPED_TRACE(
        fmt::format("{} {}: {}", row["facts"].get<std::string>(), row["engine"].get<std::string>(), row["says"].get<std::string>()));
    const auto engine = parse_engine(row["engine"].get<std::string>());
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const auto readings = read_as_served(files_of(row), *engine, {.architecture = row["target"], .blocks = row["blocks"]}, nullptr);
    ASSERT_EQ(readings.size(), 1u);
    const ServedReading& reading = readings[0];
    EXPECT_EQ(reading.unknown, "");
    const std::vector<std::string> refusals = codes(reading.refusals), misreadings = codes(reading.misreadings);
    const Json& expect = row["expect"];
    ASSERT_FALSE(expect.empty());
    for (const Json& code : expect.value("refuses", Json::array()))
      EXPECT_TRUE(contains(refusals, code)) << code << " is not among " << fmt::format("{}", fmt::join(refusals, " "));
    for (const Json& code : expect.value("misreads", Json::array()))
      EXPECT_TRUE(contains(misreadings, code)) << code << " is not among " << fmt::format("{}", fmt::join(misreadings, " "));
    for (const Json& code : expect.value("lacks", Json::array())) EXPECT_FALSE(contains(misreadings, code)) << code;
    for (const Json& code : expect.value("lacks_refusal", Json::array())) EXPECT_FALSE(contains(refusals, code)) << code;
    // A row that does not speak of refusal speaks of a drafter that is served.
    if (!expect.contains("refuses")) {
      std::string texts;
      for (const Finding& f : reading.refusals) texts += f.text + "; ";
      EXPECT_EQ(texts, "");
    }
    if (!expect.contains("spec")) continue;
    ASSERT_TRUE(reading.spec.has_value());
    for (const auto& [field, value] : expect["spec"].items()) {
      if (field == "d2t") {
        EXPECT_EQ(Json(reading.spec->d2t), value);
        continue;
      }
      const auto fields = spec_fields(*reading.spec);
      const auto it = std::find_if(fields.begin(), fields.end(), [&, name = field](const SpecField& f) { return f.name == name; });
      ASSERT_NE(it, fields.end()) << field;
      EXPECT_EQ(it->value, value) << field;
    }
  }
}

TEST(AsServed, DifferencesNameTheFieldAndItsCost) {
  DrafterFiles files = base_files("specforge");
  files.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {2, 30, 58};
  const ServedTarget kimi{.architecture = "KimiK25", .blocks = 0};
  const auto right = read_as_served(files, *parse_engine("sglang:0.5.23"), kimi, nullptr);
  ASSERT_TRUE(right[0].spec.has_value());
  const DraftSpec trained = *right[0].spec;
  EXPECT_TRUE(read_as_served(files, *parse_engine("sglang:0.5.23"), kimi, &trained)[0].differences.empty());
  // The case of sglang #25454: boundaries taken for block outputs.
  const auto wrong = read_as_served(files, *parse_engine("sglang:0.5.12"), kimi, &trained);
  ASSERT_EQ(wrong[0].differences.size(), 1u);
  EXPECT_EQ(wrong[0].differences[0].field, "taps");
  EXPECT_EQ(wrong[0].differences[0].trained, "2,30,58");
  EXPECT_EQ(wrong[0].differences[0].served, "3,31,59");
  EXPECT_NE(wrong[0].differences[0].cost.find("0.1"), std::string::npos);
  DraftSpec twice = trained;
  twice.feature_normed_twice = true;
  EXPECT_EQ(read_as_served(files, *parse_engine("sglang:0.5.23"), kimi, &twice)[0].differences[0].field, "feature_normed_twice");
}

TEST(AsServed, BothRunnersWhereTheVersionLeavesItOpen) {
  const DrafterFiles files = base_files("specforge");
  EXPECT_EQ(read_as_served(files, *parse_engine("vllm:0.28"), {.architecture = "KimiK25", .blocks = 61}, nullptr).size(), 2u);
  EXPECT_EQ(read_as_served(files, *parse_engine("vllm:0.33"), {.architecture = "KimiK25", .blocks = 61}, nullptr).size(), 1u);
  EXPECT_EQ(read_as_served(files, *parse_engine("vllm:0.20"), {}, nullptr).size(), 1u);
}

TEST(AsServed, AnUnknownTargetLeavesTheDefaultInWords) {
  const auto reading = read_as_served(base_files("specforge"), *parse_engine("vllm:0.33"), {}, nullptr)[0];
  EXPECT_NE(reading.taps.find("2, N/2, N-3"), std::string::npos);
  EXPECT_TRUE(reading.spec->taps.empty());
}

TEST(AsServed, WhatWasNotReadIsNotClaimed) {
  EXPECT_NE(read_as_served(base_files("speculators"), *parse_engine("tensorrt-llm"), {}, nullptr)[0].unknown, "");
  DrafterFiles gguf;
  gguf.gguf = true;
  for (const EngineVersion& engine : known_engines()) EXPECT_NE(read_as_served(gguf, engine, {}, nullptr)[0].unknown, "");
}

RC_GTEST_PROP(AsServed, NoConfigBreaksTheReader, ()) {
  DrafterFiles files = base_files(*rc::gen::element(std::string("specforge"), std::string("speculators"), std::string("mla")));
  const Json values[] = {nullptr,
                         -1,
                         0,
                         1e30,
                         3,
                         "text",
                         true,
                         Json::array(),
                         Json::array({1, "x"}),
                         Json::array({-1, 1 << 14}),
                         Json::object({{"rope_type", 5}})};
  for (int i = 0; i < 3; ++i) {
    const std::string key = *rc::gen::element<std::string>("architectures", "hidden_size", "num_hidden_layers", "vocab_size",
                                                           "draft_vocab_size", "eagle_config", "rope_parameters", "rope_scaling",
                                                           "transformer_layer_config", "eagle_aux_hidden_state_layer_ids", "layer_types",
                                                           "kv_lora_rank", "norm_output", "num_attention_heads", "model_type");
    files.config[key] = values[*rc::gen::inRange<size_t>(0, std::size(values))];
  }
  for (const EngineVersion& engine : known_engines()) {
    for (const ServedReading& reading :
         read_as_served(files, engine, {.architecture = "GptOssForCausalLM", .blocks = *rc::gen::inRange(0, 40)}, nullptr)) {
      RC_ASSERT(!reading.engine.empty());
    }
  }
}

TEST(TargetFamily, NamesInAnySpelling) {
  for (const char* name : {"KimiK25", "KimiK25ForConditionalGeneration", "kimi_k2.5", "kimi-k2"}) {
    ASSERT_NE(find_target_family(name), nullptr) << name;
    EXPECT_STREQ(find_target_family(name)->name, "Kimi-K2");
  }
  EXPECT_STREQ(find_target_family("Qwen3MoeForCausalLM")->name, "Qwen3-MoE");
  EXPECT_EQ(find_target_family(""), nullptr);
  EXPECT_EQ(find_target_family("SomethingElse"), nullptr);
}

}  // namespace
}  // namespace aerie
