// A file of named tensors, whatever its container.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/tensor.h"

namespace aerie {

/// Named tensors and the memory that they lie in. Movable; reading is thread-safe.
class TensorFile {
 public:
  const std::string& path() const { return path_; }
  /// In the order of the file. Every name is there once.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return index_.count(name) != 0; }
  /// kNotFound names the file and the tensor.
  Expected<const TensorView*> find(const std::string& name) const;

 protected:
  /// False when the name is taken.
  bool add(TensorView tensor);
  /// Keeps alive what views of tensors point into.
  void keep(std::shared_ptr<const void> memory) { memory_.push_back(std::move(memory)); }

  std::string path_;

 private:
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t> index_;
  std::vector<std::shared_ptr<const void>> memory_;
};

/// Opens a .safetensors file, the .index.json of its shards, or what torch.save wrote: by the content, not by the name.
Expected<TensorFile> open_tensor_file(const std::string& path);

}  // namespace aerie
