// The real target in either precision.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "gtest/gtest.h"
#include "models/target.h"
#include "support/model_path.h"
#include "text/tokenizer.h"

namespace aerie {

inline const GgufFile& target_file() {
  static const GgufFile file = *GgufFile::open(target_model_path());
  return file;
}

inline ThreadPool& test_pool() {
  static ThreadPool pool(2);
  return pool;
}

inline std::unique_ptr<Target> load(Precision precision, const kernels::Kernels* kernels = nullptr) {
  TargetOptions options;
  options.precision = precision;
  options.kernels = kernels;
  auto target = load_target(target_file(), options, test_pool());
  if (!target.ok()) {
    ADD_FAILURE() << target.status().message();
    return nullptr;
  }
  return std::move(target).value();
}

/// Logits [rows, vocab] and taps of tokens at `position`.. of a sequence.
struct Forwarded {
  std::vector<float> logits;
  std::vector<uint16_t> features;
};

inline Forwarded forward(Target& target, KvCache& cache, const std::vector<int32_t>& tokens, int position, ThreadPool& pool = test_pool(),
                         const std::vector<int>& taps = {}) {
  std::vector<TargetRow> rows;
  std::vector<int> logit_rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back({tokens[i], position + static_cast<int>(i), &cache});
    logit_rows.push_back(static_cast<int>(i));
  }
  Forwarded out;
  out.logits.resize(tokens.size() * static_cast<size_t>(target.config().vocab));
  out.features.resize(tokens.size() * taps.size() * static_cast<size_t>(target.config().hidden));
  const Status reserved = cache.reserve(position + static_cast<int>(tokens.size()));
  std::vector<int32_t> best(tokens.size());
  const Status status = target.forward(pool, {rows, logit_rows, out.logits.data(), taps, out.features.data(), best.data()});
  EXPECT_TRUE(reserved.ok() && status.ok()) << status.message();
  // Tokens chosen without writing the logits are those that the logits name.
  const int vocab = target.config().vocab;
  for (size_t i = 0; i < best.size(); ++i)
    EXPECT_EQ(best[i], target.kernels().argmax(out.logits.data() + i * static_cast<size_t>(vocab), vocab)) << i;
  return out;
}

}  // namespace aerie
