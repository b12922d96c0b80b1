// A drafter that is ready to draft on the CPU. Serving and replay both use this class, so that what is evaluated is what is served.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "eagle3/checkpoint.h"
#include "eagle3/cpu_ops.h"
#include "eagle3/draft_kv.h"
#include "eagle3/draft_spec.h"
#include "eagle3/draft_step.h"

namespace aerie {

/// What a drafter borrows from its target, and the sizes that it must fit.
struct TargetTables {
  int hidden = 0, vocab = 0, blocks = 0;
  /// Writes the target's embedding of a token [hidden]; needed only where the drafter has no embedding of its own.
  std::function<void(int32_t token, float* out)> embed;
  /// logits [n, vocab] of x [n, hidden] through the target's output matrix; needed only where the drafter has no head of its own.
  std::function<void(const float* x, int n, float* logits)> head;
};

enum class DraftPrecision {
  kServed,   // matrices in 8 bits with a scale per 32 columns, times 12-bit activations; of other widths in bf16. What the engine
             // runs, and what a trainer must validate with. The embedding is rounded to bf16.
  kFloat32,  // weights as stored in the checkpoint: for comparing with other implementations
};

/// One row of a step. It consumes `token` with the h that stands at the same index of the step's input.
struct DraftRow {
  int32_t token = 0;      // step 0: the token after the feature's position; in [0, V)
  int position = 0;       // RoPE position, >= 0
  DraftKv* kv = nullptr;  // the row's sequence: the row is appended to it and sees all of it, itself included
};

/// Results of a step, one row for each row given. Reuse the object: its memory is kept.
struct DraftStates {
  std::vector<float> head_input;  // [n, H] what logits() and argmax() take
  std::vector<float> feedback;    // [n, H] the h of the next step
};

/// Immutable after creation and thread-safe, each thread with its own CpuOps. Every result row has the same bytes whatever other
/// rows stand in the call and however many threads work.
class Drafter {
 public:
  /// Refuses a checkpoint that does not fit the target; the error names both sizes.
  static Expected<Drafter> create(const DraftCheckpoint& checkpoint, TargetTables target,
                                  DraftPrecision precision = DraftPrecision::kServed);

  /// The same weights under another reading of the checkpoint (other taps, flags, RoPE, d2t): they are shared, not copied.
  /// kInvalidArgument names a weight that `spec` calls for and this drafter has not, or has in another shape.
  Expected<Drafter> read_as(const DraftSpec& spec) const;

  const DraftSpec& spec() const { return spec_; }
  DraftPrecision precision() const { return precision_; }
  /// Bytes of the weights that one step reads, the head included.
  size_t step_bytes() const;

  DraftKv new_kv(kernels::KvType type = kernels::KvType::kF32) const { return {type, spec_.layers, spec_.kv_heads, kv_dim_}; }

  /// Step 0: h = fc(feature). features: bf16 [n, k*Ht], as captured. Rows that share a kv are appended in the order given.
  void step0(CpuOps& ops, std::span<const DraftRow> rows, const uint16_t* features, DraftStates& out) const;
  /// The same with features of float32, for comparing with implementations that do not round them.
  void step0(CpuOps& ops, std::span<const DraftRow> rows, const float* features, DraftStates& out) const;
  /// A later step: h [n, H] is the feedback of the step before (it may lie in `out.feedback`).
  void step(CpuOps& ops, std::span<const DraftRow> rows, const float* h, DraftStates& out) const;

  /// logits [n, Vd] of head_input [n, H].
  void logits(CpuOps& ops, const float* head_input, int n, float* out) const;
  /// The target id of each row's best draft token (the lowest draft id among equals), or -1 where all logits are NaN.
  void argmax(CpuOps& ops, const float* head_input, int n, int32_t* target_ids) const;

 private:
  Drafter() = default;
  static Status check(const DraftSpec& spec, const TargetTables& target);
  CpuTensor embed(CpuOps& ops, std::span<const DraftRow> rows) const;
  CpuTensor head(CpuOps& ops, const float* head_input, int n) const;
  template <class Feature, class ToFloat>
  void first_step(CpuOps& ops, std::span<const DraftRow> rows, const Feature* features, ToFloat to_float, DraftStates& out) const;
  void run(CpuOps& ops, std::span<const DraftRow> rows, CpuTensor h, DraftStates& out) const;

  DraftSpec spec_;
  int kv_dim_ = 0;  // width of a head in the cache: keys and values padded to what the kernels take
  DraftPrecision precision_ = DraftPrecision::kServed;
  TargetTables target_;
  struct Weights {
    DraftWeights<CpuOps> forward;
    std::vector<uint16_t> embedding_bf16;  // [V, H], kServed
    std::vector<float> embedding_f32;      // [V, H], kFloat32
  };
  std::shared_ptr<const Weights> weights_;
};

}  // namespace aerie
