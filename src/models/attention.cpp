#include "models/attention.h"

#include <algorithm>
#include <array>

namespace aerie {
namespace {

// Rows that one task computes against a chunk of keys: enough to share the keys' conversion, few enough to share out.
constexpr int kRowsPerBlock = 8;
constexpr int kMaxQueries = 256;
// Partial results of a pass are kept under this many floats (16 MiB); longer batches run in several passes.
constexpr size_t kScratchFloats = 4u << 20;

}  // namespace

AttentionPlan::AttentionPlan(int heads, int kv_heads, int head_dim, kernels::KvType type)
    : heads_(heads), kv_heads_(kv_heads), head_dim_(head_dim), type_(type) {}

void AttentionPlan::plan(const AttentionRow* rows, int n) {
  visible_.clear();
  first_.clear();
  windowed_ = false;
  blocks_.clear();
  tasks_.clear();
  passes_.clear();
  const int rows_per_block = std::clamp(kMaxQueries / (heads_ / kv_heads_), 1, kRowsPerBlock);
  size_t queries = 0, most_queries = 0;
  Pass pass{0, 0, 0, 0};
  for (int row = 0; row < n;) {
    int count = 0, longest = 0, earliest = rows[row].first;
    for (; count < rows_per_block && row + count < n && rows[row + count].group == rows[row].group; ++count) {
      visible_.push_back(rows[row + count].visible);
      first_.push_back(rows[row + count].first);
      windowed_ |= rows[row + count].first > 0;
      earliest = std::min(earliest, rows[row + count].first);
      longest = std::max(longest, rows[row + count].visible);
    }
    const int first_chunk = earliest / kernels::kAttentionChunk;
    const int end_chunk = (longest + kernels::kAttentionChunk - 1) / kernels::kAttentionChunk;
    const size_t added = static_cast<size_t>((end_chunk - first_chunk) * count * heads_);
    if (queries > 0 && (queries + added) * static_cast<size_t>(head_dim_) > kScratchFloats) {
      passes_.push_back({pass.task_begin, tasks_.size(), pass.block_begin, blocks_.size()});
      pass = {tasks_.size(), 0, blocks_.size(), 0};
      queries = 0;
    }
    for (int chunk = first_chunk; chunk < end_chunk; ++chunk) {
      const int begin = chunk * kernels::kAttentionChunk;
      for (int kv_head = 0; kv_head < kv_heads_; ++kv_head) {
        tasks_.push_back({blocks_.size(), kv_head, chunk, begin, std::min(longest, begin + kernels::kAttentionChunk)});
      }
    }
    blocks_.push_back({rows[row].group, row, count, first_chunk, queries});
    queries += added;
    most_queries = std::max(most_queries, queries);
    row += count;
  }
  passes_.push_back({pass.task_begin, tasks_.size(), pass.block_begin, blocks_.size()});
  if (max_.size() < most_queries) {
    acc_.resize(most_queries * static_cast<size_t>(head_dim_));
    max_.resize(most_queries);
    sum_.resize(most_queries);
  }
}

void AttentionPlan::run(ThreadPool& pool, const kernels::Kernels& k, const float* q, size_t q_stride, const void* const* const* blocks,
                        float* out, size_t out_stride, int first_kv_head) {
  const size_t head_dim = static_cast<size_t>(head_dim_), heads = static_cast<size_t>(heads_), kv_heads = static_cast<size_t>(kv_heads_);
  const size_t group = heads / kv_heads;
  for (const Pass& pass : passes_) {
    pool.parallel_for(pass.task_end - pass.task_begin, 1, [&](size_t begin, size_t end) {
      std::array<const float*, kMaxQueries> queries;
      std::array<int, kMaxQueries> visible, seen_from;
      for (size_t t = pass.task_begin + begin; t < pass.task_begin + end; ++t) {
        const Task& task = tasks_[t];
        const RowBlock& block = blocks_[task.block];
        const size_t rows = static_cast<size_t>(block.rows), kv_head = static_cast<size_t>(task.kv_head);
        for (size_t r = 0; r < rows; ++r) {
          const size_t row = static_cast<size_t>(block.row) + r;
          for (size_t g = 0; g < group; ++g) {
            queries[r * group + g] = q + row * q_stride + (kv_head * group + g) * head_dim;
            visible[r * group + g] = visible_[row];
            seen_from[r * group + g] = first_[row];
          }
        }
        const size_t first = block.first_query + (static_cast<size_t>(task.chunk - block.first_chunk) * kv_heads + kv_head) * rows * group;
        k.attend_chunk({type_, blocks[block.group], first_kv_head + task.kv_head, head_dim_, task.begin, task.end,
                        static_cast<int>(rows * group), queries.data(), visible.data(), windowed_ ? seen_from.data() : nullptr,
                        acc_.data() + first * head_dim, max_.data() + first, sum_.data() + first});
      }
    });
    pool.parallel_for(pass.block_end - pass.block_begin, 1, [&](size_t begin, size_t end) {
      for (size_t b = pass.block_begin + begin; b < pass.block_begin + end; ++b) {
        const RowBlock& block = blocks_[b];
        const size_t rows = static_cast<size_t>(block.rows), chunk_queries = heads * rows;
        for (size_t r = 0; r < rows; ++r) {
          const size_t row = static_cast<size_t>(block.row) + r;
          // Positions count from the block's first chunk, whose results are the first.
          const int visible = visible_[row] - block.first_chunk * kernels::kAttentionChunk;
          const int chunks = (visible + kernels::kAttentionChunk - 1) / kernels::kAttentionChunk;
          for (size_t h = 0; h < heads; ++h) {
            const size_t first = block.first_query + (h / group * rows + r) * group + h % group;
            kernels::merge_chunks(chunks, visible, head_dim_, acc_.data() + first * head_dim, chunk_queries * head_dim, max_.data() + first,
                                  sum_.data() + first, chunk_queries, out + row * out_stride + h * head_dim);
          }
        }
      }
    });
  }
}

}  // namespace aerie
