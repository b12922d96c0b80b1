// The speculators dialect: what is read, what is refused and with which words, and what is written.
#include "eagle3/dialects/speculators.h"

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/file_io.h"
#include "checkpoint_parts.h"
#include "draft_fixture.h"
#include "eagle3/spec_fields.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// The written form of tiny_spec().
Parts tiny_parts(const DraftSpec& spec = tiny_spec()) {
  TempFolder dir;
  const Status status = speculators::save_checkpoint(dir / "d", spec, random_weights(spec, 1));
  EXPECT_TRUE(status.ok()) << status.message();
  return parts_of(dir / "d");
}

/// The error with which damaged parts are refused, or "accepted".
std::string refusal(const Parts& parts, StatusCode* code = nullptr) {
  TempFolder dir;
  parts.write(dir / "d");
  const auto loaded = open_drafter(dir / "d");
  if (code != nullptr) *code = loaded.status().code();
  if (loaded.ok()) return "accepted";
  EXPECT_EQ(loaded.status().message().rfind(dir / "d", 0), 0u) << "the error does not name the folder: " << loaded.status().message();
  return loaded.status().message();
}

struct Fault {
  const char* expected;  // part of the error
  StatusCode code;
  std::function<void(Parts&)> damage;
};

void expect_refused(const std::vector<Fault>& faults) {
  const Parts good = tiny_parts();
  EXPECT_EQ(refusal(good), "accepted");
  for (const Fault& fault : faults) {
    Parts parts = good;
    fault.damage(parts);
    StatusCode code = StatusCode::kOk;
    const std::string message = refusal(parts, &code);
    EXPECT_NE(message.find(fault.expected), std::string::npos) << "expected: " << fault.expected << "\nfound: " << message;
    EXPECT_EQ(code, fault.code) << message;
  }
}

constexpr StatusCode kCorrupt = StatusCode::kCorrupt, kMissing = StatusCode::kNotFound, kUnsupported = StatusCode::kUnsupported;

TEST(Speculators, RefusesAConfigThatIsIncompleteOrContradictory) {
  expect_refused({
      {"a DFlash drafter (speculators_model_type is 'dflash')", kUnsupported,
       [](Parts& p) { p.config["speculators_model_type"] = "dflash"; }},
      {"speculators_model_type is missing", kMissing, [](Parts& p) { p.config["speculators_model_type"] = nullptr; }},
      {"a P-EAGLE drafter (PEagleDraftModel)", kUnsupported, [](Parts& p) { p.config["architectures"] = {"PEagleDraftModel"}; }},
      {"architectures names 'OtherModel'", kUnsupported, [](Parts& p) { p.config["architectures"] = {"OtherModel"}; }},
      {"architectures is '17', expected a list of strings", kCorrupt, [](Parts& p) { p.config["architectures"] = 17; }},
      {"transformer_layer_config is missing", kMissing, [](Parts& p) { p.config.erase("transformer_layer_config"); }},
      {"transformer_layer_config is '[]', expected an object", kCorrupt, [](Parts& p) { p.layer() = Json::array(); }},
      {"transformer_layer_config.hidden_size is missing", kMissing, [](Parts& p) { p.layer().erase("hidden_size"); }},
      {"transformer_layer_config.vocab_size is missing", kMissing, [](Parts& p) { p.layer().erase("vocab_size"); }},
      {"transformer_layer_config.hidden_size is '-16'", kCorrupt, [](Parts& p) { p.layer()["hidden_size"] = -16; }},
      {"transformer_layer_config.hidden_size is '16.5'", kCorrupt, [](Parts& p) { p.layer()["hidden_size"] = 16.5; }},
      {"transformer_layer_config.hidden_size is '18446744073709551615'", kCorrupt, [](Parts& p) { p.layer()["hidden_size"] = UINT64_MAX; }},
      {"transformer_layer_config.rms_norm_eps is '\"1e-5\"'", kCorrupt, [](Parts& p) { p.layer()["rms_norm_eps"] = "1e-5"; }},
      {"norm_output is '1', expected true or false", kCorrupt, [](Parts& p) { p.config["norm_output"] = 1; }},
      {"eagle_aux_hidden_state_layer_ids is missing", kCorrupt, [](Parts& p) { p.config.erase("eagle_aux_hidden_state_layer_ids"); }},
      {"give the 2 boundaries with --taps", kCorrupt, [](Parts& p) { p.config["eagle_aux_hidden_state_layer_ids"] = nullptr; }},
      {"the feature of width 12 is not as wide as the drafter", kCorrupt,
       [](Parts& p) { p.config["eagle_aux_hidden_state_layer_ids"] = Json::array(); }},
      {"eagle_aux_hidden_state_layer_ids is '[1,-1]'", kCorrupt,
       [](Parts& p) {
         p.config["eagle_aux_hidden_state_layer_ids"] = {1, -1};
       }},
      {"num_aux_hidden_states is 3, but", kCorrupt, [](Parts& p) { p.config["num_aux_hidden_states"] = 3; }},
      {"norm_before_fc and fc_norm are both true", kCorrupt, [](Parts& p) { p.config["fc_norm"] = true; }},
      {"the key 'transformer_layer_config.qk_clip' is not known", kUnsupported, [](Parts& p) { p.layer()["qk_clip"] = 1; }},
      {"the key 'norm_everything' is not known", kUnsupported, [](Parts& p) { p.config["norm_everything"] = true; }},
      {"draft_vocab_size is 11, larger than vocab_size", kCorrupt, [](Parts& p) { p.config["draft_vocab_size"] = 11; }},
      {"kv_heads", kCorrupt, [](Parts& p) { p.layer()["num_key_value_heads"] = 3; }},
  });
}

