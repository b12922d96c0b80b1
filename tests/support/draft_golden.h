// The golden drafters of tests/eagle3/data (made by tools/goldens/make_eagle3_goldens.py), for every instantiation of the forward.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "eagle3/dialects/speculators.h"
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

inline DraftGolden load_draft_golden(const std::string& name) {
  DraftGolden out;
  auto checkpoint = speculators::load_checkpoint(draft_golden_path(name));
  auto file = SafetensorsFile::open(draft_golden_path(name) + "/case.safetensors");
  if (!checkpoint.ok() || !file.ok()) {
    ADD_FAILURE() << checkpoint.status().message() << file.status().message();
    return out;
  }
  out.checkpoint = std::move(*checkpoint);
  const auto floats = [&](const char* key) { return file->has(key) ? to_float(**file->find(key)).value() : std::vector<float>(); };
  const auto integers = [&](const char* key) {
    const TensorView& tensor = **file->find(key);
    std::vector<int64_t> values(tensor.element_count());
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
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

}  // namespace aerie
