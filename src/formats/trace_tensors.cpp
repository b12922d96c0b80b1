#include "formats/trace_tensors.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace aerie {
namespace {

constexpr uint64_t kMaxLength = std::numeric_limits<int32_t>::max();

int64_t integer_at(const TensorView& tensor, uint64_t i) {
  const uint8_t* at = tensor.data.data() + i * static_cast<uint64_t>(block_bytes(tensor.type));
  switch (tensor.type) {
    case DType::kI64: {
      int64_t value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case DType::kI32: {
      int32_t value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case DType::kI16: {
      int16_t value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case DType::kI8: return static_cast<int8_t>(*at);
    default: return *at;
  }
}

bool is_integer(DType type) {
  return type == DType::kI64 || type == DType::kI32 || type == DType::kI16 || type == DType::kI8 || type == DType::kU8 ||
         type == DType::kBool;
}

// An exponent of all ones is infinity or NaN.
bool is_finite(uint16_t bf16) { return (bf16 & 0x7f80) != 0x7f80; }

}  // namespace

Expected<std::vector<int32_t>> read_numbers(const char* name, const TensorView& tensor, int32_t most) {
  const bool row = tensor.shape.size() == 1 || (tensor.shape.size() == 2 && tensor.shape[0] == 1);
  if (!is_integer(tensor.type) || !row || tensor.shape.back() > kMaxLength) {
    return corrupt("{} is {} of shape {}; expected integers of shape [T] or [1, T]", name, dtype_name(tensor.type), tensor.shape_string());
  }
  std::vector<int32_t> out(tensor.shape.back());
  for (uint64_t i = 0; i < out.size(); ++i) {
    const int64_t value = integer_at(tensor, i);
    if (value < 0 || value > most) return corrupt("{} at position {} is {}; expected 0 to {}", name, i, value, most);
    out[i] = static_cast<int32_t>(value);
  }
  return out;
}

Expected<Extent> extent_of(const StateTensor& states) {
  const std::vector<uint64_t>& shape = states.tensor->shape;
  const bool batched = shape.size() == 3 && shape[0] == 1;
  if (shape.size() != 2 && !batched) {
    return corrupt("{} has shape {}; expected [T, width] or [1, T, width]", states.name, states.tensor->shape_string());
  }
  const DType type = states.tensor->type;
  if (type != DType::kBF16 && type != DType::kF16 && type != DType::kF32) {
    return unsupported("{} is {}; expected BF16, F16 or F32", states.name, dtype_name(type));
  }
  return Extent{shape[shape.size() - 2], shape.back()};
}

Status read_states(const std::vector<StateTensor>& parts, int hidden, Trace& trace) {
  std::vector<Extent> extents;
  uint64_t width = 0;
  for (const StateTensor& part : parts) {
    AERIE_ASSIGN(const Extent extent, extent_of(part));
    if (extent.length != trace.length()) return corrupt("{} has {} positions for {} tokens", part.name, extent.length, trace.length());
    if (extent.width % static_cast<uint64_t>(hidden) != 0) {
      return corrupt("{} has {} values a position; expected a multiple of {}", part.name, extent.width, hidden);
    }
    extents.push_back(extent);
    width += extent.width;
  }
  trace.hidden = hidden;
  trace.slots = static_cast<int>(width / static_cast<uint64_t>(hidden));
  trace.states.resize(trace.length() * width);  // as many values as the file has, of half their size or the same
  uint64_t column = 0;
  std::vector<float> row;
  for (size_t p = 0; p < parts.size(); ++p) {
    const TensorView& tensor = *parts[p].tensor;
    const uint64_t values = extents[p].width, row_bytes = values * static_cast<uint64_t>(block_bytes(tensor.type));
    row.resize(tensor.type == DType::kBF16 ? 0 : values);
    for (uint64_t t = 0; t < trace.length(); ++t) {
      const uint8_t* from = tensor.data.data() + t * row_bytes;
      uint16_t* to = trace.states.data() + t * width + column;
      if (tensor.type == DType::kBF16) {
        std::memcpy(to, from, row_bytes);
      } else {
        AERIE_TRY(dequantize(tensor.type, from, values, row.data()));
        std::transform(row.begin(), row.end(), to, f32_to_bf16);
      }
      if (!std::all_of(to, to + values, is_finite)) return corrupt("{} at position {} is not finite", parts[p].name, t);
    }
    column += values;
  }
  return Status();
}

}  // namespace aerie
