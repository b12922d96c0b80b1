#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/file_io.h"
#include "eagle3/dialects/speculators.h"
#include "eagle3/dialects/named_tensors.h"
#include "eagle3/spec_fields.h"
#include "formats/json_text.h"
#include "formats/safetensors.h"

namespace aerie::speculators {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The release of the library that first knew all the keys that are written here.
constexpr const char* kLayoutVersion = "0.5.0";

/// The shortest decimal that reads back as the same float32 (1e-05, not 9.999999747378752e-06).
double shortest(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

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
  config["torch_dtype"] = options.type == DType::kBF16 ? "bfloat16" : "float32";
  config["transformer_layer_config"] = {
      {"model_type", "llama"},
      {"hidden_size", spec.hidden},
      {"intermediate_size", spec.intermediate},
      {"num_hidden_layers", 1},
      {"num_attention_heads", spec.heads},
      {"num_key_value_heads", spec.kv_heads},
      {"head_dim", spec.head_dim},
      {"hidden_act", "silu"},
      {"rms_norm_eps", shortest(spec.rms_eps)},
      // Both, since transformers 4 reads the first and transformers 5 the second.
      {"rope_theta", shortest(spec.rope_theta)},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", shortest(spec.rope_theta)}}},
      {"max_position_embeddings", spec.max_positions},
      {"vocab_size", spec.vocab},
      {"attention_bias", false},
      {"mlp_bias", false},
  };
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

/// The bytes of each tensor of the file, owned until they are written.
struct Contents {
  std::vector<TensorView> views;
  std::vector<std::vector<uint8_t>> bytes;

  void add(const std::string& name, DType type, std::vector<uint64_t> shape, std::vector<uint8_t> data) {
    bytes.push_back(std::move(data));
    views.push_back({name, type, std::move(shape), bytes.back()});
  }
};

template <class T>
std::vector<uint8_t> to_bytes(const std::vector<T>& values) {
  std::vector<uint8_t> out(values.size() * sizeof(T));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

Expected<Contents> make_contents(const DraftSpec& spec, const std::map<std::string, std::vector<float>>& weights, DType type) {
  Contents out;
  const std::vector<DraftTensor> wanted = draft_tensors(spec);
  out.bytes.reserve(wanted.size() + 2);
  for (const DraftTensor& tensor : wanted) {
    const auto it = weights.find(tensor.name);
    if (it == weights.end()) return invalid_argument("the weight {} is missing, though the spec calls for it", tensor.name);
    uint64_t count = 1;
    for (const uint64_t dim : tensor.shape) count *= dim;
    if (it->second.size() != count) {
      return invalid_argument("the weight {} has {} values, expected {} for [{}]", tensor.name, it->second.size(), count,
                              fmt::join(tensor.shape, ", "));
    }
    for (const float value : it->second) {
      if (!std::isfinite(value)) return invalid_argument("the weight {} holds {}: such a drafter is not written", tensor.name, value);
    }
    if (type == DType::kF32) {
      out.add(checkpoint_name(tensor.name), type, tensor.shape, to_bytes(it->second));
    } else {
      std::vector<uint16_t> rounded(it->second.size());
      for (size_t i = 0; i < rounded.size(); ++i) rounded[i] = f32_to_bf16(it->second[i]);
      out.add(checkpoint_name(tensor.name), type, tensor.shape, to_bytes(rounded));
    }
  }
  if (weights.size() != wanted.size()) {
    return invalid_argument("{} weights were given, but the spec calls for {}", weights.size(), wanted.size());
  }
  if (!spec.d2t.empty()) {
    std::vector<int64_t> offsets(spec.d2t.size());
    std::vector<uint8_t> known(static_cast<size_t>(spec.vocab), 0);
    for (size_t d = 0; d < offsets.size(); ++d) {
      offsets[d] = spec.d2t[d] - static_cast<int64_t>(d);
      known[static_cast<size_t>(spec.d2t[d])] = 1;
    }
    out.add("d2t", DType::kI64, {offsets.size()}, to_bytes(offsets));
    out.add("t2d", DType::kBool, {static_cast<uint64_t>(spec.vocab)}, std::move(known));
  }
  return out;
}

/// What was written must read back as the same forward and the same bytes.
Status verify(const std::string& folder, const DraftSpec& spec, const Contents& contents) {
  AERIE_ASSIGN(const RawCheckpoint raw, RawCheckpoint::open(folder));
  AERIE_ASSIGN(const DraftCheckpoint read, load_checkpoint(raw, {}));
  if (const auto differences = differing_fields(spec, read.spec); !differences.empty()) {
    return internal_error("what was written reads back differently: {}", fmt::join(differences, "; "));
  }
  for (const TensorView& written : contents.views) {
    const TensorView* found = raw.find(written.name);
    const bool same = found != nullptr && found->type == written.type && found->shape == written.shape && found->data.size() == written.data.size() &&
                      std::memcmp(found->data.data(), written.data.data(), written.data.size()) == 0;
    if (!same) return io_error("{} reads back differently from what was written: the disk may be full or failing", written.name);
  }
  return {};
}

bool is_checkpoint_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "config.json" || path.extension() == ".safetensors" || name == "model.safetensors.index.json";
}

/// Puts `fresh` where `folder` is, in one step where the file system can exchange two names. Other files of the old folder move along.
Status put_in_place(const std::string& fresh, const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) {
    fs::rename(fresh, folder, error);
    return error ? io_error("{}: cannot be put in place: {}", folder, error.message()) : Status();
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_checkpoint_file(entry.path())) continue;
    fs::copy(entry.path(), fs::path(fresh) / entry.path().filename(), fs::copy_options::recursive | fs::copy_options::copy_symlinks, error);
    if (error) return io_error("{}: cannot be kept beside the new checkpoint: {}", entry.path().string(), error.message());
  }
  if (error) return io_error("{}: cannot be listed: {}", folder, error.message());
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(fresh, error);  // the old one, by now
    return {};
  }
  if (errno != EINVAL && errno != ENOSYS) return io_error("{}: cannot be put in place: {}", folder, std::strerror(errno));
  const std::string old = folder + ".old";
  fs::remove_all(old, error);
  fs::rename(folder, old, error);
  if (!error) fs::rename(fresh, folder, error);
  if (error) return io_error("{}: cannot be put in place: {}", folder, error.message());
  fs::remove_all(old, error);
  return {};
}

}  // namespace

