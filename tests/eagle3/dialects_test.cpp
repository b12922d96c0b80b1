// The dialects but speculators': how each is recognised, what is inferred, and the errors and findings of broken files.
#include <cmath>
#include <functional>
#include <set>

#include "eagle3/checkpoint.h"
#include "eagle3/spec_fields.h"
#include "flat_parts.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

struct Opened {
  Expected<DraftCheckpoint> result = not_found("not opened");
  std::set<std::string> codes;  // of the findings
};

Opened read(const Parts& parts, const OpenOptions& options = {}) {
  TempFolder dir;
  parts.write(dir / "d");
  Opened out;
  out.result = read_drafter(dir / "d", options);
  if (out.result.ok()) {
    for (const Finding& finding : out.result->findings) out.codes.insert(finding.code);
  }
  return out;
}

/// The findings' codes, or the error.
std::string outcome(const Parts& parts, const OpenOptions& options = {}) {
  const Opened opened = read(parts, options);
  return opened.result.ok() ? fmt::format("{}", fmt::join(opened.codes, " ")) : opened.result.status().message();
}

void expect_spec(const Parts& parts, const DraftSpec& spec, const char* dialect, const OpenOptions& options = {}) {
  const Opened opened = read(parts, options);
  ASSERT_TRUE(opened.result.ok()) << opened.result.status().message();
  EXPECT_EQ(opened.result->spec.dialect, dialect) << opened.result->spec.provenance.at("dialect").why;
  EXPECT_EQ(differing_fields(spec, opened.result->spec), std::vector<std::string>());
  std::map<std::string, std::vector<uint64_t>> wanted, found;
  for (const DraftTensor& tensor : draft_tensors(spec)) wanted[tensor.name] = tensor.shape;
  for (const auto& [name, tensor] : opened.result->tensors) found[name] = tensor.shape;
  EXPECT_EQ(wanted, found);
  for (const SpecField& field : spec_fields(spec)) EXPECT_EQ(opened.result->spec.provenance.count(field.name), 1u) << field.name;
}

TEST(Dialects, SpecForge) {
  expect_spec(flat_parts(), flat_spec(), "specforge");
  EXPECT_EQ(outcome(flat_parts()), "");
  // Its other spellings.
  for (const char* name : {"Eagle3LlamaForCausalLM", "EAGLE3LlamaForCausalLM"}) {
    Parts parts = flat_parts();
    parts.config["architectures"] = {name};
    expect_spec(parts, flat_spec(), "specforge");
  }
  Parts parts = flat_parts(flat_spec(), "layers.0.");
  expect_spec(parts, flat_spec(), "specforge");
  parts.tensors.erase("t2d");
  EXPECT_EQ(outcome(parts), "t2d-missing");
}

TEST(Dialects, SpecForgeWithTheFlagsOfEagle31) {
  DraftSpec spec = flat_spec();
  spec.feature_norm = FeatureNorm::kPerTap;
  spec.feedback = Feedback::kPostNorm;
  Parts parts = flat_parts(spec);
  parts.config["fc_norm"] = true;
  parts.config["norm_output"] = true;
  expect_spec(parts, spec, "specforge");
  EXPECT_EQ(outcome(parts), "norm-output-meaning");
  // SGLang's older names of the same.
  for (int i = 0; i < 3; ++i) {
    const char* const names[] = {"aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight"};
    parts.tensors[names[i]] = parts.tensors[fmt::format("fc_norm.{}.weight", i)];
    parts.tensors.erase(fmt::format("fc_norm.{}.weight", i));
  }
  parts.config.erase("fc_norm");
  parts.config["use_aux_norm"] = true;
  expect_spec(parts, spec, "specforge");
}

