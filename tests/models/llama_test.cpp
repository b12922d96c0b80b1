// The Llama forward against transformers, and the served precision against the float32 reference.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/file_io.h"
#include "formats/safetensors.h"
#include "models_fixture.h"

namespace aerie {
namespace {

template <class T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const TensorView* tensor = *file.find(name);
  std::vector<T> out(tensor->data.size() / sizeof(T));
  std::memcpy(out.data(), tensor->data.data(), tensor->data.size());
  return out;
}

int best_of(const float* logits, int n) { return static_cast<int>(std::max_element(logits, logits + n) - logits); }

double log_sum_exp(const float* logits, int n) {
  const double most = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += std::exp(logits[i] - most);
  return most + std::log(sum);
}

TEST(Llama, Float32LogitsAreThoseOfTransformers) {
  const auto golden = SafetensorsFile::open(AERIE_SOURCE_DIR "/tests/models/data/llama_logits.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  const auto tokens = values<int32_t>(*golden, "token_ids");
  const auto sample_ids = values<int32_t>(*golden, "sample_ids");
  const auto sample_logits = values<float>(*golden, "sample_logits");
  const auto argmax = values<int32_t>(*golden, "argmax");
  const auto sums = values<float>(*golden, "logsumexp");
  const auto last = values<float>(*golden, "last_logits");
  const std::vector<int> taps = {0, 1, 15, 29};
  for (const kernels::Isa isa : kernels::available_isas()) {
    const kernels::Kernels& table = **kernels::kernels_for(isa);
    const auto target = load(Precision::kFloat32, &table);
    ASSERT_NE(target, nullptr);
    const int vocab = target->config().vocab;
    KvCache cache = target->make_cache();
    const Forwarded out = forward(*target, cache, tokens, 0, test_pool(), taps);
    double worst = 0;
    for (size_t t = 0; t < tokens.size(); ++t) {
      const float* logits = out.logits.data() + t * static_cast<size_t>(vocab);
      EXPECT_EQ(best_of(logits, vocab), argmax[t]) << table.name << " position " << t;
      worst = std::max(worst, std::fabs(log_sum_exp(logits, vocab) - static_cast<double>(sums[t])));
      for (size_t i = 0; i < 256; ++i) {
        worst = std::max(worst,
                         std::fabs(static_cast<double>(logits[sample_ids[t * 256 + i]]) - static_cast<double>(sample_logits[t * 256 + i])));
      }
    }
    const float* final_logits = out.logits.data() + (tokens.size() - 1) * static_cast<size_t>(vocab);
    for (int i = 0; i < vocab; ++i)
      worst = std::max(worst, std::fabs(static_cast<double>(final_logits[i]) - static_cast<double>(last[static_cast<size_t>(i)])));
    std::printf("%s: largest difference of a logit from transformers: %.2e\n", table.name, worst);
    EXPECT_LE(worst, 2e-3) << table.name;

    // Taps are the boundaries that their numbers say: rounded to bf16, so they are compared at that precision.
    for (size_t slot = 0; slot < taps.size(); ++slot) {
      const auto state = values<float>(*golden, fmt::format("hidden_{}", taps[slot]));
      double error = 0, norm = 0;
      for (size_t t = 0; t < tokens.size(); t += 8) {
        for (size_t i = 0; i < 576; ++i) {
          const double expected = state[t / 8 * 576 + i], found = bf16_to_f32(out.features[(t * taps.size() + slot) * 576 + i]);
          error += (expected - found) * (expected - found);
          norm += expected * expected;
        }
      }
      EXPECT_LE(std::sqrt(error / norm), 0.003) << table.name << " boundary " << taps[slot];  // bf16 keeps 8 bits
    }
  }
}

TEST(Llama, TheNormedFinalStateIsWhatTheHeadReads) {
  const std::vector<int32_t> tokens = {1, 4093, 198, 57, 1057};
  for (const Precision precision : {Precision::kServed, Precision::kFloat32}) {
    const auto target = load(precision);
    ASSERT_NE(target, nullptr);
    const int hidden = target->config().hidden;
    const size_t width = static_cast<size_t>(hidden), vocab = static_cast<size_t>(target->config().vocab);
    KvCache cache = target->make_cache();
    const std::vector<int> taps = {target->config().blocks, kFinalNormed};
    const Forwarded out = forward(*target, cache, tokens, 0, test_pool(), taps);
    std::vector<float> states;
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (size_t i = 0; i < width; ++i) states.push_back(bf16_to_f32(out.features[(2 * t + 1) * width + i]));
    }
    std::vector<float> logits(tokens.size() * vocab), alone(vocab);
    target->head(test_pool(), states.data(), static_cast<int>(tokens.size()), logits.data());
    double error = 0, norm = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      error += (logits[i] - out.logits[i]) * (logits[i] - out.logits[i]);
      norm += out.logits[i] * out.logits[i];
    }
    EXPECT_LE(std::sqrt(error / norm), 0.005);  // the tap's bf16 keeps 8 bits
    for (size_t t = 0; t < tokens.size(); ++t) {
      target->head(test_pool(), states.data() + t * width, 1, alone.data());
      EXPECT_EQ(std::memcmp(alone.data(), logits.data() + t * vocab, vocab * sizeof(float)), 0) << t;
    }
  }
}

