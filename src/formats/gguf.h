// GGUF v2 and v3 reader (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "formats/tensor.h"

namespace aerie {

/// A metadata value. Integers of every width are widened; arrays are homogeneous and may nest no deeper than one level.
struct GgufValue {
  std::variant<int64_t, uint64_t, double, bool, std::string, std::vector<int64_t>, std::vector<uint64_t>, std::vector<double>,
               std::vector<bool>, std::vector<std::string>>
      value;
};

/// An opened model file. Movable; reading is thread-safe. Every size is checked against the bytes that remain before it is
/// used; an error names the file, the key or tensor, what was expected and what was found.
class GgufFile {
 public:
  static Expected<GgufFile> open(const std::string& path);
  /// The same on bytes that are mapped or in memory already.
  static Expected<GgufFile> read(MappedFile file);

  const std::string& path() const { return file_.path(); }
  uint64_t file_bytes() const { return file_.bytes().size(); }
  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }

  bool has(const std::string& key) const { return metadata_.count(key) != 0; }
  // Typed getters: kNotFound when absent, kCorrupt when of another type or out of the target's range.
  Expected<uint32_t> get_u32(const std::string& key) const;
  Expected<float> get_f32(const std::string& key) const;
  Expected<bool> get_bool(const std::string& key) const;
  Expected<std::string> get_string(const std::string& key) const;
  Expected<std::vector<std::string>> get_strings(const std::string& key) const;
  Expected<std::vector<int32_t>> get_i32s(const std::string& key) const;

  /// kNotFound names the file and the tensor.
  Expected<const TensorView*> find(const std::string& tensor_name) const;

 private:
  MappedFile file_;
  std::map<std::string, GgufValue> metadata_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t> index_;
};

}  // namespace aerie
