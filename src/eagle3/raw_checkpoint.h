// A drafter's files as they lie there, before any dialect has said what they mean.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "formats/tensor.h"

namespace aerie {

/// A folder with config.json and its weights, or one GGUF file. Cheap to copy; reading is thread-safe.
/// A folder's weights are model.safetensors, or the shards of model.safetensors.index.json, or the only *.safetensors file, or
/// pytorch_model.bin where there is none of these. Two candidates are an error: a reader does not guess which is the drafter.
class RawCheckpoint {
 public:
  static Expected<RawCheckpoint> open(const std::string& path);
  /// The folder's config.json alone, its weights unread: for telling families apart before opening gigabytes.
  static Expected<nlohmann::json> read_config(const std::string& folder);

  const std::string& path() const { return path_; }

  /// config.json, an object; empty for a GGUF file.
  const nlohmann::json& config() const { return config_; }
  /// Null for a folder.
  const GgufFile* gguf() const { return gguf_.get(); }

  /// In the order of the file. Every name is there once.
  const std::vector<TensorView>& tensors() const { return *tensors_; }
  /// Null where there is none.
  const TensorView* find(const std::string& name) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
  /// Keeps alive what the tensors' views point into.
  std::shared_ptr<const void> owner() const { return owner_; }

 private:
  Status open_folder();
  Status open_gguf();
  void set_tensors(const std::vector<TensorView>& tensors, std::shared_ptr<const void> owner);

  std::string path_;
  nlohmann::json config_ = nlohmann::json::object();
  std::shared_ptr<const GgufFile> gguf_;
  std::shared_ptr<const void> owner_;
  const std::vector<TensorView>* tensors_ = nullptr;  // inside what owner_ holds
  std::map<std::string, size_t> index_;
};

}  // namespace aerie
