// The standalone forward: stored features through a drafter, with no target and no engine, at every step of a training-time test.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "eagle3/drafter.h"

namespace aerie {

inline constexpr int kMaxUnrollSteps = 32;

struct UnrollOptions {
  int steps = 1;           // 1..kMaxUnrollSteps
  int first_position = 0;  // RoPE position of row 0 at step 0, 0 or 1: some trainers count from 1
  int batch_rows = 64;     // rows that are computed together; has no influence on any result
};

/// Takes a batch's logits [rows, Vd], which begin with row `first` of a step and are valid during the call.
using UnrollSink = std::function<void(int step, int first, int rows, const float* logits)>;

/// features [L, k*Ht] and token_ids [L], row i's token being the one paired with feature i. At step s row i reads token_ids[i+s] (0
/// past the end) at position i + s + first_position, and attends to the step-0 keys of rows 0..i and to its own of the steps 1..s:
/// what a row sees is what the server's drafter sees, fed with these tokens. The sink gets every row of every step once.
/// Refused: lengths that do not fit, tokens outside the vocabulary, steps or a first position out of range.
Status unroll_logits(const Drafter& drafter, CpuOps& ops, std::span<const float> features, std::span<const int32_t> token_ids,
                     const UnrollOptions& options, const UnrollSink& sink);

}  // namespace aerie
