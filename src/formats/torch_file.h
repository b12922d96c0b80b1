// Reader of what torch.save writes (.bin, .pt, .ckpt, and gzip'ed .ckpt.gz): a zip archive of one pickle and the tensors' bytes,
// torch 1.6 and later (torch/serialization.py). It is read as data: no pickle is run, no function is called.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/tensor_file.h"
#include "formats/torch_pickle.h"

namespace aerie {

struct TorchContents;

/// Whether `file` begins as a file of torch.save does, the old format and gzip included.
bool looks_like_torch(std::span<const uint8_t> file);

/// A value of a TorchFile: cheap to copy, valid while the file lives. Asking for another kind than it has gives nullopt,
/// nullptr or 0, so that a file's shape can be tried without asking for its kind first.
class TorchValue {
 public:
  PickleKind kind() const { return item_.kind; }
  /// "a list", for errors.
  const char* kind_name() const { return pickle_kind_name(item_.kind); }

  std::optional<bool> boolean() const;
  std::optional<int64_t> integer() const;
  std::optional<double> real() const;  // of a float
  std::optional<std::string_view> string() const;
  /// Its name is empty. Contiguous, whatever its strides were in the file.
  const TensorView* tensor() const;

  /// Items of a list, tuple or dict.
  size_t size() const;
  /// Item i < size(): of a dict its value.
  TorchValue at(size_t i) const;
  /// Key i < size() of a dict: a string or an integer.
  TorchValue key_at(size_t i) const;
  /// The value of a dict's string key.
  std::optional<TorchValue> find(std::string_view key) const;

 private:
  friend class TorchFile;
  TorchValue(const TorchContents* contents, PickleItem item) : contents_(contents), item_(item) {}

  const TorchContents* contents_;
  PickleItem item_;
};

/// A file of torch.save. Copies share it; reading is thread-safe.
/// Refused: the format before torch 1.6, TorchScript, big-endian files, all that read_zip and read_torch_pickle refuse, a storage
/// whose record is missing or of another size, tensors that name elements more than once. Beside the file itself, only
/// tensors that are not contiguous take memory: together at most as many bytes as the file has, or kResource.
/// A gzip'ed file is unpacked into memory: at most kMaxInflation times its size (or 1 MiB, if that is more), or kResource.
class TorchFile {
 public:
  static constexpr uint64_t kMaxInflation = 32;

  static Expected<TorchFile> open(const std::string& path);
  /// The same on bytes that are in memory already, not gzip'ed; errors call them `name`.
  static Expected<TorchFile> from_memory(const std::string& name, std::string content);

  const std::string& path() const;
  TorchValue root() const;

 private:
  friend class TorchCheckpoint;
  std::shared_ptr<const TorchContents> contents_;
};

/// A checkpoint: the file's value is a dict of tensors and nothing else, as a module's state_dict is. An entry that is none is
/// refused by its name (kUnsupported). Tensors that share bytes (tied weights) are views of the same ones.
class TorchCheckpoint : public TensorFile {
 public:
  static Expected<TorchCheckpoint> open(const std::string& path);
  static Expected<TorchCheckpoint> from_file(const TorchFile& file);
};

}  // namespace aerie
