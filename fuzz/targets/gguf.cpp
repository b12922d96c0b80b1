#include "formats/gguf.h"

#include "fuzz/targets.h"

void aerie::fuzz::gguf(std::span<const uint8_t> input) {
  const auto file = GgufFile::read(MappedFile::from_memory("file", text_of(input)));
  if (!file.ok()) return;
  for (const auto& [key, value] : file->metadata()) {
    (void)file->get_u32(key);
    (void)file->get_f32(key);
    (void)file->get_bool(key);
    (void)file->get_string(key);
    (void)file->get_strings(key);
    (void)file->get_i32s(key);
  }
  for (const TensorView& tensor : file->tensors()) touch(tensor.data);
}