TEST(Llama, ServedPrecisionIsFaithful) {
  const auto served = load(Precision::kServed), exact = load(Precision::kFloat32);
  ASSERT_TRUE(served != nullptr && exact != nullptr);
  const auto tokenizer = Tokenizer::from_gguf(target_file());
  const std::vector<int32_t> tokens = *tokenizer->encode(*read_file(AERIE_SOURCE_DIR "/data/eval/perplexity.txt", 1 << 20));
  ASSERT_GT(tokens.size(), 4000u);
  const int vocab = served->config().vocab;
  constexpr size_t kCompared = 2000, kChunk = 250;
  KvCache served_cache = served->make_cache(), exact_cache = exact->make_cache();
  size_t equal = 0;
  double kl = 0, served_loss = 0, exact_loss = 0;
  for (size_t begin = 0; begin < tokens.size(); begin += kChunk) {
    const std::vector<int32_t> chunk(tokens.begin() + static_cast<ptrdiff_t>(begin),
                                     tokens.begin() + static_cast<ptrdiff_t>(std::min(begin + kChunk, tokens.size())));
    const Forwarded a = forward(*served, served_cache, chunk, static_cast<int>(begin));
    const Forwarded b = forward(*exact, exact_cache, chunk, static_cast<int>(begin));
    for (size_t i = 0; i < chunk.size(); ++i) {
      const float* p = b.logits.data() + i * static_cast<size_t>(vocab);
      const float* q = a.logits.data() + i * static_cast<size_t>(vocab);
      const double log_p = log_sum_exp(p, vocab), log_q = log_sum_exp(q, vocab);
      if (begin + i + 1 < tokens.size()) {
        exact_loss += log_p - p[tokens[begin + i + 1]];
        served_loss += log_q - q[tokens[begin + i + 1]];
      }
      if (begin + i >= kCompared) continue;
      equal += best_of(p, vocab) == best_of(q, vocab);
      for (int v = 0; v < vocab; ++v) {
        const double log_pv = p[v] - log_p;
        kl += std::exp(log_pv) * (log_pv - (q[v] - log_q));
      }
    }
  }
  const double count = static_cast<double>(tokens.size() - 1);
  const double served_ppl = std::exp(served_loss / count), exact_ppl = std::exp(exact_loss / count);
  const double agreement = static_cast<double>(equal) / kCompared;
  kl /= kCompared;
  std::printf(
      "%s kernels: argmax equal at %.2f %% of %zu positions, mean KL %.2e nats, perplexity %.4f against %.4f in float32 (%+.3f %%)\n",
      served->kernels().name, 100 * agreement, kCompared, kl, served_ppl, exact_ppl, 100 * (served_ppl / exact_ppl - 1));
  EXPECT_GE(agreement, 0.99);
  EXPECT_LE(kl, 5e-3);
  EXPECT_LE(std::fabs(served_ppl / exact_ppl - 1), 0.005);
}

