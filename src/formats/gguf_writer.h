// GGUF v3 writer, little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "formats/tensor.h"

namespace aerie {

/// A metadata value in the type that is written. Readers are strict: llama.cpp refuses an i64 where it wants a u32.
using GgufMeta = std::variant<uint32_t, int32_t, uint64_t, float, bool, std::string, std::vector<int32_t>, std::vector<uint32_t>,
                              std::vector<float>, std::vector<std::string>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufMeta>>;

/// What the reader widened, in the types that writers of GGUF use for keys of the `tokenizer.` kind: u32, i32, f32. A value that they
/// do not hold, and an array of bools, is kUnsupported.
Expected<GgufMeta> narrow_gguf_value(const GgufValue& value);

/// Writes metadata and tensors in the given order, atomically. `general.architecture` should be the first key. Tensor names have at
/// most 63 bytes and 1 to 4 dimensions; a name or key that is given twice is refused.
Status write_gguf(const std::string& path, const GgufMetadata& metadata, const std::vector<TensorView>& tensors);

}  // namespace aerie
