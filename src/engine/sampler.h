// Drawing a token from the target's distribution.
#pragma once

#include <cstdint>
#include <span>

namespace aerie {

/// How a sequence's tokens are chosen: the best one at temperature 0, else drawn from the softmax over the whole vocabulary of the
/// logits divided by the temperature. The token at a position depends on its logits, the seed and the position alone.
struct Sampling {
  double temperature = 0;
  uint64_t seed = 0;
};

/// Draws the token at `position`; -1 where the logits are not finite. They are used up.
int32_t sample_token(std::span<float> logits, const Sampling& sampling, int position);

}  // namespace aerie