TEST(Dialects, SafeAILab) {
  DraftSpec spec = flat_spec();
  Parts parts = flat_parts();
  parts.config["architectures"] = {"LlamaForCausalLM"};
  parts.config["num_hidden_layers"] = 40;  // the target's, as in the Vicuna drafter
  parts.config.erase("eagle_config");
  OpenOptions options;
  options.target_blocks = 12;
  expect_spec(parts, spec, "safeailab", options);
  EXPECT_EQ(outcome(parts, options), "layers-overstated taps-defaulted");
  // Without a target nobody knows its taps, and it says so.
  const Opened opened = read(parts);
  ASSERT_TRUE(opened.result.ok()) << opened.result.status().message();
  EXPECT_EQ(opened.codes.count("taps-unknown"), 1u);
  EXPECT_EQ(opened.result->spec.taps, (std::vector<int>{kUnknownTap, kUnknownTap, kUnknownTap}));
  EXPECT_EQ(spec_fields(opened.result->spec).front().text(), "?,?,?");
  TempFolder dir;
  parts.write(dir / "d");
  EXPECT_NE(open_drafter(dir / "d").status().message().find("name the target with -m, or give --taps"), std::string::npos);
  options = {};
  options.taps = {1, 2, 3};
  EXPECT_EQ(open_drafter(dir / "d", options).value().spec.taps, options.taps);
  parts.config.erase("architectures");
  EXPECT_EQ(read(parts).result->spec.dialect, "safeailab");
}

TEST(Dialects, ModelOpt) {
  DraftSpec spec = flat_spec();
  spec.feature_normed_twice = true;
  spec.d2t = {9, 0, 2, 3, 5, 7};  // unsorted
  Parts parts = flat_parts(spec, "layers.0.");
  parts.tensors.erase("t2d");
  parts.config["eagle_config"].update({{"use_last_layernorm", true},
                                       {"next_layer_regular", true},
                                       {"use_input_layernorm_in_first_layer", true},
                                       {"use_mtp_layernorm", false},
                                       {"parallel_draft_step", 1},
                                       {"parallel_draft_heads_num_layers", 1}});
  expect_spec(parts, spec, "modelopt");
  EXPECT_EQ(outcome(parts), "d2t-unsorted feature-normed-twice");
  parts.config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32.0}, {"original_max_position_embeddings", 2048}};
  EXPECT_EQ(outcome(parts), "d2t-unsorted feature-normed-twice yarn-added-at-export");
  // A map of the whole vocabulary needs no head of its own where the target's fits.
  spec = flat_spec();
  spec.feature_normed_twice = true;
  spec.draft_vocab = spec.vocab;
  spec.d2t.clear();
  spec.own_head = false;
  parts = flat_parts(spec, "layers.0.");
  parts.config["eagle_config"]["use_last_layernorm"] = true;
  expect_spec(parts, spec, "modelopt");
  EXPECT_EQ(outcome(parts), "feature-normed-twice target-head");
  parts.config["draft_vocab_size"] = 6;
  EXPECT_NE(outcome(parts).find("lm_head.weight is missing, and the target's head [10, 16] cannot stand in for one of [6, 16]"),
            std::string::npos);
  parts = flat_parts(flat_spec(), "layers.0.");
  parts.config["eagle_config"]["use_last_layernorm"] = false;
  EXPECT_NE(outcome(parts).find("'norm.weight' is a tensor that no part"), std::string::npos) << outcome(parts);
}

TEST(Dialects, NeMoAndAngelSlim) {
  Parts nemo = flat_parts(flat_spec(), "layers.0."), plain;
  plain.config = nemo.config;
  plain.config["architectures"] = {"LlamaEagle3DraftModel"};
  for (auto& [name, tensor] : nemo.tensors) plain.tensors[name == "lm_head.weight" ? name : "model." + name] = tensor;
  expect_spec(plain, flat_spec(), "nemo");
  Parts slim = flat_parts();
  slim.config.erase("eagle_config");
  slim.config["aux_hidden_states_layer_ids"] = {1, 5, 8};
  expect_spec(slim, flat_spec(), "angelslim");
}

TEST(Dialects, QwenShaped) {
  DraftSpec spec = flat_spec();
  spec.qk_norm = true;
  Parts parts = flat_parts(spec);
  parts.config["architectures"] = {"Eagle3Qwen3ForCausalLM"};
  parts.config["model_type"] = "qwen3";
  expect_spec(parts, spec, "specforge");
  EXPECT_EQ(outcome(parts), "");
  parts.config["model_type"] = "llama";
  EXPECT_EQ(outcome(parts), "qk-norm-unannounced");
}

