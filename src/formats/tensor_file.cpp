#include "formats/tensor_file.h"

#include "base/mapped_file.h"
#include "formats/printable.h"
#include "formats/safetensors.h"
#include "formats/torch_file.h"

namespace aerie {

Expected<const TensorView*> TensorFile::find(const std::string& name) const {
  const auto at = index_.find(name);
  if (at == index_.end()) return not_found("{}: there is no tensor {}", path_, printable(name));
  return &tensors_[at->second];
}

bool TensorFile::add(TensorView tensor) {
  if (!index_.try_emplace(tensor.name, tensors_.size()).second) return false;
  tensors_.push_back(std::move(tensor));
  return true;
}

Expected<TensorFile> open_tensor_file(const std::string& path) {
  AERIE_ASSIGN(const MappedFile file, MappedFile::open(path));
  if (looks_like_torch(file.bytes())) {
    AERIE_ASSIGN(TorchCheckpoint checkpoint, TorchCheckpoint::open(path));
    return TensorFile(std::move(checkpoint));
  }
  AERIE_ASSIGN(SafetensorsFile tensors, SafetensorsFile::open(path));
  return TensorFile(std::move(tensors));
}

}  // namespace aerie
