// Attention chunks: against the reference, visibility, grouping, merging, and rows that hold NaN.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernel_fixture.h"

namespace aerie::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A KV cache of one layer. Blocks start filled with NaN, as recycled memory may be.
class Cache {
 public:
  Cache(const Cache&) = delete;
  Cache(KvType type, int kv_heads, int head_dim, int length, Random& random) : type_(type), kv_heads_(kv_heads), head_dim_(head_dim) {
    const size_t bytes = kv_block_elements(kv_heads, head_dim) * (type == KvType::kF16 ? 2 : 4);
    for (int b = 0; b * kKvBlock < length; ++b) {
      memory_.emplace_back(bytes, uint8_t{0xff});
      blocks_.push_back(memory_.back().data());
    }
    for (int p = 0; p < length; ++p) {
      keys_.push_back(random.normals(static_cast<size_t>(kv_heads) * head_dim));
      values_.push_back(random.normals(static_cast<size_t>(kv_heads) * head_dim));
      store(p);
    }
  }
  /// Positions of another cache, in this order.
  Cache(const Cache& other, const std::vector<int>& positions)
      : type_(other.type_), kv_heads_(other.kv_heads_), head_dim_(other.head_dim_) {
    for (size_t p = 0; p < positions.size(); ++p) {
      if (p % kKvBlock == 0) {
        memory_.emplace_back(other.memory_[0].size(), uint8_t{0xff});
        blocks_.push_back(memory_.back().data());
      }
      keys_.push_back(other.keys_[static_cast<size_t>(positions[p])]);
      values_.push_back(other.values_[static_cast<size_t>(positions[p])]);
      store(static_cast<int>(p));
    }
  }
  void poison(int position) {
    for (float& v : keys_[position]) v = kNan;
    for (float& v : values_[position]) v = kNan;
    store(position);
  }
  const void* const* blocks() const { return blocks_.data(); }
  KvType type() const { return type_; }
  int kv_heads() const { return kv_heads_; }
  int head_dim() const { return head_dim_; }
  int length() const { return static_cast<int>(keys_.size()); }
  const float* key(int p, int head) const { return keys_[p].data() + static_cast<size_t>(head) * head_dim_; }
  const float* value(int p, int head) const { return values_[p].data() + static_cast<size_t>(head) * head_dim_; }

 private:
  void store(int p) { store_kv(type_, memory_[p / kKvBlock].data(), p, kv_heads_, head_dim_, keys_[p].data(), values_[p].data()); }
  KvType type_;
  int kv_heads_, head_dim_;
  std::vector<std::vector<uint8_t>> memory_;
  std::vector<const void*> blocks_;
  std::vector<std::vector<float>> keys_, values_;
};

struct ChunkResult {
  std::vector<float> acc, max, sum;
};

ChunkResult attend(const Kernels& kernels, const Cache& cache, int kv_head, int begin, int end,
                   const std::vector<std::vector<float>>& queries, const std::vector<int>& visible, const std::vector<int>& seen_from = {},
                   const std::vector<uint64_t>& ancestors = {}, int tail = 0) {
  const int n = static_cast<int>(queries.size());
  std::vector<const float*> q;
  for (const auto& query : queries) q.push_back(query.data());
  ChunkResult r{std::vector<float>(static_cast<size_t>(n) * cache.head_dim(), -7.0f), std::vector<float>(n, -7.0f),
                std::vector<float>(n, -7.0f)};
  AttendChunk chunk;
  chunk.type = cache.type();
  chunk.blocks = cache.blocks();
  chunk.kv_head = kv_head;
  chunk.head_dim = cache.head_dim();
  chunk.begin = begin;
  chunk.end = end;
  chunk.n = n;
  chunk.q = q.data();
  chunk.visible = visible.data();
  chunk.first = seen_from.empty() ? nullptr : seen_from.data();
  chunk.ancestors = ancestors.empty() ? nullptr : ancestors.data();
  chunk.tail = tail;
  chunk.acc = r.acc.data();
  chunk.max = r.max.data();
  chunk.sum = r.sum.data();
  kernels.attend_chunk(chunk);
  return r;
}

