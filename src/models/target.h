// A target model: what the engine, the capture and the drafter's shared tables need of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "formats/boundary.h"
#include "formats/gguf.h"
#include "kernels/kernels.h"
#include "models/kv_cache.h"

namespace aerie {

struct TargetConfig {
  std::string architecture;
  std::string name;
  int blocks = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0, context = 0;
  float rope_theta = 10000.0f, rms_eps = 1e-5f;
};

/// kServed: weights as the file stores them, 12-bit activations, f16 KV. kFloat32: everything dequantised to float32, the
/// reference that the served precision is measured against.
enum class Precision { kServed, kFloat32 };

struct TargetOptions {
  Precision precision = Precision::kServed;
  const kernels::Kernels* kernels = nullptr;  // best of this machine when null
  int max_rows = 512;                         // rows that one forward may carry
  int context = 0;                            // positions of a sequence at most; 0: what the model was made for
};

/// One row of a forward: a token at a position of a sequence. The row's keys and values go into `cache` at `position`.
struct TargetRow {
  int32_t token = 0;
  int position = 0;
  KvCache* cache = nullptr;
};

/// What a forward reads and writes. Rows of one sequence stand together, in ascending order without gaps, starting at or
/// before their cache's length; caches have been reserve()d.
struct TargetBatch {
  std::span<const TargetRow> rows;  // n rows, 1 <= n <= max_rows
  std::span<const int> logit_rows;  // indices into rows
  float* logits = nullptr;          // [logit_rows.size(), vocab]; null: not wanted
  std::span<const int> taps;        // states to read, any of 0..blocks and kFinalNormed, in the order wanted
  uint16_t* features = nullptr;     // [n, taps.size() * hidden] bf16: a tap is rounded where it is read
  int32_t* best = nullptr;          // [logit_rows.size()] token of the largest logit, the first among equals, -1 if all are NaN;
                                    // null: not wanted
};

/// Thread-safety: one forward at a time. A row's results depend only on the tokens of its own sequence up to it.
class Target {
 public:
  virtual ~Target() = default;

  const TargetConfig& config() const { return config_; }
  const kernels::Kernels& kernels() const { return *kernels_; }
  Precision precision() const { return precision_; }
  int max_rows() const { return max_rows_; }
  /// Bytes of weights that a one-row forward reads, the head included and one embedding row.
  uint64_t weight_bytes() const { return weight_bytes_; }
  /// Values of these weights, the embedding row aside: a row is multiplied with each once.
  uint64_t weight_elements() const { return weight_elements_; }
  kernels::KvType kv_type() const { return precision_ == Precision::kServed ? kernels::KvType::kF16 : kernels::KvType::kF32; }

  /// An empty cache of this target's shape.
  KvCache make_cache() const { return {config_.blocks, config_.kv_heads, config_.head_dim, kv_type()}; }

  /// Boundary 0 of one token: its embedding row, [hidden] floats. `token` must be in [0, vocab). Thread-safe.
  virtual void embed(int32_t token, float* out) const = 0;

  /// logits [n, vocab] of x [n, hidden] through the output matrix, without the final norm. One call at a time, as forward().
  virtual void head(ThreadPool& pool, const float* x, int n, float* logits) = 0;

  /// Refuses (kInvalidArgument) tokens out of range, positions beyond the cache or the model's context, too many rows.
  virtual Status forward(ThreadPool& pool, const TargetBatch& batch) = 0;

 protected:
  TargetConfig config_;
  const kernels::Kernels* kernels_ = nullptr;
  Precision precision_ = Precision::kServed;
  int max_rows_ = 0;
  uint64_t weight_bytes_ = 0, weight_elements_ = 0;
};

/// Opens a target by its file's `general.architecture`; kUnsupported names the architectures that are known.
Expected<std::unique_ptr<Target>> load_target(const GgufFile& file, const TargetOptions& options, ThreadPool& pool);

}  // namespace aerie