TEST(Speculators, RefusesWhatCannotBeMeant) {
  expect_refused({
      {"model_type is 'gemma3'", kUnsupported, [](Parts& p) { p.layer()["model_type"] = "gemma3"; }},
      {"the tensor layers.0.self_attn.q_norm.weight [8] is missing", kMissing, [](Parts& p) { p.layer()["model_type"] = "qwen3"; }},
      {"neither hidden_norm and input_layernorm", kCorrupt, [](Parts& p) { p.layer()["num_hidden_layers"] = 2; }},
      {"q_proj.bias is missing, though config.json says that attention_bias", kMissing,
       [](Parts& p) { p.layer()["attention_bias"] = true; }},
      {"gate_proj.bias is missing, though config.json says that mlp_bias", kMissing, [](Parts& p) { p.layer()["mlp_bias"] = true; }},
      {"hidden_act is 'gelu'", kUnsupported, [](Parts& p) { p.layer()["hidden_act"] = "gelu"; }},
      {"sliding_window is 2048, but no layer_types", kCorrupt, [](Parts& p) { p.layer()["sliding_window"] = 2048; }},
      {"there is no sliding_window", kCorrupt, [](Parts& p) { p.layer()["layer_types"] = {"sliding_attention"}; }},
      {"layer_types holds 'linear_attention'", kUnsupported, [](Parts& p) { p.layer()["layer_types"] = {"linear_attention"}; }},
      {"use_sliding_window is true", kUnsupported, [](Parts& p) { p.layer()["use_sliding_window"] = true; }},
      {"tie_word_embeddings is true", kUnsupported, [](Parts& p) { p.config["tie_word_embeddings"] = true; }},
      {"the drafter's weights are quantised (quantization_config: 'compressed-tensors')", kUnsupported,
       [](Parts& p) {
         p.config["quantization_config"] = {{"quant_method", "compressed-tensors"}};
       }},
      {"the drafter's weights are quantised (it has the tensor 'fc.weight_scale')", kUnsupported,
       [](Parts& p) { p.set_zeros("fc.weight_scale", {16}); }},
  });
}