std::vector<std::vector<float>> random_queries(Random& random, int n, int head_dim) {
  std::vector<std::vector<float>> queries;
  for (int i = 0; i < n; ++i) queries.push_back(random.normals(head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim))));
  return queries;
}

TEST(Attention, UnitsAgreeWithTheReference) {
  Random random(11);
  for (KvType type : {KvType::kF16, KvType::kF32}) {
    for (int head_dim : {8, 24, 64, 72, 128}) {
      const int length = 200, n = 13;
      const Cache cache(type, 2, head_dim, length, random);
      const auto queries = random_queries(random, n, head_dim);
      std::vector<int> visible;
      for (int i = 0; i < n; ++i) visible.push_back(random.integer(1, length));
      visible[3] = 0;
      visible[4] = 128;
      visible[5] = 129;
      std::vector<int> seen_from;
      for (int i = 0; i < n; ++i) seen_from.push_back(i < 6 ? 0 : random.integer(0, visible[i] - 1));
      for (int begin : {0, 128}) {
        const int end = std::min(begin + kAttentionChunk, length);
        const ChunkResult expected = attend(table(Isa::kScalar), cache, 1, begin, end, queries, visible, seen_from);
        for (Isa isa : vector_isas()) {
          const ChunkResult actual = attend(table(isa), cache, 1, begin, end, queries, visible, seen_from);
          for (int i = 0; i < n; ++i) {
            // Scores are sums of head_dim terms of size about 1/sqrt(head_dim): 1e-5 covers their rounding; it passes through
            // exp as a relative error of the numerators.
            if (expected.sum[i] == 0.0f) {
              EXPECT_EQ(actual.max[i], -std::numeric_limits<float>::infinity());
              EXPECT_EQ(actual.sum[i], 0.0f);
            } else {
              EXPECT_NEAR(actual.max[i], expected.max[i], 1e-5f);
              EXPECT_NEAR(actual.sum[i], expected.sum[i], 2e-5f * expected.sum[i]);
            }
            for (int d = 0; d < head_dim; ++d) {
              const size_t at = static_cast<size_t>(i) * head_dim + d;
              EXPECT_NEAR(actual.acc[at], expected.acc[at], 5e-5f * expected.sum[i]) << table(isa).name << " " << i << " " << d;
            }
          }
        }
      }
    }
  }
}

TEST(Attention, MergedChunksAreSoftmaxAttention) {
  Random random(12);
  const int head_dim = 64, length = 300, n = 4;
  const Cache cache(KvType::kF32, 1, head_dim, length, random);
  auto queries = random_queries(random, n, head_dim);
  for (float& v : queries[1]) v *= 40.0f;  // a sharp softmax, whose chunks have very different maxima
  const std::vector<int> visible = {300, 290, 128, 5};
  for (Isa isa : available_isas()) {
    std::vector<ChunkResult> chunks;
    for (int begin = 0; begin < length; begin += kAttentionChunk) {
      chunks.push_back(attend(table(isa), cache, 0, begin, std::min(begin + kAttentionChunk, length), queries, visible));
    }
    for (int i = 0; i < n; ++i) {
      std::vector<double> expected(head_dim, 0.0), scores;
      double top = -1e300, total = 0;
      for (int p = 0; p < visible[i]; ++p) {
        double score = 0;
        for (int d = 0; d < head_dim; ++d) score += static_cast<double>(queries[i][d]) * cache.key(p, 0)[d];
        scores.push_back(score);
        top = std::max(top, score);
      }
      for (int p = 0; p < visible[i]; ++p) {
        const double weight = std::exp(scores[p] - top);
        total += weight;
        for (int d = 0; d < head_dim; ++d) expected[d] += weight * cache.value(p, 0)[d];
      }
      std::vector<float> acc, max, sum, out(head_dim);
      for (const ChunkResult& c : chunks) {
        acc.insert(acc.end(), c.acc.begin() + static_cast<ptrdiff_t>(i) * head_dim,
                   c.acc.begin() + static_cast<ptrdiff_t>(i + 1) * head_dim);
        max.push_back(c.max[i]);
        sum.push_back(c.sum[i]);
      }
      merge_chunks(static_cast<int>(chunks.size()), visible[i], head_dim, acc.data(), head_dim, max.data(), sum.data(), 1, out.data());
      for (int d = 0; d < head_dim; ++d) EXPECT_NEAR(out[d], expected[d] / total, 5e-5) << table(isa).name << " query " << i;
      // Chunks beyond what is visible are not even read.
      for (size_t c = 1; c < chunks.size(); ++c) {
        if (static_cast<int>(c) * kAttentionChunk < visible[i]) continue;
        max[c] = kNan;
        std::vector<float> again(head_dim);
        merge_chunks(static_cast<int>(chunks.size()), visible[i], head_dim, acc.data(), head_dim, max.data(), sum.data(), 1, again.data());
        EXPECT_TRUE(same_bytes(out.data(), again.data(), head_dim));
      }
    }
  }
}

