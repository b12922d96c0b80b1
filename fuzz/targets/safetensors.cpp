#include "formats/safetensors.h"

#include "fuzz/targets.h"

void aerie::fuzz::safetensors(std::span<const uint8_t> input) {
  const auto file = SafetensorsFile::read(MappedFile::from_memory("file", text_of(input)));
  if (!file.ok()) return;
  for (const TensorView& tensor : file->tensors()) touch(tensor.data);
}
