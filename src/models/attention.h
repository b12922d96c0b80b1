// Attention of a batch over paged KV caches: cuts the work into tasks that depend on lengths alone and merges their results.
#pragma once

#include <cstddef>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace aerie {

/// One row's view of a cache: its blocks in some layer and the positions [first, visible) that it sees (its own is the last).
struct AttentionRow {
  int group = 0;  // rows with one group id stand together and share one cache
  int visible = 0;
  int first = 0;  // more than 0 where a sliding window hides the positions before
};

/// Plans once per forward, runs once per layer. Scratch grows to what the largest plan needs and is then reused.
class AttentionPlan {
 public:
  AttentionPlan(int heads, int kv_heads, int head_dim, kernels::KvType type);

  void plan(const AttentionRow* rows, int n);

  /// q [n, heads*head_dim] already scaled, rows q_stride apart; blocks[group] are the layer's KV blocks of each group's cache, in
  /// which its heads begin with `first_kv_head`. out [n, heads*head_dim], rows out_stride apart.
  void run(ThreadPool& pool, const kernels::Kernels& k, const float* q, size_t q_stride, const void* const* const* blocks, float* out,
           size_t out_stride, int first_kv_head = 0);

 private:
  // Rows of one cache that are computed together: each chunk of keys is read once for all of them and their grouped heads.
  struct RowBlock {
    int group, row, rows;
    int first_chunk;     // the chunks before it are seen by none of the rows
    size_t first_query;  // its partial results in the scratch: [chunk][kv_head][row][heads / kv_heads]
  };
  struct Task {
    size_t block;
    int kv_head, chunk;
    int begin, end;  // positions
  };
  struct Pass {  // as many tasks as the scratch holds the results of
    size_t task_begin, task_end, block_begin, block_end;
  };
  int heads_, kv_heads_, head_dim_;
  kernels::KvType type_;
  std::vector<int> visible_, first_;  // by row
  bool windowed_ = false;             // some row has a `first`
  std::vector<RowBlock> blocks_;
  std::vector<Task> tasks_;
  std::vector<Pass> passes_;
  std::vector<float> acc_, max_, sum_;  // [query](x head_dim) partial results
};

}  // namespace aerie