Status save_checkpoint(const std::string& folder_path, const DraftSpec& spec, const std::map<std::string, std::vector<float>>& weights,
                       const SaveOptions& options) {
  std::string folder = fs::path(folder_path).lexically_normal().string();
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  if (options.type != DType::kBF16 && options.type != DType::kF32) {
    return invalid_argument("{}: weights are written as BF16 or F32, not as {}", folder, dtype_name(options.type));
  }
  AERIE_TRY(spec.validate().with_context(folder));
  auto contents = make_contents(spec, weights, options.type);
  if (!contents.ok()) return contents.status().with_context(folder);
  auto config = make_config(spec, options);
  if (!config.ok()) return config.status().with_context(folder);

  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) {
    return invalid_argument("{}: is a file, expected a folder to write the checkpoint to", folder);
  }
  const std::string fresh = fmt::format("{}.tmp.{}", folder, ::getpid());
  fs::remove_all(fresh, error);
  fs::create_directories(fresh, error);
  if (error) return io_error("{}: cannot be created: {}", fresh, error.message());
  const auto write = [&]() -> Status {
    AERIE_TRY(write_safetensors((fs::path(fresh) / "model.safetensors").string(), contents->views, {{"format", "pt"}}));
    std::string text;
    try {
      text = config->dump(2) + "\n";
    } catch (const nlohmann::json::exception&) {
      return invalid_argument("{}: the verifier's name is not valid UTF-8", folder);
    }
    AERIE_TRY(write_file_atomically((fs::path(fresh) / "config.json").string(), text));
    AERIE_TRY(verify(fresh, spec, *contents));
    return put_in_place(fresh, folder);
  };
  const Status status = write();
  if (!status.ok()) fs::remove_all(fresh, error);
  return status;
}

}  // namespace aerie::speculators
