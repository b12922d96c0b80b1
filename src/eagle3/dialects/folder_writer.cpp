#include "eagle3/dialects/folder_writer.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/file_io.h"
#include "eagle3/dialects/named_tensors.h"
#include "eagle3/spec_fields.h"
#include "formats/safetensors.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

/// The tensors of the file; `made` owns the bytes of those that the drafter does not hold itself.
struct Contents {
  std::vector<TensorView> views;
  std::vector<std::vector<uint8_t>> made;
};

template <class T>
std::vector<uint8_t> to_bytes(const std::vector<T>& values) {
  std::vector<uint8_t> out(values.size() * sizeof(T));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

Status check_weight(const DraftTensor& wanted, const TensorView& found) {
  uint64_t count = 1;
  for (const uint64_t dim : wanted.shape) count *= dim;
  if (found.element_count() != count) {
    return invalid_argument("the weight {} has {} values, expected {} for [{}]", wanted.name, found.element_count(), count,
                            fmt::join(wanted.shape, ", "));
  }
  AERIE_ASSIGN(const std::vector<float> values, to_float(found));
  for (const float value : values) {
    if (!std::isfinite(value)) return invalid_argument("the weight {} holds {}: such a drafter is not written", wanted.name, value);
  }
  return {};
}

Expected<Contents> make_contents(const DraftFolder& as, const DraftSpec& spec, const std::map<std::string, TensorView>& tensors) {
  Contents out;
  const std::vector<DraftTensor> wanted = draft_tensors(spec);
  for (const DraftTensor& tensor : wanted) {
    const auto it = tensors.find(tensor.name);
    if (it == tensors.end()) return invalid_argument("the weight {} is missing, though the spec calls for it", tensor.name);
    AERIE_TRY(check_weight(tensor, it->second));
    out.views.push_back({checkpoint_name(tensor.name, as.first_layer), it->second.type, tensor.shape, it->second.data});
  }
  if (tensors.size() != wanted.size()) {
    return invalid_argument("{} weights were given, but the spec calls for {}", tensors.size(), wanted.size());
  }
  if (spec.d2t.empty()) return out;
  std::vector<int64_t> offsets(spec.d2t.size());
  std::vector<uint8_t> known(static_cast<size_t>(spec.vocab), 0);
  for (size_t d = 0; d < offsets.size(); ++d) {
    offsets[d] = spec.d2t[d] - static_cast<int64_t>(d);
    known[static_cast<size_t>(spec.d2t[d])] = 1;
  }
  out.made = {to_bytes(offsets), std::move(known)};
  out.views.push_back({"d2t", DType::kI64, {offsets.size()}, out.made[0]});
  if (as.t2d) out.views.push_back({"t2d", DType::kBool, {static_cast<uint64_t>(spec.vocab)}, out.made[1]});
  return out;
}

/// The type of all weights, or float32 where they differ: programs convert to it, which then rounds nothing.
const char* torch_dtype(const std::map<std::string, TensorView>& tensors) {
  const auto all = [&](DType type) {
    return std::all_of(tensors.begin(), tensors.end(), [&](const auto& t) { return t.second.type == type; });
  };
  return all(DType::kBF16) ? "bfloat16" : all(DType::kF16) ? "float16" : "float32";
}

/// What was written must read back as the same forward and the same bytes.
Status verify(const std::string& folder, const DraftSpec& spec, const Contents& contents) {
  AERIE_ASSIGN(const DraftCheckpoint read, open_drafter(folder));
  if (const auto differences = differing_fields(spec, read.spec); !differences.empty()) {
    return internal_error("what was written reads back differently: {}", fmt::join(differences, "; "));
  }
  AERIE_ASSIGN(const RawCheckpoint raw, RawCheckpoint::open(folder));
  for (const TensorView& written : contents.views) {
    const TensorView* found = raw.find(written.name);
    const bool same = found != nullptr && found->type == written.type && found->shape == written.shape &&
                      found->data.size() == written.data.size() &&
                      std::memcmp(found->data.data(), written.data.data(), written.data.size()) == 0;
    if (!same) return io_error("{} reads back differently from what was written: the disk may be full or failing", written.name);
  }
  return {};
}

/// Whether it is a part of the checkpoint that is replaced; other tensors, such as the state of the training that writes it, are not.
bool is_checkpoint_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "config.json" || name == "model.safetensors.index.json" ||
         (name.starts_with("model") && path.extension() == ".safetensors");
}

/// Links what can be linked: states of a training are large.
std::error_code keep_beside(const fs::path& from, const fs::path& to) {
  constexpr fs::copy_options kAll = fs::copy_options::recursive | fs::copy_options::copy_symlinks;
  std::error_code error, ignored;
  fs::copy(from, to, kAll | fs::copy_options::create_hard_links, error);
  if (!error) return error;
  fs::remove_all(to, ignored);
  fs::copy(from, to, kAll, error);
  return error;
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
    error = keep_beside(entry.path(), fs::path(fresh) / entry.path().filename());
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

Status write_draft_folder(const std::string& folder_path, const DraftFolder& as, const DraftSpec& spec,
                          const std::map<std::string, TensorView>& tensors) {
  std::string folder = fs::path(folder_path).lexically_normal().string();
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  AERIE_TRY(spec.validate().with_context(folder));
  auto contents = make_contents(as, spec, tensors);
  if (!contents.ok()) return contents.status().with_context(folder);
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
    nlohmann::ordered_json config = as.config;
    config["torch_dtype"] = torch_dtype(tensors);
    std::string text;
    try {
      text = config.dump(2) + "\n";
    } catch (const nlohmann::json::exception&) {
      return invalid_argument("{}: the target's name is not valid UTF-8", folder);
    }
    AERIE_TRY(write_file_atomically((fs::path(fresh) / "config.json").string(), text));
    AERIE_TRY(verify(fresh, spec, *contents));
    return put_in_place(fresh, folder);
  };
  const Status status = write();
  if (!status.ok()) fs::remove_all(fresh, error);
  return status;
}

}  // namespace aerie
