// Two drafters side by side: is one what the other was converted to, or read from?
#pragma once

#include <vector>

#include "eagle3/checkpoint.h"

namespace aerie {

/// How far the values of a tensor lie apart in two drafters.
struct WeightDifference {
  std::string name;       // canonical
  double relative = 0.0;  // root mean square of the difference over that of the first; infinite where one has no such tensor
};

/// The tensors whose values differ as float32, bit by bit. Errors: a tensor that has no values to compare.
Expected<std::vector<WeightDifference>> differing_weights(const DraftCheckpoint& a, const DraftCheckpoint& b);

/// What `given` has otherwise than `source`: "differs-from-source", an error for each field of the forward (max_positions: a warning);
/// "weights-differ", an error, or "weights-rounded", a note, where all lie within 5 % of each other, as after quantising.
Expected<std::vector<Finding>> source_findings(const DraftCheckpoint& given, const DraftCheckpoint& source);

}  // namespace aerie