TEST(Dialects, LatentAttention) {
  DraftSpec spec = latent_spec();
  spec.taps = {2, 30, 58};
  spec.rope_interleaved = true;
  spec.draft_vocab = spec.vocab;
  spec.d2t.clear();
  spec.rope_scaling = {.kind = RopeScalingKind::kYarn, .factor = 64, .original_max_positions = 4096, .magnitude = 1.0f};
  const double m = 0.1 * std::log(64.0) + 1.0;
  spec.attention_scale = static_cast<float>(m * m);  // 2.00474: Kimi-K2.5's softmax is scaled by 192^-0.5 times this
  Parts parts = flat_parts(spec);
  parts.config.update({{"architectures", {"Eagle3DeepseekV2ForCausalLM"}},
                       {"model_type", "kimi_k2"},
                       {"q_lora_rank", 12},
                       {"kv_lora_rank", 8},
                       {"qk_nope_head_dim", 8},
                       {"qk_rope_head_dim", 4},
                       {"v_head_dim", 6},
                       {"n_routed_experts", 384},
                       {"rope_scaling",
                        {{"type", "yarn"},
                         {"factor", 64.0},
                         {"original_max_position_embeddings", 4096},
                         {"beta_fast", 32.0},
                         {"beta_slow", 1.0},
                         {"mscale", 1.0},
                         {"mscale_all_dim", 1.0}}}});
  parts.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {2, 30, 58};
  expect_spec(parts, spec, "specforge");
  parts.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {1, 29, 57};
  expect_spec(parts, spec, "specforge");
  parts.config.erase("v_head_dim");
  EXPECT_NE(outcome(parts).find("v_head_dim is missing"), std::string::npos);
}

TEST(Dialects, SeveralLayersInThreeLayouts) {
  for (const LayerLayout layout : {LayerLayout::kHiddenNorm, LayerLayout::kInputNorm, LayerLayout::kConcat}) {
    DraftSpec spec = flat_spec();
    spec.layers = 3;
    spec.layout = layout;
    expect_spec(flat_parts(spec, "layers.0."), spec, "specforge");
  }
  DraftSpec spec = flat_spec();
  spec.layers = 2;
  Parts parts = flat_parts(spec, "layers.0.");
  parts.set_zeros("layers.1.hidden_norm.weight", {16});
  EXPECT_NE(outcome(parts).find("have both hidden_norm and input_layernorm"), std::string::npos);
  parts.config["num_hidden_layers"] = 1;
  EXPECT_NE(outcome(parts).find("is there, but the drafter has only 1 layers"), std::string::npos) << outcome(parts);
}

TEST(Dialects, OtherWidthsTapsAndBiases) {
  DraftSpec spec = flat_spec();
  spec.target_hidden = 12;
  spec.own_embedding = true;
  spec.taps = {0, 3, 7, 12};
  spec.fc_bias = spec.qkv_bias = spec.o_bias = spec.mlp_bias = true;
  Parts parts = flat_parts(spec);
  parts.config["target_hidden_size"] = 12;
  parts.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {-1, 2, 6, 11};
  expect_spec(parts, spec, "specforge");
  EXPECT_EQ(outcome(parts), "");
  parts.config["attention_bias"] = false;
  EXPECT_NE(outcome(parts).find("attention_bias is false"), std::string::npos);
}

TEST(Dialects, ATiedHeadIsTheDraftersOwnEmbedding) {
  DraftSpec spec = flat_spec();
  spec.own_embedding = true;
  spec.draft_vocab = spec.vocab;
  spec.d2t.clear();
  Parts parts = flat_parts(spec);
  parts.tensors.erase("lm_head.weight");
  EXPECT_EQ(outcome(parts), "target-head");
  parts.config["tie_word_embeddings"] = true;
  expect_spec(parts, spec, "specforge");
  EXPECT_EQ(outcome(parts), "head-tied");
  TempFolder dir;
  parts.write(dir / "d");
  const auto opened = open_drafter(dir / "d");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->tensors.at("lm_head").data.data(), opened->tensors.at("embed_tokens").data.data());
  // Of a compressed vocabulary the embedding cannot be the head, and a stored head is the head.
  Parts small = flat_parts();
  small.config["tie_word_embeddings"] = true;
  EXPECT_EQ(outcome(small), "head-said-to-be-tied");
  small.tensors.erase("lm_head.weight");
  EXPECT_NE(outcome(small).find("lm_head.weight is missing"), std::string::npos);
}

