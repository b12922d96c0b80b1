#include "eagle3/raw_checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/file_io.h"
#include "formats/json_text.h"
#include "formats/printable.h"
#include "formats/tensor_file.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;
constexpr int kMaxConfigDepth = 32;

/// The file that holds a folder's weights.
Expected<std::string> find_weights(const fs::path& folder) {
  std::error_code error;
  const auto has = [&](const char* name) { return fs::exists(folder / name, error); };
  const bool single = has("model.safetensors"), sharded = has("model.safetensors.index.json");
  if (single && sharded) {
    return corrupt("both model.safetensors and model.safetensors.index.json are there: remove the one that is not the drafter");
  }
  if (single) return std::string("model.safetensors");
  if (sharded) return std::string("model.safetensors.index.json");
  std::vector<std::string> others;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") others.push_back(entry.path().filename().string());
  }
  if (others.size() == 1) return others.front();
  if (others.size() > 1) {
    std::sort(others.begin(), others.end());
    return corrupt("{} *.safetensors files are there ({}, ...) without a model.safetensors.index.json that says which belong together",
                   others.size(), printable(others.front()));
  }
  if (has("pytorch_model.bin")) return std::string("pytorch_model.bin");
  return not_found("neither model.safetensors nor model.safetensors.index.json nor pytorch_model.bin is there");
}

}  // namespace

Expected<nlohmann::json> RawCheckpoint::read_config(const std::string& folder) {
  const std::string path = (fs::path(folder) / "config.json").string();
  AERIE_ASSIGN(const std::string text, read_file(path, kMaxConfigBytes));
  auto config = parse_json(text, kMaxConfigDepth);
  if (!config.ok()) return config.status().with_context("config.json").with_context(folder);
  if (!config->is_object()) return corrupt("{}: config.json: expected an object", folder);
  return config;
}

Expected<RawCheckpoint> RawCheckpoint::open(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return not_found("{}: there is no drafter here, expected a folder with config.json and model.safetensors", path);
  RawCheckpoint out;
  out.path_ = path;
  if (fs::is_directory(status)) {
    if (!fs::exists(fs::path(path) / "config.json", error)) {
      return not_found("{}: the folder has no config.json, so it is no drafter", path);
    }
    AERIE_TRY(out.open_folder());
  } else if (fs::path(path).extension() == ".gguf") {
    AERIE_TRY(out.open_gguf());
  } else {
    return invalid_argument("{}: a drafter is a folder with config.json and its weights, or a GGUF file; this is another file", path);
  }
  return out;
}

Status RawCheckpoint::open_folder() {
  AERIE_ASSIGN(config_, read_config(path_));
  auto weights = find_weights(path_);
  if (!weights.ok()) return weights.status().with_context(path_);
  AERIE_ASSIGN(TensorFile file, open_tensor_file((fs::path(path_) / *weights).string()));
  auto kept = std::make_shared<const TensorFile>(std::move(file));
  set_tensors(kept->tensors(), kept);
  return {};
}

Status RawCheckpoint::open_gguf() {
  AERIE_ASSIGN(GgufFile file, GgufFile::open(path_));
  gguf_ = std::make_shared<const GgufFile>(std::move(file));
  set_tensors(gguf_->tensors(), gguf_);
  return {};
}

void RawCheckpoint::set_tensors(const std::vector<TensorView>& tensors, std::shared_ptr<const void> owner) {
  tensors_ = &tensors;
  owner_ = std::move(owner);
  for (size_t i = 0; i < tensors.size(); ++i) index_.emplace(tensors[i].name, i);
}

const TensorView* RawCheckpoint::find(const std::string& name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &(*tensors_)[at->second];
}

}  // namespace aerie
