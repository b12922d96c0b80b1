// What the trainer takes from the target: its embedding, final norm and output rows, from a GGUF file or the files of Hugging Face.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "doctor/training_check.h"
#include "eagle3/target_fit.h"
#include "models/target.h"

namespace aerie::train {

struct TargetTensors {
  TargetConfig config;
  std::string sha256;                // of the GGUF file; of a folder: over the three tensors below
  std::vector<int32_t> end_tokens;   // tokens that end an answer
  std::vector<float> embedding;      // [V, H]
  std::vector<float> final_norm;     // [H]
  std::vector<float> head;           // [V, H], empty where the embedding is also the output matrix
  std::optional<AnswerFrame> frame;  // what stands around its answers, where a template says so
  const std::vector<float>& output_matrix() const { return head.empty() ? embedding : head; }
};

/// `path` is a GGUF file, or a folder with config.json and safetensors files as Hugging Face hosts them. Of a folder only the shards that
/// hold the embedding, the final norm and the output rows are opened, so that of a target of a trillion parameters the others need not be
/// there. kUnsupported: a target whose states do not reach its head through a plain RMSNorm and matrix (Gemma's norm, logits that are
/// capped or scaled), and of which only its GGUF file can be read.
Expected<TargetTensors> read_target_tensors(const std::string& path);

/// Its sizes and its embedding, for what is checked against a target. The tensors must outlive `view` and the result.
TargetFacts facts_of(const TargetTensors& target, TensorView& view);

}  // namespace aerie::train