TEST(Dialects, WithoutTapsTheFeatureIsTheFinalState) {
  DraftSpec spec = flat_spec();
  spec.taps = {kFinalNormed};
  spec.has_fc = false;
  for (const bool by_flag : {true, false}) {
    Parts parts = flat_parts(spec);
    parts.config["eagle_config"] =
        by_flag ? Json{{"use_aux_hidden_state", false}} : Json{{"eagle_aux_hidden_state_layer_ids", Json::array()}};
    expect_spec(parts, spec, "specforge");
    EXPECT_EQ(spec_fields(spec).front().text(), "final");
    parts.set_zeros("fc.weight", {16, 48});
    EXPECT_NE(outcome(parts).find("'fc.weight' is there, but the drafter reads no taps"), std::string::npos) << outcome(parts);
  }
}

TEST(Dialects, IdsThatFitBothConventionsAreNeverGuessedSilently) {
  Parts parts = flat_parts();
  const auto with_ids = [&](std::vector<int> ids) { parts.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids; };
  with_ids({24, 30, 36});
  EXPECT_EQ(outcome(parts), "ambiguous-layer-ids");
  TempFolder dir;
  parts.write(dir / "d");
  EXPECT_NE(open_drafter(dir / "d").status().message().find("boundaries 24,30,36, or block outputs, which are boundaries 25,31,37"),
            std::string::npos);
  OpenOptions options;
  options.convention = LayerIdConvention::kBoundary;
  auto opened = open_drafter(dir / "d", options);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->spec.taps, (std::vector<int>{24, 30, 36}));
  EXPECT_NE(opened->spec.provenance["taps"].why.find("--layer-id-convention boundary"), std::string::npos);
  options = {};
  options.taps = {0, 1, 2};
  opened = open_drafter(dir / "d", options);
  ASSERT_TRUE(opened.ok());
  EXPECT_NE(opened->spec.provenance["taps"].why.find("--taps, instead of eagle_config.eagle_aux_hidden_state_layer_ids [24,30,36]"),
            std::string::npos);
  options = {};
  options.target_blocks = 36;
  EXPECT_EQ(outcome(parts, options), "layer-ids-inferred");
  EXPECT_EQ(read(parts, options).result->spec.taps, (std::vector<int>{24, 30, 36}));
  parts.config["layer_id_convention"] = "block-output";
  EXPECT_EQ(read(parts).result->spec.taps, (std::vector<int>{25, 31, 37}));
  parts.config["layer_id_convention"] = "whatever";
  EXPECT_NE(outcome(parts).find("expected boundary or block-output"), std::string::npos);
  parts.config.erase("layer_id_convention");
  with_ids({2, 30, 58});  // Kimi-K2's by a maker that counts boundaries
  EXPECT_EQ(outcome(parts), "layer-ids-inferred");
  EXPECT_EQ(read(parts).result->spec.taps, (std::vector<int>{2, 30, 58}));
  with_ids({1, 8, 20});
  EXPECT_EQ(outcome(parts), "layer-ids-inferred");
  EXPECT_EQ(read(parts).result->spec.taps, (std::vector<int>{2, 9, 21}));
  parts.config["eagle_aux_hidden_state_layer_ids"] = {2, 9, 21};
  EXPECT_NE(outcome(parts).find("engines read different ones"), std::string::npos);
}

struct Fault {
  const char* expected;
  std::function<void(Parts&)> damage;
};

