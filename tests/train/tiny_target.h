// A target small enough to train a drafter for in seconds, and traces as if it had written them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/file_io.h"
#include "formats/gguf_builder.h"
#include "formats/safetensors.h"
#include "formats/tensor.h"
#include "formats/traces.h"
#include "gtest/gtest.h"
#include "support/temp_folder.h"

namespace aerie::train {

inline constexpr int kTinyVocab = 64, kTinyHidden = 32, kTinyBlocks = 4;

/// A folder with the target's file; its end token is 2.
class TinyTarget {
 public:
  TinyTarget() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    embedding_.resize(kTinyVocab * kTinyHidden);
    for (float& value : embedding_) value = normal(random);
    for (size_t c = 0; c < kTinyHidden; ++c) norm_.push_back(0.6f + 0.2f * static_cast<float>(c % 5));  // ones would hide a norm too many
    GgufBuilder file;
    file.add_string("general.architecture", "llama").add_string("general.name", "tiny");
    const auto size = [&](const char* key, uint32_t value) { file.add<uint32_t>(std::string("llama.") + key, kGgufU32, value); };
    size("block_count", kTinyBlocks);
    size("embedding_length", kTinyHidden);
    size("feed_forward_length", 48);
    size("attention.head_count", 4);
    size("attention.head_count_kv", 2);
    size("context_length", 256);
    file.add<float>("llama.attention.layer_norm_rms_epsilon", kGgufF32, 1e-5f);
    file.add<uint32_t>("tokenizer.ggml.eos_token_id", kGgufU32, 2);
    file.add_tensor({"output_norm.weight", {kTinyHidden}, kGgmlF32, 0, bytes(norm_), {}});
    file.add_tensor({"token_embd.weight", {kTinyHidden, kTinyVocab}, kGgmlF32, 128, bytes(embedding_), {}});
    path_ = folder_.write("tiny.gguf", file.build());
  }

  const std::string& path() const { return path_; }
  const TempFolder& folder() const { return folder_; }
  const std::vector<float>& embedding() const { return embedding_; }
  /// The weights of the final norm.
  const std::vector<float>& norm() const { return norm_; }

  TraceManifest manifest() const {
    TraceManifest manifest;
    manifest.target = {"tiny", sha256_file(path_).value(), kTinyHidden, kTinyVocab, kTinyBlocks, 1e-5};
    manifest.taps = {1, 3};
    manifest.template_sha256 = std::string(64, '0');
    manifest.precision = "test";
    manifest.aerie_version = "0";
    return manifest;
  }

  /// A prompt and an answer of random tokens; taps are noise, the final state of a position is the next token's embedding, so
  /// that the head gives that token.
  Trace conversation(unsigned seed, int prompt, int answer) const {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    Trace trace;
    trace.slots = 3;
    trace.hidden = kTinyHidden;
    for (int i = 0; i < prompt + answer; ++i) {
      trace.tokens.push_back(i + 1 == prompt + answer ? 2 : static_cast<int32_t>(random() % kTinyVocab));
      trace.mask.push_back(i >= prompt ? 1 : 0);
    }
    for (size_t i = 0; i < trace.tokens.size(); ++i) {
      const size_t next = static_cast<size_t>(i + 1 < trace.tokens.size() ? trace.tokens[i + 1] : 0);
      for (int c = 0; c < 2 * kTinyHidden; ++c) trace.states.push_back(f32_to_bf16(normal(random)));
      for (size_t c = 0; c < kTinyHidden; ++c) trace.states.push_back(f32_to_bf16(embedding_[next * kTinyHidden + c]));
    }
    return trace;
  }

  /// A trace folder with these rows.
  std::string write_traces(const std::string& name, const std::vector<Trace>& traces) const {
    return write_traces(name, traces, manifest());
  }
  std::string write_traces(const std::string& name, const std::vector<Trace>& traces, const TraceManifest& manifest) const {
    auto writer = TraceWriter::open(folder_ / name, manifest);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    for (size_t row = 0; row < traces.size(); ++row) {
      const Status written = writer->write_row(static_cast<int>(row), traces[row]);
      EXPECT_TRUE(written.ok()) << written.message();
    }
    return folder_ / name;
  }

  /// The target's files as Hugging Face hosts them, in two shards of which one, without a tensor that a trainer needs, is not there.
  std::string write_folder(const std::string& name, nlohmann::json config = {}) const {
    nlohmann::json all = {{"model_type", "llama"},
                          {"hidden_size", kTinyHidden},
                          {"num_hidden_layers", kTinyBlocks},
                          {"intermediate_size", 48},
                          {"num_attention_heads", 4},
                          {"num_key_value_heads", 2},
                          {"vocab_size", kTinyVocab},
                          {"max_position_embeddings", 256},
                          {"rms_norm_eps", 1e-5},
                          {"tie_word_embeddings", true},
                          {"eos_token_id", 2}};
    if (config.is_object()) all.update(config);
    folder_.write(name + "/config.json", all.dump());
    const auto view = [](const char* tensor, std::vector<uint64_t> shape, const std::vector<float>& values) {
      return TensorView{tensor, DType::kF32, std::move(shape), {reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4}};
    };
    EXPECT_TRUE(write_safetensors(folder_ / (name + "/model-00002-of-00002.safetensors"),
                                  {view("language_model.model.embed_tokens.weight", {kTinyVocab, kTinyHidden}, embedding_),
                                   view("language_model.model.norm.weight", {kTinyHidden}, norm_)})
                    .ok());
    const nlohmann::json map = {{"language_model.model.embed_tokens.weight", "model-00002-of-00002.safetensors"},
                                {"language_model.model.norm.weight", "model-00002-of-00002.safetensors"},
                                {"language_model.model.layers.0.mlp.experts.0.down_proj.weight", "model-00001-of-00002.safetensors"}};
    folder_.write(name + "/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
    return folder_ / name;
  }

  /// `count` conversations of 10 to 30 tokens.
  std::vector<Trace> conversations(int count, unsigned seed = 1) const {
    std::vector<Trace> traces;
    for (int i = 0; i < count; ++i) {
      const unsigned own = seed * 1000 + static_cast<unsigned>(i);
      traces.push_back(conversation(own, 3 + static_cast<int>(own % 5), 8 + static_cast<int>(own % 13)));
    }
    return traces;
  }

 private:
  static std::string bytes(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

  TempFolder folder_;
  std::string path_;
  std::vector<float> embedding_, norm_;
};

}  // namespace aerie::train
