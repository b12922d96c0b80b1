// Random drafters for the tests of this folder.
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "eagle3/drafter.h"
#include "gtest/gtest.h"
#include "support/draft_golden.h"
#include "support/temp_folder.h"

namespace aerie {

inline DraftSpec tiny_spec() {
  DraftSpec spec;
  spec.taps = {1, 3};
  spec.target_hidden = 12;
  spec.hidden = 16;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = 8;
  spec.rope_dim = 8;
  spec.intermediate = 20;
  spec.feature_norm = FeatureNorm::kConcat;
  spec.norm_before_residual = true;
  spec.feedback = Feedback::kPostNorm;
  spec.rope_theta = 10000.0f;
  spec.rms_eps = 1e-5f;
  spec.max_positions = 256;
  spec.own_embedding = true;
  spec.own_head = true;
  spec.vocab = 10;
  spec.draft_vocab = 6;
  spec.d2t = {0, 2, 3, 5, 7, 9};
  return spec;
}

inline std::map<std::string, std::vector<float>> random_weights(const DraftSpec& spec, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::map<std::string, std::vector<float>> out;
  for (const DraftTensor& tensor : draft_tensors(spec)) {
    size_t count = 1;
    for (const uint64_t dim : tensor.shape) count *= dim;
    std::vector<float>& values = out[tensor.name];
    values.resize(count);
    // Rounded to bf16, so that a checkpoint of either type holds the same values.
    for (float& value : values) {
      value = tensor.shape.size() == 1 ? 1.0f + 0.2f * normal(random) : normal(random) * 0.4f;
      value = bf16_to_f32(f32_to_bf16(value));
    }
  }
  return out;
}

/// A drafter in memory.
struct Made {
  DraftCheckpoint checkpoint;
  std::map<std::string, std::vector<float>> weights;

  explicit Made(const DraftSpec& spec, DType type = DType::kF32) : weights(random_weights(spec, 5)) {
    checkpoint.spec = spec;
    auto bytes = std::make_shared<std::vector<std::vector<uint8_t>>>();
    for (const DraftTensor& tensor : draft_tensors(spec)) {
      const std::vector<float>& values = weights.at(tensor.name);
      std::vector<uint8_t> data(values.size() * static_cast<size_t>(block_bytes(type)));
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t half = f32_to_bf16(values[i]);  // exact: they are rounded to bf16
        type == DType::kF32 ? std::memcpy(&data[i * 4], &values[i], 4) : std::memcpy(&data[i * 2], &half, 2);
      }
      bytes->push_back(std::move(data));
      checkpoint.tensors[tensor.name] = {tensor.name, type, tensor.shape, bytes->back()};
    }
    checkpoint.owner = bytes;
  }
};

/// The tables of a golden case's target. `golden` must outlive the result.
inline TargetTables golden_tables(const DraftGolden& golden) {
  const DraftSpec& spec = golden.checkpoint.spec;
  TargetTables out;
  out.hidden = spec.target_hidden;
  out.vocab = spec.vocab;
  out.blocks = 12;
  const size_t width = static_cast<size_t>(spec.hidden), vocab = static_cast<size_t>(spec.vocab);
  if (!golden.target_embedding.empty()) {
    out.embed = [&golden, width](int32_t token, float* to) {
      std::copy_n(golden.target_embedding.data() + static_cast<size_t>(token) * width, width, to);
    };
  }
  if (!golden.target_head.empty()) {
    out.head = [&golden, width, vocab](const float* x, int n, float* logits) {
      for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
        for (size_t t = 0; t < vocab; ++t) {
          float sum = 0;
          for (size_t c = 0; c < width; ++c) sum += golden.target_head[t * width + c] * x[r * width + c];
          logits[r * vocab + t] = sum;
        }
      }
    };
  }
  return out;
}

inline const kernels::Kernels& table(kernels::Isa isa) { return **kernels::kernels_for(isa); }

}  // namespace aerie