TEST(Dialects, RefuseBrokenFilesInOneClearSentence) {
  const Fault faults[] = {
      {"fc.weight has the shape [16, 64], expected [16, 48] by the config: it reads 4 taps of width 16, but there are 3",
       [](Parts& p) {
         p.set_zeros("fc.weight", {16, 64});
       }},
      {"midlayer.hidden_norm.weight [16] is missing", [](Parts& p) { p.tensors.erase("midlayer.hidden_norm.weight"); }},
      {"'fc_norm.0.weight' is there, but fc_norm is not true", [](Parts& p) { p.set_zeros("fc_norm.0.weight", {16}); }},
      {"'input_norm.weight' is there, but norm_before_fc is not true", [](Parts& p) { p.set_zeros("input_norm.weight", {48}); }},
      {"fc_norm.0.weight [16] is missing, though the config says", [](Parts& p) { p.config["fc_norm"] = true; }},
      {"input_norm.weight [48] is missing, though the config says", [](Parts& p) { p.config["eagle_config"]["norm_before_fc"] = true; }},
      {"norm_before_fc is true but eagle_config.norm_before_fc is false",
       [](Parts& p) {
         p.config["norm_before_fc"] = true;
         p.config["eagle_config"]["norm_before_fc"] = false;
       }},
      {"lm_head.weight is missing, and the target's head", [](Parts& p) { p.tensors.erase("lm_head.weight"); }},
      {"own_embedding is false, but the target's table of width 12",
       [](Parts& p) {
         p.config["target_hidden_size"] = 12;
         p.set_zeros("fc.weight", {16, 36});
       }},
      {"d2t is missing, but the draft vocabulary of 6", [](Parts& p) { p.tensors.erase("d2t"); }},
      {"d2t[5] is 9: draft token 5 plus this offset is outside the target's vocabulary of 10; the values look like target ids",
       [](Parts& p) {
         p.set_i64("d2t", {0, 2, 3, 4, 5, 9});
       }},
      {"with d2t read as target ids the two agree",
       [](Parts& p) {
         p.config["vocab_size"] = 20;
         std::vector<uint8_t> known(20, 0);
         for (const int id : {0, 1, 2, 3, 4, 6}) known[static_cast<size_t>(id)] = 1;
         p.set_i64("d2t", {0, 1, 2, 3, 4, 6});
         p.tensors["t2d"] = {DType::kBool, {20}, known};
       }},
      {"d2t is all zeros, so that the 6 draft tokens would be the first of the target's 10",
       [](Parts& p) {
         p.set_i64("d2t", {0, 0, 0, 0, 0, 0});
         p.tensors.erase("t2d");
       }},
      {"d2t maps the draft tokens 0 and 1 to the same target token 0",
       [](Parts& p) {
         p.set_i64("d2t", {0, -1, 1, 2, 3, 4});
       }},
      {"t2d says that target token", [](Parts& p) { std::swap(p.tensors["t2d"].data[0], p.tensors["t2d"].data[1]); }},
      {"'midlayer.self_attn.rope.weight' is a tensor that no part", [](Parts& p) { p.set_zeros("midlayer.self_attn.rope.weight", {1}); }},
      {"the key 'norm_everything' is not known", [](Parts& p) { p.config["norm_everything"] = true; }},
      {"the key 'eagle_config.surprise' is not known", [](Parts& p) { p.config["eagle_config"]["surprise"] = 1; }},
      {"num_aux_hidden_states is 4, but 3 taps", [](Parts& p) { p.config["num_aux_hidden_states"] = 4; }},
  };
  for (const Fault& fault : faults) {
    Parts parts = flat_parts();
    fault.damage(parts);
    const std::string found = outcome(parts);
    EXPECT_NE(found.find(fault.expected), std::string::npos) << "expected: " << fault.expected << "\nfound: " << found;
  }
}

TEST(Dialects, OtherFamiliesAreNamed) {
  const Fault faults[] = {
      {"a P-EAGLE drafter (PEagleDraftModel)", [](Parts& p) { p.config["architectures"] = {"PEagleDraftModel"}; }},
      {"a P-EAGLE drafter (it has the tensor 'mask_hidden')",
       [](Parts& p) {
         p.set_zeros("mask_hidden", {1, 48});
       }},
      {"a P-EAGLE drafter (speculators_model_type is 'peagle')", [](Parts& p) { p.config["speculators_model_type"] = "peagle"; }},
      {"a DFlash drafter (it has dflash_config)", [](Parts& p) { p.config["dflash_config"] = Json::object(); }},
      {"a DSpark drafter (it has dspark_config)", [](Parts& p) { p.config["dspark_config"] = Json::object(); }},
      {"an EAGLE-4 drafter", [](Parts& p) { p.config["architectures"] = {"LlamaForCausalLMEagle4"}; }},
      {"a set of Medusa heads", [](Parts& p) { p.config["medusa_num_heads"] = 4; }},
      {"an EAGLE-1 or EAGLE-2 drafter (EAGLEModel)", [](Parts& p) { p.config["architectures"] = {"EAGLEModel"}; }},
      {"an EAGLE-1 or EAGLE-2 drafter ('fc.weight' is [16, 32] and there is no hidden_norm)",
       [](Parts& p) {
         p.tensors.clear();
         p.set_zeros("fc.weight", {16, 32});
         p.set_zeros("layers.0.self_attn.q_proj.weight", {32, 16});
       }},
      {"with Medusa heads",
       [](Parts& p) {
         p.set_zeros("parallel_draft_heads.0.medusa_layers.0.linear.weight", {16, 16});
       }},
      {"joins embedding and feature by eh_proj",
       [](Parts& p) {
         p.set_zeros("midlayer.eh_proj.weight", {16, 32});
       }},
      {"quantised (quantization_config: 'fp8')",
       [](Parts& p) {
         p.config["quantization_config"] = {{"quant_method", "fp8"}};
       }},
      {"the architecture 'GPT2LMHeadModel'",
       [](Parts& p) {
         p.config["architectures"] = {"GPT2LMHeadModel"};
         p.tensors.clear();
         p.set_zeros("wte.weight", {16, 16});
       }},
      {"the drafter's dialect is not known",
       [](Parts& p) {
         p.config = {{"hidden_size", 16}};
         p.tensors.clear();
         p.set_zeros("x", {1});
       }},
  };
  for (const Fault& fault : faults) {
    Parts parts = flat_parts();
    fault.damage(parts);
    const std::string found = outcome(parts);
    EXPECT_NE(found.find(fault.expected), std::string::npos) << "expected: " << fault.expected << "\nfound: " << found;
  }
}