TEST(Attention, AQuerysBytesDoNotDependOnItsCompany) {
  Random random(13);
  for (KvType type : {KvType::kF16, KvType::kF32}) {
    for (int head_dim : {8, 64, 96}) {
      const int length = 150;
      const Cache cache(type, 2, head_dim, length, random);
      for (Isa isa : available_isas()) {
        for (int n = 1; n <= 26; ++n) {
          const auto queries = random_queries(random, n, head_dim);
          std::vector<int> visible;
          for (int i = 0; i < n; ++i) visible.push_back(n % 2 == 0 ? random.integer(0, length) : length - n + i + 1);
          // Every third call is windowed: at random, or alike as the rows of one sequence are, so far apart that rows share nothing.
          std::vector<int> seen_from(static_cast<size_t>(n), 0);
          const int window = random.integer(1, 40);
          for (int i = 0; i < n && n % 3 == 0; ++i) {
            seen_from[i] = n % 2 == 0 ? random.integer(0, std::max(0, visible[i] - 1)) : std::max(0, visible[i] - window);
          }
          for (int begin : {0, 128}) {
            const int end = std::min(begin + kAttentionChunk, length);
            const ChunkResult together = attend(table(isa), cache, 0, begin, end, queries, visible, seen_from);
            for (int i = 0; i < n; ++i) {
              // Alone, and with the cache ending where the query's sight ends: a longer cache changes nothing either.
              const int alone_end = std::max(begin, std::min(end, visible[i]));
              const ChunkResult alone = attend(table(isa), cache, 0, begin, alone_end, {queries[i]}, {visible[i]}, {seen_from[i]});
              ASSERT_TRUE(same_bytes(alone.acc.data(), together.acc.data() + static_cast<size_t>(i) * head_dim, head_dim))
                  << table(isa).name << " n " << n << " query " << i << " begin " << begin;
              ASSERT_TRUE(same_bytes(alone.max.data(), together.max.data() + i, 1));
              ASSERT_TRUE(same_bytes(alone.sum.data(), together.sum.data() + i, 1));
            }
          }
        }
      }
    }
  }
}

/// A tree behind `tail`: node j at position tail + j, `parents` earlier nodes or -1. The ancestor words, each node's own bit included.
std::vector<uint64_t> ancestor_words(const std::vector<int>& parents) {
  std::vector<uint64_t> words;
  for (size_t j = 0; j < parents.size(); ++j)
    words.push_back((parents[j] < 0 ? 0 : words[static_cast<size_t>(parents[j])]) | uint64_t{1} << j);
  return words;
}

