#include <cstring>

#include "eagle3/dialects/folder_writer.h"
#include "eagle3/dialects/layer_config_write.h"
#include "eagle3/dialects/speculators.h"
#include "formats/json_text.h"

namespace aerie::speculators {
namespace {

using Json = nlohmann::ordered_json;

// The release of the library that first knew all the keys that are written here.
constexpr const char* kLayoutVersion = "0.5.0";

Expected<Json> make_config(const DraftSpec& spec, const SaveOptions& options) {
  Json config;
  config["architectures"] = {"Eagle3DraftModel"};
  config["speculators_model_type"] = "eagle3";
  config["speculators_version"] = kLayoutVersion;
  config["draft_vocab_size"] = spec.draft_vocab;
  config["norm_before_residual"] = spec.norm_before_residual;
  config["norm_before_fc"] = spec.feature_norm == FeatureNorm::kConcat;
  config["fc_norm"] = spec.feature_norm == FeatureNorm::kPerTap;
  config["norm_output"] = spec.feedback == Feedback::kPostNorm;
  config["target_hidden_size"] = spec.target_hidden;
  config["eagle_aux_hidden_state_layer_ids"] = spec.taps;
  config["tie_word_embeddings"] = false;
  config["transformer_layer_config"] = layer_config(spec);
  config["speculators_config"] = {
      {"algorithm", "eagle3"},
      {"default_proposal_method", "greedy"},
      {"proposal_methods", Json::array({{{"proposal_type", "greedy"},
                                         {"speculative_tokens", options.speculative_tokens},
                                         {"verifier_accept_k", 1},
                                         {"accept_tolerance", 0.0}}})},
      {"verifier", {{"name_or_path", options.verifier}, {"architectures", options.verifier_architectures}}},
  };
  if (!options.training_json.empty()) {
    AERIE_ASSIGN(const nlohmann::json training, parse_json(options.training_json));
    if (!training.is_object()) return invalid_argument("the training record is not a JSON object");
    config["aerie_training"] = training;
  }
  return config;
}

std::vector<uint8_t> encode(const std::vector<float>& values, DType type) {
  std::vector<uint8_t> out(values.size() * static_cast<size_t>(block_bytes(type)));
  if (type == DType::kF32) {
    std::memcpy(out.data(), values.data(), out.size());
    return out;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t rounded = f32_to_bf16(values[i]);
    std::memcpy(out.data() + 2 * i, &rounded, 2);
  }
  return out;
}

}  // namespace

Status save_checkpoint(const std::string& folder, const DraftSpec& spec, const std::map<std::string, TensorView>& tensors,
                       const SaveOptions& options) {
  AERIE_TRY(spec.validate().with_context(folder));
  auto config = make_config(spec, options);
  if (!config.ok()) return config.status().with_context(folder);
  return write_draft_folder(folder, {.config = std::move(*config)}, spec, tensors);
}

Status save_checkpoint(const std::string& folder, const DraftSpec& spec, const std::map<std::string, std::vector<float>>& weights,
                       DType type, const SaveOptions& options) {
  if (type != DType::kBF16 && type != DType::kF32) {
    return invalid_argument("{}: weights are written as BF16 or F32, not as {}", folder, dtype_name(type));
  }
  AERIE_TRY(spec.validate().with_context(folder));
  std::map<std::string, std::vector<uint64_t>> shapes;
  for (const DraftTensor& tensor : draft_tensors(spec)) shapes[tensor.name] = tensor.shape;
  std::vector<std::vector<uint8_t>> bytes;
  bytes.reserve(weights.size());  // the views point into it
  std::map<std::string, TensorView> views;
  for (const auto& [name, values] : weights) {
    std::vector<uint64_t> shape = shapes[name];
    uint64_t count = 1;
    for (const uint64_t dim : shape) count *= dim;
    if (count != values.size()) shape = {values.size()};  // for the writer to refuse
    bytes.push_back(encode(values, type));
    views[name] = {name, type, std::move(shape), bytes.back()};
  }
  return save_checkpoint(folder, spec, views, options);
}

}  // namespace aerie::speculators