TEST(Dialects, NothingButADrafterOpens) {
  TempFolder dir;
  EXPECT_NE(open_drafter(dir / "nothing").status().message().find("there is no drafter here"), std::string::npos);
  std::ofstream(dir / "x.gguf") << "GGUF";
  EXPECT_FALSE(open_drafter(dir / "x.gguf").ok());
  std::ofstream(dir / "x.bin") << "x";
  EXPECT_NE(open_drafter(dir / "x.bin").status().message().find("this is another file"), std::string::npos);
  std::filesystem::create_directories(dir / "empty");
  EXPECT_NE(open_drafter(dir / "empty").status().message().find("no config.json"), std::string::npos);
}

TEST(Dialects, RopeScalingOfBothSchemas) {
  const auto scaling = [](Json rope) {
    Parts parts = flat_parts();
    parts.config.update(rope);
    auto opened = read(parts);
    EXPECT_TRUE(opened.result.ok()) << opened.result.status().message();
    return opened.result.ok() ? opened.result->spec.rope_scaling : RopeScaling();
  };
  const RopeScaling llama3 = {
      .kind = RopeScalingKind::kLlama3, .factor = 8, .original_max_positions = 8192, .low_freq_factor = 1, .high_freq_factor = 4};
  const Json stated = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"original_max_position_embeddings", 8192},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0}};
  EXPECT_EQ(scaling({{"rope_scaling", stated}}), llama3);
  EXPECT_EQ(scaling({{"rope_parameters", stated}}), llama3);
  EXPECT_EQ(scaling({{"rope_scaling", stated}, {"rope_parameters", stated}}), llama3);
  EXPECT_EQ(scaling({{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}}),
            (RopeScaling{.kind = RopeScalingKind::kLinear, .factor = 4}));
  const auto yarn = [&](Json more) {
    Json object = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
    object.update(more);
    return scaling({{"rope_scaling", object}}).magnitude;
  };
  const double usual = 0.1 * std::log(4.0) + 1.0;
  EXPECT_FLOAT_EQ(yarn(Json::object()), static_cast<float>(usual));
  EXPECT_FLOAT_EQ(yarn({{"attention_factor", 1.25}}), 1.25f);
  EXPECT_FLOAT_EQ(yarn({{"mscale", 2.0}, {"mscale_all_dim", 1.0}}), static_cast<float>((0.2 * std::log(4.0) + 1.0) / usual));
  EXPECT_FLOAT_EQ(yarn({{"mscale", 2.0}}), static_cast<float>(usual));  // transformers heeds it only with mscale_all_dim
}

TEST(Dialects, ASlidingWindowIsRead) {
  Parts parts = flat_parts();
  parts.config["layer_types"] = {"sliding_attention"};
  parts.config["sliding_window"] = 2048;
  const Opened opened = read(parts);
  ASSERT_TRUE(opened.result.ok()) << opened.result.status().message();
  EXPECT_EQ(opened.result->spec.sliding_window, 2048);
  EXPECT_EQ(opened.codes.count("sliding-window"), 1u);
}

}  // namespace
}  // namespace aerie
