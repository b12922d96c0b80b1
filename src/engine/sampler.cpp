#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace aerie {

int32_t sample_token(std::span<float> logits, const Sampling& sampling, int position) {
  const double largest = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (float& value : logits) {
    value = static_cast<float>(std::exp((static_cast<double>(value) - largest) / sampling.temperature));
    sum += static_cast<double>(value);
  }
  if (!std::isfinite(sum)) return -1;
  uint64_t stream = random_stream({sampling.seed, static_cast<uint64_t>(position)});
  double left = next_uniform(stream) * sum;
  int32_t last = -1;  // rounding can leave something beyond the last token; it falls to the last one that can be drawn
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] == 0) continue;
    last = static_cast<int32_t>(id);
    left -= static_cast<double>(logits[id]);
    if (left < 0) break;
  }
  return last;
}

}  // namespace aerie
