// What the trace readers share: from a file's tensors to a Trace. Private to src/formats.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "formats/tensor.h"
#include "formats/traces.h"

namespace aerie {

/// One or more states of each position: [T, width] or [1, T, width].
struct StateTensor {
  const char* name;
  const TensorView* tensor;
};

/// The numbers of an integer (or boolean) tensor [T] or [1, T], each from 0 to `most`.
Expected<std::vector<int32_t>> read_numbers(const char* name, const TensorView& tensor, int32_t most);

struct Extent {
  uint64_t length;  // T
  uint64_t width;   // values a position
};
/// Refuses other shapes, and types that are no BF16, F16 or F32.
Expected<Extent> extent_of(const StateTensor& states);

/// Sets trace.states to the parts side by side, at each position in their order, as bf16. Each part's width is a multiple of
/// `hidden`; trace.tokens is set. Refuses what extent_of refuses, another length than trace.length(), and values that are not
/// finite.
Status read_states(const std::vector<StateTensor>& parts, int hidden, Trace& trace);

}  // namespace aerie