TEST(Llama, ARowHasTheSameBytesAloneAndAmongOthers) {
  for (const kernels::Isa isa : kernels::available_isas()) {
    if (isa == kernels::Isa::kScalar) continue;  // minutes; the kernels' own tests cover it
    const kernels::Kernels& table = **kernels::kernels_for(isa);
    const auto target = load(Precision::kServed, &table);
    ASSERT_NE(target, nullptr);
    const int vocab = target->config().vocab;
    std::vector<int32_t> tokens;
    for (int i = 0; i < 200; ++i) tokens.push_back(1000 + i * 211 % 40000);
    const std::vector<int> taps = {2, 15, 30};
    ThreadPool one(1), three(3);

    KvCache whole_cache = target->make_cache();
    const Forwarded whole = forward(*target, whole_cache, tokens, 0, test_pool(), taps);
    // One row at a time, and in uneven chunks; other numbers of threads; another sequence interleaved.
    KvCache single_cache = target->make_cache(), other_cache = target->make_cache();
    for (size_t begin = 0; begin < tokens.size();) {
      const size_t count = std::min<size_t>(begin < 150 ? 1 + begin % 23 : 1, tokens.size() - begin);
      const std::vector<int32_t> chunk(tokens.begin() + static_cast<ptrdiff_t>(begin),
                                       tokens.begin() + static_cast<ptrdiff_t>(begin + count));
      const Forwarded part = forward(*target, single_cache, chunk, static_cast<int>(begin), begin % 2 == 0 ? one : three, taps);
      ASSERT_EQ(
          std::memcmp(part.logits.data(), whole.logits.data() + begin * static_cast<size_t>(vocab), part.logits.size() * sizeof(float)), 0)
          << table.name << " rows " << begin << " to " << begin + count;
      ASSERT_EQ(
          std::memcmp(part.features.data(), whole.features.data() + begin * taps.size() * 576, part.features.size() * sizeof(uint16_t)), 0);
      if (begin % 5 == 0) (void)forward(*target, other_cache, {static_cast<int32_t>(begin) + 7}, other_cache.length());
      begin += count;
    }
  }
}

TEST(Llama, RefusesRowsThatHaveNoMeaning) {
  const auto target = load(Precision::kServed);
  ASSERT_NE(target, nullptr);
  KvCache cache = target->make_cache();
  ASSERT_TRUE(cache.reserve(32).ok());
  std::vector<float> logits(static_cast<size_t>(target->config().vocab));
  const int first = 0, bad_tap = 31;
  const auto attempt = [&](TargetRow row, std::span<const int> taps = {}) {
    uint16_t features[576];
    return target->forward(test_pool(), {{&row, 1}, {&first, 1}, logits.data(), taps, features});
  };
  EXPECT_TRUE(attempt({5, 0, &cache}).ok());
  EXPECT_FALSE(attempt({-1, 0, &cache}).ok());
  EXPECT_FALSE(attempt({target->config().vocab, 0, &cache}).ok());
  EXPECT_FALSE(attempt({5, -1, &cache}).ok());
  EXPECT_FALSE(attempt({5, 32, &cache}).ok());
  EXPECT_FALSE(attempt({5, target->config().context, &cache}).ok());
  EXPECT_FALSE(attempt({5, 0, &cache}, {&bad_tap, 1}).ok());
  EXPECT_FALSE(target->forward(test_pool(), {}).ok());
}

}  // namespace
}  // namespace aerie
