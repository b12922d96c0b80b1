#include "formats/safetensors.h"
#include "fuzz/targets.h"
#include "support/temp_folder.h"

// The input is an index beside two shards, "a" of one tensor "x" and "b" of one tensor "y".
void aerie::fuzz::safetensors_index(std::span<const uint8_t> input) {
  static const TempFolder folder;
  static const bool written = [] {
    const std::vector<uint8_t> byte(1, 7);
    return write_safetensors(folder / "a", {{"x", DType::kU8, {1}, byte}}).ok() &&
           write_safetensors(folder / "b", {{"y", DType::kU8, {1}, byte}}).ok();
  }();
  if (!written) std::abort();
  const auto file = SafetensorsFile::open(folder.write("model.safetensors.index.json", text_of(input)));
  if (!file.ok()) return;
  for (const TensorView& tensor : file->tensors()) touch(tensor.data);
}