TEST(Attention, ARowOfATreeHasTheBytesOfItsBranchAlone) {
  Random random(17);
  for (KvType type : {KvType::kF16, KvType::kF32}) {
    for (const int head_dim : {8, 64, 72}) {
      for (const int tail : {0, 5, 100, 120, 127, 128, 130}) {
        for (const int nodes : {1, 2, 7, 33, 64}) {
          std::vector<int> parents;
          for (int j = 0; j < nodes; ++j) parents.push_back(random.integer(-1, j - 1));
          const std::vector<uint64_t> words = ancestor_words(parents);
          Cache tree(type, 2, head_dim, tail + nodes, random);
          const auto queries = random_queries(random, nodes, head_dim);
          std::vector<int> visible, seen_from;
          for (int j = 0; j < nodes; ++j) {
            visible.push_back(tail + std::popcount(words[static_cast<size_t>(j)]));
            seen_from.push_back(nodes == 7 ? random.integer(0, visible.back() - 1) : 0);
          }
          const int longest = *std::max_element(visible.begin(), visible.end());
          for (int j = 0; j < nodes; ++j) {
            std::vector<int> branch(static_cast<size_t>(tail));
            std::iota(branch.begin(), branch.end(), 0);
            for (int b = 0; b <= j; ++b) {
              if (words[static_cast<size_t>(j)] >> b & 1) branch.push_back(tail + b);
            }
            const Cache chain(tree, branch);
            for (const Isa isa : available_isas()) {
              for (int begin = 0; begin < longest; begin += kAttentionChunk) {
                const int end = std::min(begin + kAttentionChunk, longest);
                const ChunkResult all = attend(table(isa), tree, 1, begin, end, queries, visible, seen_from, words, tail);
                const ChunkResult alone =
                    attend(table(isa), chain, 1, begin, std::clamp(visible[j], begin, end), {queries[j]}, {visible[j]}, {seen_from[j]});
                ASSERT_TRUE(same_bytes(alone.acc.data(), all.acc.data() + static_cast<size_t>(j) * head_dim, head_dim))
                    << table(isa).name << " tail " << tail << " node " << j << " of " << nodes << " begin " << begin;
                ASSERT_TRUE(same_bytes(alone.max.data(), all.max.data() + j, 1));
                ASSERT_TRUE(same_bytes(alone.sum.data(), all.sum.data() + j, 1));
              }
            }
          }
        }
      }
    }
  }
}

TEST(Attention, NanOfAnotherBranchNeverReachesAResult) {
  Random random(18);
  const int head_dim = 64, tail = 20;
  const std::vector<uint64_t> words = ancestor_words({-1, 0, 0, 1, 2, -1});
  for (KvType type : {KvType::kF16, KvType::kF32}) {
    const auto queries = random_queries(random, 6, head_dim);
    const std::vector<int> visible = {21, 22, 22, 23, 23, 21};
    for (Isa isa : available_isas()) {
      Cache cache(type, 1, head_dim, tail + 6, random);
      cache.poison(tail + 2);
      const ChunkResult result = attend(table(isa), cache, 0, 0, 23, queries, visible, {}, words, tail);
      for (int i = 0; i < 6; ++i) EXPECT_EQ(std::isnan(result.sum[i]), i == 2 || i == 4) << table(isa).name << " query " << i;
    }
  }
}

TEST(Attention, UnseenNanNeverReachesAResult) {
  Random random(14);
  const int head_dim = 64, length = 40, n = 5;
  for (KvType type : {KvType::kF16, KvType::kF32}) {
    const auto queries = random_queries(random, n, head_dim);
    const std::vector<int> visible = {35, 36, 37, 38, 37};
    for (Isa isa : available_isas()) {
      Cache cache(type, 1, head_dim, length, random);
      const ChunkResult good = attend(table(isa), cache, 0, 0, length, queries, visible);
      cache.poison(37);
      const ChunkResult bad = attend(table(isa), cache, 0, 0, length, queries, visible);
      for (int i = 0; i < n; ++i) {
        const bool sees_it = visible[i] > 37;
        EXPECT_EQ(
            same_bytes(good.acc.data() + static_cast<size_t>(i) * head_dim, bad.acc.data() + static_cast<size_t>(i) * head_dim, head_dim),
            !sees_it)
            << table(isa).name << " query " << i;
        EXPECT_EQ(std::isnan(bad.sum[i]), sees_it);
      }
    }
  }
}

