// The golden drafters of tests/eagle3/data and dialect_data (made by tools/goldens/make_eagle3_goldens.py and make_dialect_goldens.py), for
// every instantiation of the forward.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file_io.h"
#include "eagle3/checkpoint.h"
#include "formats/json_text.h"
#include "formats/safetensors.h"
#include "gtest/gtest.h"

namespace aerie {

inline constexpr int kGoldenSteps = 3;

/// One case: a drafter, its inputs, and what the numpy reference computes in three steps.
struct DraftGolden {
  DraftCheckpoint checkpoint;
  std::vector<int32_t> tokens;                      // [T]
  std::vector<uint16_t> features;                   // bf16 [T, k*Ht]
  std::vector<int> rows;                            // [R] the rows whose results are known
  std::vector<float> target_embedding;              // [V, H], empty where the drafter has its own
  std::vector<float> target_head;                   // [V, H], empty where the drafter has its own
  std::vector<float> head_input, feedback, logits;  // [3, R, H], [3, R, H], [3, R, Vd]
  std::vector<int32_t> predictions;                 // [3, R] target ids
};

inline std::vector<std::string> draft_golden_names() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(AERIE_SOURCE_DIR "/tests/eagle3/data")) {
    if (entry.is_directory()) out.push_back(entry.path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

inline std::string draft_golden_path(const std::string& name) { return AERIE_SOURCE_DIR "/tests/eagle3/data/" + name; }

/// A DraftSpec whose fields a golden's spec.json gives by name; the others keep their defaults.
inline DraftSpec golden_spec(const nlohmann::json& json) {
  DraftSpec out;
  size_t known = 0;
  const auto set = [&](const nlohmann::json& from, const char* name, auto& field) {
    if (!from.contains(name)) return;
    field = from.at(name).get<std::remove_reference_t<decltype(field)>>();
    ++known;
  };
  const auto choose = [&](const nlohmann::json& from, const char* name, auto& field, std::initializer_list<const char*> values) {
    if (!from.contains(name)) return;
    const auto found = std::find(values.begin(), values.end(), from.at(name).get<std::string>());
    EXPECT_NE(found, values.end()) << name;
    field = static_cast<std::remove_reference_t<decltype(field)>>(found - values.begin());
    ++known;
  };
  set(json, "taps", out.taps);
  set(json, "target_hidden", out.target_hidden);
  set(json, "hidden", out.hidden);
  set(json, "layers", out.layers);
  choose(json, "layout", out.layout, {"hidden_norm", "input_norm", "concat"});
  choose(json, "attention", out.attention, {"gqa", "mla"});
  set(json, "heads", out.heads);
  set(json, "kv_heads", out.kv_heads);
  set(json, "head_dim", out.head_dim);
  set(json, "q_rank", out.q_rank);
  set(json, "kv_rank", out.kv_rank);
  set(json, "nope_dim", out.nope_dim);
  set(json, "v_dim", out.v_dim);
  set(json, "latent_eps", out.latent_eps);
  set(json, "intermediate", out.intermediate);
  set(json, "has_fc", out.has_fc);
  set(json, "fc_bias", out.fc_bias);
  set(json, "qkv_bias", out.qkv_bias);
  set(json, "o_bias", out.o_bias);
  set(json, "mlp_bias", out.mlp_bias);
  set(json, "qk_norm", out.qk_norm);
  choose(json, "feature_norm", out.feature_norm, {"none", "concat", "per_tap"});
  set(json, "norm_before_residual", out.norm_before_residual);
  set(json, "feature_normed_twice", out.feature_normed_twice);
  choose(json, "feedback", out.feedback, {"pre_norm", "post_norm"});
  set(json, "head_norm", out.head_norm);
  set(json, "logit_scale", out.logit_scale);
  set(json, "rope_theta", out.rope_theta);
  set(json, "rope_dim", out.rope_dim);
  set(json, "rope_interleaved", out.rope_interleaved);
  set(json, "attention_scale", out.attention_scale);
  set(json, "sliding_window", out.sliding_window);
  set(json, "rms_eps", out.rms_eps);
  set(json, "max_positions", out.max_positions);
  set(json, "own_embedding", out.own_embedding);
  set(json, "own_head", out.own_head);
  set(json, "vocab", out.vocab);
  set(json, "draft_vocab", out.draft_vocab);
  set(json, "d2t", out.d2t);
  if (json.contains("rope_scaling")) {
    const nlohmann::json& scaling = json.at("rope_scaling");
    const size_t before = ++known;
    choose(scaling, "kind", out.rope_scaling.kind, {"none", "linear", "llama3", "yarn"});
    set(scaling, "factor", out.rope_scaling.factor);
    set(scaling, "original_max_positions", out.rope_scaling.original_max_positions);
    set(scaling, "low_freq_factor", out.rope_scaling.low_freq_factor);
    set(scaling, "high_freq_factor", out.rope_scaling.high_freq_factor);
    set(scaling, "beta_fast", out.rope_scaling.beta_fast);
    set(scaling, "beta_slow", out.rope_scaling.beta_slow);
    set(scaling, "truncate", out.rope_scaling.truncate);
    set(scaling, "magnitude", out.rope_scaling.magnitude);
    EXPECT_EQ(known - before, scaling.size());
    known = before;
  }
  EXPECT_EQ(known, json.size()) << "a field of spec.json has no place in DraftSpec";
  return out;
}

/// The canonical name of a tensor of the speculators dialect; canonical names stay.
inline std::string golden_tensor_name(std::string name) {
  const std::pair<std::string, std::string> changes[] = {
      {".weight", ""},           {".bias", "_bias"}, {"self_attn.q_proj", "q"}, {"self_attn.k_proj", "k"}, {"self_attn.v_proj", "v"},
      {"self_attn.o_proj", "o"}, {"self_attn.", ""}, {"mlp.gate_proj", "gate"}, {"mlp.up_proj", "up"},     {"mlp.down_proj", "down"}};
  for (const auto& [from, to] : changes) {
    if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  }
  return name;
}

/// A folder with spec.json and its tensors: a drafter without any dialect.
inline Expected<DraftCheckpoint> load_spec_golden(const std::string& folder) {
  AERIE_ASSIGN(const std::string text, read_file(folder + "/spec.json", 1 << 20));
  AERIE_ASSIGN(const nlohmann::json json, parse_json(text));
  DraftCheckpoint out;
  out.spec = golden_spec(json);
  out.spec.path = folder;
  AERIE_ASSIGN(SafetensorsFile file, SafetensorsFile::open(folder + "/model.safetensors"));
  for (const TensorView& tensor : file.tensors())
    out.tensors[golden_tensor_name(tensor.name)] = tensor;  // the views point into the mapping, which moves along
  out.owner = std::make_shared<const SafetensorsFile>(std::move(file));
  return out;
}

/// The inputs and expected values in `folder`, of this drafter.
inline DraftGolden load_golden_case(const std::string& folder, Expected<DraftCheckpoint> checkpoint) {
  DraftGolden out;
  auto file = SafetensorsFile::open(folder + "/case.safetensors");
  if (!checkpoint.ok() || !file.ok()) {
    ADD_FAILURE() << checkpoint.status().message() << file.status().message();
    return out;
  }
  out.checkpoint = std::move(*checkpoint);
  const auto floats = [&](const char* key) { return file->has(key) ? to_float(**file->find(key)).value() : std::vector<float>(); };
  const auto integers = [&](const char* key) {
    const std::vector<int64_t> values = to_integers(**file->find(key)).value();
    return std::vector<int32_t>(values.begin(), values.end());
  };
  out.tokens = integers("tokens");
  out.rows = integers("rows");
  out.predictions = integers("predictions");
  const TensorView& features = **file->find("features");
  out.features.resize(features.element_count());
  std::memcpy(out.features.data(), features.data.data(), features.data.size());
  out.target_embedding = floats("target_embedding");
  out.target_head = floats("target_head");
  out.head_input = floats("head_input");
  out.feedback = floats("feedback");
  out.logits = floats("logits");
  return out;
}

inline DraftGolden load_draft_golden(const std::string& name) {
  const std::string folder = draft_golden_path(name);
  return load_golden_case(folder, std::filesystem::exists(folder + "/spec.json") ? load_spec_golden(folder) : read_drafter(folder));
}

}  // namespace aerie
