#include <algorithm>

#include "base/file_io.h"
#include "eagle3/checkpoint.h"
#include "fuzz/targets.h"
#include "support/temp_folder.h"

// The input is a config.json and, after a zero byte, a model.safetensors; without that the weights of a small golden.
void aerie::fuzz::drafter(std::span<const uint8_t> input) {
  static const TempFolder folder;
  static const std::string golden = read_bytes(AERIE_SOURCE_DIR "/tests/eagle3/data/raw_none_pre/model.safetensors");
  const auto zero = std::find(input.begin(), input.end(), uint8_t{0});
  const auto config_bytes = static_cast<size_t>(zero - input.begin());
  folder.write("config.json", text_of(input.first(config_bytes)));
  folder.write("model.safetensors", zero == input.end() ? golden : text_of(input.subspan(config_bytes + 1)));
  const auto checkpoint = open_drafter(folder.path());
  if (!checkpoint.ok()) return;
  for (const auto& [name, tensor] : checkpoint->tensors) touch(tensor.data);
}
