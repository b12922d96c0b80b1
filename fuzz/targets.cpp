#include "fuzz/targets.h"

namespace aerie::fuzz {
namespace {

constexpr uint64_t kMiB = 1 << 20;
volatile uint64_t sink = 0;

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {"gguf", gguf, kMiB, {"tests/formats/data/writer.gguf"}},
      {"safetensors", safetensors, kMiB, {"tests/eagle3/data/raw_none_pre/model.safetensors"}},
      {"safetensors_index", safetensors_index, kMiB, {}},
      {"torch", torch, kMiB, {"tests/formats/data/torch"}},
      // Lines of token ids become a tree of some 20 times their bytes, up to formats/json_text.h's limit on values.
      {"trace", trace, 2 * kMiB, {"tests/formats/data/torch"}},
      {"engine_trace", engine_trace, 2 * kMiB, {}},
      {"arrow", arrow, 2 * kMiB, {"tests/formats/data/arrow/streams", "tests/formats/data/arrow/dataset"}},
      {"drafter", drafter, kMiB, {}},
      // A template's values live within the budget of its steps (text/jinja_interpreter.h), whatever its length.
      {"chat_template", chat_template, 64 * kMiB, {"tests/text/data/templates"}},
      {"tokenizer", tokenizer, kMiB, {}},
  };
  return all;
}

uint64_t allowed_bytes(const Target& target, std::span<const uint8_t> input) { return 4 * input.size() + target.allowance; }

void touch(std::span<const uint8_t> bytes) {
  uint64_t sum = 0;
  for (const uint8_t byte : bytes) sum += byte;
  sink = sink + sum;
}

}  // namespace aerie::fuzz
