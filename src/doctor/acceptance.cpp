#include "doctor/acceptance.h"

#include <algorithm>
#include <cmath>

namespace aerie {

double rate_from_length(double length, int k, RateDefinition definition) {
  return definition == RateDefinition::kAcceptedOverDrafted ? (length - 1.0) / k : length / (k + 1);
}

double length_from_rate(double rate, int k, RateDefinition definition) {
  return definition == RateDefinition::kAcceptedOverDrafted ? 1.0 + rate * k : rate * (k + 1);
}

std::vector<double> conditional_from_unconditional(const std::vector<double>& p) {
  std::vector<double> out;
  double before = 1.0;
  for (const double value : p) {
    out.push_back(before > 0.0 ? value / before : 0.0);
    before = value;
  }
  return out;
}

std::vector<double> unconditional_from_conditional(const std::vector<double>& a) {
  std::vector<double> out;
  double product = 1.0;
  for (const double value : a) out.push_back(product *= value);
  return out;
}

double length_from_unconditional(const std::vector<double>& p) {
  double sum = 1.0;
  for (const double value : p) sum += value;
  return sum;
}

void Acceptance::complete() {
  if (!histogram.empty()) {
    uint64_t total = 0, weighted = 0;
    for (size_t i = 0; i < histogram.size(); ++i) total += histogram[i], weighted += i * histogram[i];
    if (!verifies && total != 0) verifies = total;
    if (!accepted && total != 0) accepted = weighted;
    if (unconditional.empty() && total != 0) {
      uint64_t reached = total;
      for (size_t step = 0; step + 1 < histogram.size(); ++step) {
        reached -= histogram[step];
        unconditional.push_back(static_cast<double>(reached) / static_cast<double>(total));
      }
    }
  }
  if (!length && verifies && accepted && *verifies != 0) length = 1.0 + static_cast<double>(*accepted) / static_cast<double>(*verifies);
  if (!length && !unconditional.empty() && (!k || static_cast<size_t>(*k) == unconditional.size()))
    length = length_from_unconditional(unconditional);
  if (!rate && accepted && drafted && *drafted != 0) rate = static_cast<double>(*accepted) / static_cast<double>(*drafted);
  if (!rate && length && k && *k > 0) rate = rate_from_length(*length, *k, RateDefinition::kAcceptedOverDrafted);
  if (!length && rate && k) length = length_from_rate(*rate, *k, RateDefinition::kAcceptedOverDrafted);
  if (conditional.empty()) conditional = conditional_from_unconditional(unconditional);
}

std::optional<double> Acceptance::length_error() const {
  if (!verifies || *verifies == 0) return std::nullopt;
  const double n = static_cast<double>(*verifies);
  if (!histogram.empty()) {
    double mean = 0, square = 0, total = 0;
    for (size_t i = 0; i < histogram.size(); ++i) {
      const double count = static_cast<double>(histogram[i]), x = static_cast<double>(i);
      total += count, mean += count * x, square += count * x * x;
    }
    if (total > 0) return std::sqrt(std::max(square / total - (mean / total) * (mean / total), 0.0) / n);
  }
  if (!length) return std::nullopt;
  // A variable between 0 and K with mean m varies by m (K - m) at most (Bhatia and Davis).
  const double most = k ? *k : unconditional.empty() ? 16.0 : static_cast<double>(unconditional.size());
  const double mean = std::min(std::max(*length - 1.0, 0.0), most);
  return std::sqrt(mean * (most - mean) / n);
}

}  // namespace aerie