TEST(Speculators, RefusesRopeThatContradictsItself) {
  expect_refused({
      {"rope_scaling.low_freq_factor is missing", kMissing,
       [](Parts& p) {
         p.layer()["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}, {"original_max_position_embeddings", 8192}};
         p.layer().erase("rope_parameters");
       }},
      {"RoPE scaling 'dynamic'", kUnsupported,
       [](Parts& p) {
         p.layer()["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
       }},
      {"rope_scaling.factor is missing", kMissing,
       [](Parts& p) {
         p.layer()["rope_scaling"] = {{"type", "yarn"}};
       }},
      {"rope_parameters and transformer_layer_config.rope_scaling state different scalings", kCorrupt,
       [](Parts& p) {
         p.layer()["rope_scaling"] = {{"type", "yarn"}, {"factor", 32.0}};
       }},
      {"says rope_type 'yarn' and type 'linear'", kCorrupt,
       [](Parts& p) {
         p.layer()["rope_scaling"] = {{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 32.0}};
       }},
      {"factor is 2, but there is no rope_type that uses it", kCorrupt, [](Parts& p) { p.layer()["rope_parameters"]["factor"] = 2.0; }},
      {"partial_rotary_factor is 1.5", kCorrupt, [](Parts& p) { p.layer()["partial_rotary_factor"] = 1.5; }},
      {"rope_parameters.spin' is not known", kUnsupported, [](Parts& p) { p.layer()["rope_parameters"]["spin"] = 2.0; }},
      {"rope_theta is 10000 but transformer_layer_config.rope_parameters.rope_theta says 1000000", kCorrupt,
       [](Parts& p) { p.layer()["rope_parameters"]["rope_theta"] = 1e6; }},
      {"says rope_theta 10000, transformer_layer_config.rope_scaling says 500000", kCorrupt,
       [](Parts& p) {
         p.layer()["rope_scaling"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
       }},
  });
}

TEST(Speculators, RefusesTensorsThatAreMissingUnknownOrMisshapen) {
  expect_refused({
      {"the tensor fc.weight [16, 24] is missing", kMissing, [](Parts& p) { p.tensors.erase("fc.weight"); }},
      {"the tensor layers.0.self_attn.q_proj.weight [32, 32] is missing", kMissing,
       [](Parts& p) { p.tensors.erase("layers.0.self_attn.q_proj.weight"); }},
      {"lm_head.weight is missing, and the target's head [10, 12]", kMissing, [](Parts& p) { p.tensors.erase("lm_head.weight"); }},
      {"the target's table of width 12 does not fit", kCorrupt, [](Parts& p) { p.tensors.erase("embed_tokens.weight"); }},
      {"input_norm.weight [24] is missing, though the config says", kMissing, [](Parts& p) { p.tensors.erase("input_norm.weight"); }},
      {"'input_norm.weight' is there, but norm_before_fc is not true", kCorrupt, [](Parts& p) { p.config["norm_before_fc"] = false; }},
      {"'input_norm.weight' is there, but norm_before_fc is not true", kCorrupt, [](Parts& p) { p.config.erase("norm_before_fc"); }},
      {"'fc_norm.0.weight' is there, but fc_norm is not true", kCorrupt, [](Parts& p) { p.set_zeros("fc_norm.0.weight", {12}); }},
      {"the tensor fc_norm.0.weight [12] is missing, though", kMissing,
       [](Parts& p) {
         p.config["norm_before_fc"] = false;
         p.config["fc_norm"] = true;
         p.tensors.erase("input_norm.weight");
       }},
      {"'fc_norm.2.weight' is there, but the drafter has only 2 taps", kCorrupt,
       [](Parts& p) {
         p.config["norm_before_fc"] = false;
         p.config["fc_norm"] = true;
         p.tensors.erase("input_norm.weight");
         for (const char* name : {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"}) p.set_zeros(name, {12});
       }},
      {"layers.0.self_attn.k_norm.weight [8] is missing", kMissing, [](Parts& p) { p.set_zeros("layers.0.self_attn.q_norm.weight", {8}); }},
      {"fc.bias has the shape [17]", kCorrupt, [](Parts& p) { p.set_zeros("fc.bias", {17}); }},
      {"'layers.0.mlp.gate_proj.bias' is there, but config.json says that mlp_bias is false", kCorrupt,
       [](Parts& p) { p.set_zeros("layers.0.mlp.gate_proj.bias", {20}); }},
      {"'layers.1.hidden_norm.weight' is there, but the drafter has only 1 layers", kCorrupt,
       [](Parts& p) { p.set_zeros("layers.1.hidden_norm.weight", {16}); }},
      {"are the same tensor under two names", kCorrupt, [](Parts& p) { p.set_zeros("midlayer.hidden_norm.weight", {16}); }},
      {"'verifier_lm_head.weight' is a tensor that no part", kCorrupt,
       [](Parts& p) {
         p.set_zeros("verifier_lm_head.weight", {10, 12});
       }},
      {"fc.weight has the shape [16, 36], expected [16, 24]", kCorrupt,
       [](Parts& p) {
         p.set_zeros("fc.weight", {16, 36});
       }},
      {"norm.weight has the shape [1, 16], expected [16]", kCorrupt,
       [](Parts& p) {
         p.set_zeros("norm.weight", {1, 16});
       }},
      {"lm_head.weight has the shape [7, 16], expected [6, 16]", kCorrupt,
       [](Parts& p) {
         p.set_zeros("lm_head.weight", {7, 16});
       }},
      {"lm_head.weight has 12 rows, more than", kCorrupt,
       [](Parts& p) {
         p.config.erase("draft_vocab_size");
         p.set_zeros("lm_head.weight", {12, 16});
       }},
      {"lm_head.weight is missing, and the target's head [10, 12]", kMissing,
       [](Parts& p) {
         p.config.erase("draft_vocab_size");
         p.tensors.erase("lm_head.weight");
       }},
      {"fc.weight has the type I8", kUnsupported,
       [](Parts& p) {
         p.set_zeros("fc.weight", {16, 24}, DType::kI8);
       }},
  });
}

TEST(Speculators, RefusesAVocabularyMapThatCannotBe) {
  expect_refused({
      {"d2t is missing, but the draft vocabulary of 6", kMissing, [](Parts& p) { p.tensors.erase("d2t"); }},
      {"d2t has the type F32", kCorrupt, [](Parts& p) { p.set_zeros("d2t", {6}, DType::kF32); }},
      {"d2t has the shape [5], expected [6]", kCorrupt,
       [](Parts& p) {
         p.set_i64("d2t", {0, 1, 1, 2, 3});
       }},
      {"d2t maps the draft tokens 0 and 1 to the same target token 0", kCorrupt,
       [](Parts& p) {
         p.set_i64("d2t", {0, -1, 1, 2, 3, 4});
       }},
      {"d2t[5] is 5: draft token 5 plus this offset is outside", kCorrupt,
       [](Parts& p) {
         p.set_i64("d2t", {0, 1, 1, 2, 3, 5});
       }},
      {"d2t[0] is -1", kCorrupt,
       [](Parts& p) {
         p.set_i64("d2t", {-1, 1, 1, 2, 3, 4});
       }},
      {"d2t[1] is 9223372036854775807", kCorrupt,
       [](Parts& p) {
         p.set_i64("d2t", {0, INT64_MAX, 1, 2, 3, 4});
       }},
      {"d2t[1] is -9223372036854775808", kCorrupt,
       [](Parts& p) {
         p.set_i64("d2t", {0, INT64_MIN, 1, 2, 3, 4});
       }},
      {"the values look like target ids", kCorrupt,
       [](Parts& p) {
         p.set_i64("d2t", {0, 2, 3, 5, 7, 9});
       }},
      {"d2t is all zeros", kCorrupt,
       [](Parts& p) {
         p.set_i64("d2t", {0, 0, 0, 0, 0, 0});
         p.tensors.erase("t2d");
       }},
      {"t2d says that target token 1 is in the draft vocabulary", kCorrupt, [](Parts& p) { p.tensors["t2d"].data[1] = 1; }},
      {"t2d says that target token 9 is outside the draft vocabulary", kCorrupt, [](Parts& p) { p.tensors["t2d"].data[9] = 0; }},
      {"t2d[3] is 2", kCorrupt, [](Parts& p) { p.tensors["t2d"].data[3] = 2; }},
      {"t2d has the shape [9], expected [10]", kCorrupt, [](Parts& p) { p.set_zeros("t2d", {9}, DType::kBool); }},
      {"t2d has the type I64", kCorrupt, [](Parts& p) { p.set_zeros("t2d", {10}, DType::kI64); }},
  });
}

TEST(Speculators, AcceptsTheFirstIdsAsDraftVocabularyWhereT2dConfirmsIt) {
  Parts parts = tiny_parts();
  parts.set_i64("d2t", {0, 0, 0, 0, 0, 0});
  for (size_t t = 0; t < 10; ++t) parts.tensors["t2d"].data[t] = t < 6 ? 1 : 0;
  EXPECT_EQ(refusal(parts), "accepted");
}

TEST(Speculators, SaysWhereEachValueCameFrom) {
  Parts parts = tiny_parts();
  for (const char* key : {"norm_before_residual", "norm_output", "draft_vocab_size", "target_hidden_size"}) parts.config.erase(key);
  for (const char* key : {"rope_theta", "rope_parameters", "rms_norm_eps", "max_position_embeddings"}) parts.layer().erase(key);
  parts.layer()["head_dim"] = nullptr;
  parts.layer()["num_attention_heads"] = 2;  // so that hidden / heads is 8
  parts.layer().erase("num_key_value_heads");
  for (const char* name : {"q", "k", "v"}) parts.set_zeros("layers.0.self_attn." + std::string(name) + "_proj.weight", {16, 32});
  parts.set_zeros("layers.0.self_attn.o_proj.weight", {16, 16});
  parts.set_zeros("fc.weight", {16, 32});
  parts.set_zeros("input_norm.weight", {32});
  parts.config["transformer_layer_config"]["pad_token_id"] = 3;
  TempFolder dir;
  parts.write(dir / "d");
  auto loaded = open_drafter(dir / "d");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const DraftSpec& spec = loaded->spec;
  const auto expect = [&](const char* field, Source source, const char* why) {
    ASSERT_EQ(spec.provenance.count(field), 1u) << field;
    EXPECT_EQ(spec.provenance.at(field).source, source) << field;
    EXPECT_NE(spec.provenance.at(field).why.find(why), std::string::npos) << field << ": " << spec.provenance.at(field).why;
  };
  expect("norm_before_residual", Source::kDefaulted, "vLLM's reader takes true");
  expect("feedback", Source::kDefaulted, "norm_output");
  expect("rope_theta", Source::kDefaulted, "never inherits the target's");
  expect("rms_eps", Source::kDefaulted, "default");
  expect("max_positions", Source::kDefaulted, "default");
  expect("draft_vocab", Source::kInferred, "lm_head.weight");
  expect("head_dim", Source::kInferred, "hidden_size / num_attention_heads");
  expect("kv_heads", Source::kDefaulted, "as many as heads");
  expect("hidden", Source::kRead, "transformer_layer_config.hidden_size");
  expect("taps", Source::kRead, "boundaries");
  expect("target_hidden", Source::kDefaulted, "as wide as the drafter");
  expect("own_embedding", Source::kInferred, "embed_tokens.weight is in the checkpoint");
  expect("feature_norm", Source::kRead, "norm_before_fc");
  expect("d2t", Source::kRead, "offsets");
  EXPECT_FALSE(spec.norm_before_residual);
  EXPECT_EQ(spec.feedback, Feedback::kPreNorm);
  EXPECT_EQ(spec.rope_theta, 10000.0f);
  EXPECT_EQ(spec.rms_eps, 1e-6f);
  EXPECT_EQ(spec.max_positions, 2048);
  EXPECT_EQ(spec.draft_vocab, 6);
  EXPECT_EQ(spec.head_dim, 8);
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.target_hidden, 16);
}

TEST(Speculators, ReadsRopeFromEitherSchema) {
  Parts parts = tiny_parts();
  parts.layer().erase("rope_theta");
  parts.layer()["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  parts.layer()["rope_scaling"] = nullptr;
  parts.layer()["sliding_window"] = 512;
  parts.layer()["layer_types"] = {"full_attention"};  // so the window is without effect
  TempFolder dir;
  parts.write(dir / "d");
  auto loaded = open_drafter(dir / "d");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->spec.rope_theta, 5e5f);
  EXPECT_EQ(loaded->spec.provenance.at("rope_theta").why, "transformer_layer_config.rope_parameters.rope_theta");
}

TEST(Speculators, WithoutAHeadTheTargetsIsUsedWhereItFits) {
  auto loaded = open_drafter(draft_golden_path("target_head"));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_FALSE(loaded->spec.own_head);
  EXPECT_FALSE(loaded->spec.own_embedding);
  EXPECT_TRUE(loaded->spec.d2t.empty());
  EXPECT_EQ(loaded->tensors.count("lm_head"), 0u);
}

TEST(Speculators, BoundsTheConfigsSizeAndDepth) {
  TempFolder dir;
  tiny_parts().write(dir / "d");
  const auto with_config = [&](const std::string& text) {
    std::ofstream(dir / "d/config.json") << text;
    return open_drafter(dir / "d").status();
  };
  EXPECT_EQ(with_config(std::string((16u << 20) + 1, ' ')).code(), StatusCode::kResource);
  EXPECT_NE(with_config("{\"speculators_model_type\":\"eagle3\",\"x\":" + std::string(100'000, '[')).message().find("nests deeper"),
            std::string::npos);
  EXPECT_NE(with_config("{\"a\":1,\"a\":2}").message().find("twice"), std::string::npos);
  EXPECT_NE(with_config("[]").message().find("expected an object"), std::string::npos);
  EXPECT_EQ(with_config("{").code(), StatusCode::kCorrupt);
  EXPECT_EQ(with_config("").code(), StatusCode::kCorrupt);
}

TEST(Speculators, ReadsShards) {
  const Parts parts = tiny_parts();
  TempFolder dir;
  parts.write(dir / "d");
  std::vector<TensorView> first, second;
  Json map;
  for (const auto& [name, tensor] : parts.tensors) {
    auto& shard = first.size() <= second.size() ? first : second;
    shard.push_back({name, tensor.type, tensor.shape, tensor.data});
    map[name] = &shard == &first ? "model-1.safetensors" : "model-2.safetensors";
  }
  ASSERT_TRUE(write_safetensors(dir / "d/model-1.safetensors", first).ok());
  ASSERT_TRUE(write_safetensors(dir / "d/model-2.safetensors", second).ok());
  std::ofstream(dir / "d/model.safetensors.index.json") << Json{{"weight_map", map}}.dump();
  EXPECT_NE(open_drafter(dir / "d").status().message().find("both model.safetensors and"), std::string::npos);
  fs::remove(dir / "d/model.safetensors");
  auto loaded = open_drafter(dir / "d");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->tensors.size(), draft_tensors(loaded->spec).size());
  fs::remove(dir / "d/model.safetensors.index.json");
  EXPECT_NE(open_drafter(dir / "d").status().message().find("without a model.safetensors.index.json"), std::string::npos);
}

TEST(Speculators, WhatIsSavedReadsBackAsTheSameForwardAndValues) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (int variant = 0; variant < 4; ++variant) {
      DraftSpec spec = tiny_spec();
      if (variant == 1) spec.feature_norm = FeatureNorm::kPerTap, spec.feedback = Feedback::kPreNorm;
      if (variant == 2)
        spec.feature_norm = FeatureNorm::kNone, spec.norm_before_residual = false, spec.rms_eps = 1e-6f, spec.rope_theta = 1e5f;
      if (variant == 3) {
        spec.target_hidden = spec.hidden;
        spec.own_embedding = spec.own_head = false;
        spec.draft_vocab = spec.vocab;
        spec.d2t.clear();
      }
      const auto weights = random_weights(spec, 3);
      speculators::SaveOptions options;
      options.verifier = "SmolLM2-135M-Instruct";
      options.verifier_architectures = {"LlamaForCausalLM"};
      options.training_json = R"({"steps": 12})";
      TempFolder dir;
      const Status saved = speculators::save_checkpoint(dir / "new/d", spec, weights, type, options);
      ASSERT_TRUE(saved.ok()) << saved.message();
      auto loaded = open_drafter(dir / "new/d");
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      EXPECT_EQ(differing_fields(spec, loaded->spec), std::vector<std::string>());
      ASSERT_EQ(loaded->tensors.size(), weights.size());
      for (const auto& [name, values] : weights) {
        const TensorView& tensor = loaded->tensors.at(name);
        EXPECT_EQ(tensor.type, type);
        EXPECT_EQ(to_float(tensor).value(), values) << name;
      }
      const Json config = parts_of(dir / "new/d").config;
      EXPECT_EQ(config["speculators_config"]["verifier"]["name_or_path"], "SmolLM2-135M-Instruct");
      EXPECT_EQ(config["aerie_training"]["steps"], 12);
      EXPECT_EQ(parts_of(dir / "new/d").tensors.count("t2d"), spec.d2t.empty() ? 0u : 1u);
      EXPECT_EQ(std::distance(fs::directory_iterator(dir / "new"), fs::directory_iterator()), 1)
          << "something was left beside the checkpoint";
    }
  }
}

TEST(Speculators, SavingReplacesACheckpointAndKeepsOtherFiles) {
  TempFolder dir;
  const DraftSpec spec = tiny_spec();
  ASSERT_TRUE(speculators::save_checkpoint(dir / "d", spec, random_weights(spec, 1)).ok());
  std::ofstream(dir / "d/README.md") << "card";
  std::ofstream(dir / "d/training_state.safetensors") << "of the training that saves here";
  std::ofstream(dir / "d/model-00001-of-00001.safetensors") << "stale";
  fs::create_directories(dir / "d/figures");
  std::ofstream(dir / "d/figures/a.txt") << "x";
  const auto weights = random_weights(spec, 2);
  ASSERT_TRUE(speculators::save_checkpoint(dir / "d/", spec, weights).ok());
  auto loaded = open_drafter(dir / "d");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(to_float(loaded->tensors.at("fc")).value(), weights.at("fc"));
  EXPECT_TRUE(fs::exists(dir / "d/README.md"));
  EXPECT_TRUE(fs::exists(dir / "d/training_state.safetensors"));
  EXPECT_TRUE(fs::exists(dir / "d/figures/a.txt"));
  EXPECT_FALSE(fs::exists(dir / "d/model-00001-of-00001.safetensors"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

TEST(Speculators, ASaveThatIsRefusedLeavesWhatWasThere) {
  TempFolder dir;
  const DraftSpec spec = tiny_spec();
  const auto weights = random_weights(spec, 1);
  ASSERT_TRUE(speculators::save_checkpoint(dir / "d", spec, weights).ok());
  const auto refused = [&](const char* expected, const DraftSpec& s, std::map<std::string, std::vector<float>> w,
                           const speculators::SaveOptions& options = {}, DType type = DType::kBF16) {
    const Status status = speculators::save_checkpoint(dir / "d", s, w, type, options);
    EXPECT_FALSE(status.ok()) << expected;
    EXPECT_NE(status.message().find(expected), std::string::npos) << status.message();
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1) << expected;
    auto loaded = open_drafter(dir / "d");
    ASSERT_TRUE(loaded.ok());
    EXPECT_EQ(to_float(loaded->tensors.at("fc")).value(), weights.at("fc"));
  };
  auto damaged = weights;
  damaged.erase("layers.0.q");
  refused("the weight layers.0.q is missing", spec, damaged);
  damaged = weights;
  damaged["layers.0.q"].pop_back();
  refused("the weight layers.0.q has 1023 values, expected 1024", spec, damaged);
  damaged = weights;
  damaged["layers.0.q"][5] = NAN;
  refused("the weight layers.0.q holds nan", spec, damaged);
  damaged = weights;
  damaged["fc_bias"] = {1};
  refused("16 weights were given, but the spec calls for 15", spec, damaged);
  DraftSpec invalid = spec;
  invalid.d2t[0] = 99;
  refused("d2t maps draft token 0 to target token 99", invalid, weights);
  speculators::SaveOptions options;
  refused("written as BF16 or F32", spec, weights, options, DType::kF16);
  options.training_json = "[1]";
  refused("the training record is not a JSON object", spec, weights, options);
  options.training_json = "{";
  refused("not valid JSON", spec, weights, options);
  options = {};
  options.verifier = "\xff";
  refused("not valid UTF-8", spec, weights, options);
  std::ofstream(dir / "d/README.md") << "still a folder";
  const Status onto_file = speculators::save_checkpoint(dir / "d/README.md", spec, weights);
  EXPECT_NE(onto_file.message().find("is a file, expected a folder"), std::string::npos) << onto_file.message();
}

}  // namespace
}  // namespace aerie