TEST(Attention, NanBeforeTheWindowNeverReachesAResult) {
  Random random(15);
  const int head_dim = 24, length = 60, n = 5;
  for (KvType type : {KvType::kF16, KvType::kF32}) {
    const auto queries = random_queries(random, n, head_dim);
    const std::vector<int> visible = {60, 59, 20, 35, 60}, seen_from = {21, 20, 0, 19, 59};
    for (Isa isa : available_isas()) {
      Cache cache(type, 1, head_dim, length, random);
      const ChunkResult good = attend(table(isa), cache, 0, 0, length, queries, visible, seen_from);
      cache.poison(20);
      const ChunkResult bad = attend(table(isa), cache, 0, 0, length, queries, visible, seen_from);
      for (int i = 0; i < n; ++i) {
        const bool sees_it = seen_from[i] <= 20 && 20 < visible[i];
        const size_t at = static_cast<size_t>(i) * head_dim;
        EXPECT_EQ(same_bytes(good.acc.data() + at, bad.acc.data() + at, head_dim), !sees_it) << table(isa).name << " query " << i;
        EXPECT_EQ(std::isnan(bad.sum[i]), sees_it);
      }
    }
  }
}

TEST(Attention, AWindowIsACacheThatBeginsThere) {
  Random random(16);
  const int head_dim = 16, length = 48, n = 3, hidden = 16;  // a whole block, so that the shorter cache has the same alignment
  const Cache cache(KvType::kF32, 1, head_dim, length, random);
  const auto queries = random_queries(random, n, head_dim);
  for (Isa isa : available_isas()) {
    const ChunkResult windowed = attend(table(isa), cache, 0, 0, length, queries, {48, 40, 33}, {hidden, hidden, hidden});
    std::vector<const float*> q;
    for (const auto& query : queries) q.push_back(query.data());
    const std::vector<int> visible = {32, 24, 17};
    ChunkResult shorter = windowed;
    AttendChunk chunk{
        KvType::kF32,       cache.blocks() + 1, 0, head_dim, 0, length - hidden, n, q.data(), visible.data(), nullptr, shorter.acc.data(),
        shorter.max.data(), shorter.sum.data()};
    table(isa).attend_chunk(chunk);
    EXPECT_EQ(windowed.max, shorter.max) << table(isa).name;
    for (size_t i = 0; i < windowed.acc.size(); ++i) EXPECT_NEAR(windowed.acc[i], shorter.acc[i], 1e-6) << table(isa).name << " " << i;
  }
}

TEST(Attention, StoreKvClampsToHalfRangeAndKeepsNan) {
  const int head_dim = 8;
  std::vector<uint16_t> block(kv_block_elements(1, head_dim), 0);
  const float k[head_dim] = {1e6f, -1e6f, std::numeric_limits<float>::infinity(), kNan, 0.1f, 65519.0f, 0.0f, -0.0f};
  store_kv(KvType::kF16, block.data(), 21, 1, head_dim, k, k);
  const float expected[head_dim] = {65504.0f, -65504.0f, 65504.0f, kNan, 0.0999755859375f, 65504.0f, 0.0f, -0.0f};
  for (int d = 0; d < head_dim; ++d) {
    const float key = half_to_float(block[static_cast<size_t>(d) * kKvBlock + 5]);
    const float value = half_to_float(block[static_cast<size_t>(head_dim) * kKvBlock + 5 * head_dim + d]);
    if (std::isnan(expected[d])) {
      EXPECT_TRUE(std::isnan(key) && std::isnan(value));
    } else {
      EXPECT_EQ(key, expected[d]);
      EXPECT_EQ(value, expected[d]);
      EXPECT_EQ(std::signbit(key), std::signbit(expected[d]));
    }
  }
}

TEST(RopeAngles, FollowFloat32Formulas) {
  const int head_dim = 64;
  float cos[32], sin[32];
  for (int position : {0, 1, 77, 2047, 100000}) {
    rope_angles(position, head_dim, 1e5f, cos, sin);
    for (int j = 0; j < head_dim / 2; ++j) {
      const float inverse = 1.0f / static_cast<float>(std::pow(1e5, 2.0 * j / head_dim));
      const float angle = static_cast<float>(position) * inverse;
      // One unit in the last place of the angle at most.
      EXPECT_NEAR(cos[j], std::cos(static_cast<double>(angle)), 2e-7 * (1 + angle));
      EXPECT_NEAR(sin[j], std::sin(static_cast<double>(angle)), 2e-7 * (1 + angle));
    }
  }
}

}  // namespace
}  // namespace aerie::kernels
