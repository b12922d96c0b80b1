// The Llama architecture (GGUF `llama`): pre-norm blocks, grouped-query attention with RoPE, SwiGLU, optionally a tied head.
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/log.h"
#include "models/attention.h"
#include "models/linear.h"
#include "models/registry.h"
#include "models/target.h"

namespace aerie {
namespace {

using kernels::PackedMatrix;

struct Block {
  std::vector<float> attn_norm, ffn_norm;  // [H]
  PackedMatrix q, k, v;                    // [heads*hd | kv_heads*hd, H]
  PackedMatrix o;                          // [H, heads*hd]
  PackedMatrix gate, up;                   // [I, H]
  PackedMatrix down;                       // [H, I]
};

/// GGUF stores the query and key rows of a head so that RoPE pairs are neighbours; the kernels pair j with j + head_dim/2.
int half_split_order(int row, int head_dim) {
  const int head = row / head_dim, in_head = row % head_dim;
  return head * head_dim + (in_head % 2) * (head_dim / 2) + in_head / 2;
}

class Llama final : public Target {
 public:
  static Expected<std::unique_ptr<Target>> load(const GgufFile& file, const TargetOptions& options, ThreadPool& pool);

  void embed(int32_t token, float* out) const override;
  void head(ThreadPool& pool, const float* x, int n, float* logits) override;
  Status forward(ThreadPool& pool, const TargetBatch& batch) override;

 private:
  struct Workspace {
    Workspace(const TargetConfig& c, kernels::KvType kv, int max_rows, int max_logit_rows)
        : normed(max_rows, c.hidden),
          attended(max_rows, c.heads * c.head_dim),
          gated(max_rows, c.intermediate),
          head(max_logit_rows, c.hidden),
          x(size(max_rows, c.hidden)),
          y(size(max_rows, c.hidden)),
          q(size(max_rows, c.heads * c.head_dim)),
          k(size(max_rows, c.kv_heads * c.head_dim)),
          v(k.size()),
          up(size(max_rows, c.intermediate)),
          cos(size(max_rows, c.head_dim / 2)),
          sin(cos.size()),
          plan(c.heads, c.kv_heads, c.head_dim, kv) {}
    static size_t size(int rows, int width) { return static_cast<size_t>(rows) * static_cast<size_t>(width); }
    Activations normed, attended, gated, head;
    std::vector<float> x, y, q, k, v, up, cos, sin;
    AttentionPlan plan;
    std::vector<AttentionRow> rows;
    std::vector<KvCache*> caches;               // by group
    std::vector<const void* const*> kv_blocks;  // by group, of the current layer
  };

  Status load_weights(const GgufFile& file, ThreadPool& pool);
  Status check(const TargetBatch& batch) const;
  void plan_rows(const TargetBatch& batch);
  void read_taps(const TargetBatch& batch, int boundary) const;
  void round_head_input(int n);
  void run_head(ThreadPool& pool, int n, float* logits);
  void store_rows(ThreadPool& pool, const TargetBatch& batch, int layer);

  TensorView embedding_;  // [V, H] as in the file, which the caller keeps open
  std::vector<Block> blocks_;
  std::vector<float> output_norm_;  // [H]
  PackedMatrix head_;               // [V, H]
  std::unique_ptr<Workspace> work_;
};

Status Llama::forward(ThreadPool& pool, const TargetBatch& batch) {
  AERIE_TRY(check(batch));
  Workspace& w = *work_;
  const auto& c = config_;
  const kernels::Kernels& kern = *kernels_;
  const int n = static_cast<int>(batch.rows.size());
  const size_t hidden = static_cast<size_t>(c.hidden), q_width = static_cast<size_t>(c.heads * c.head_dim),
               kv_width = static_cast<size_t>(c.kv_heads * c.head_dim), inter = static_cast<size_t>(c.intermediate);
  // Row-wise work is shared out only when there is enough of it to pay for waking a thread.
  const auto for_rows = [&](auto&& body) {
    pool.parallel_for(static_cast<size_t>(n), 4, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) body(r);
    });
  };

  plan_rows(batch);
  for_rows([&](size_t r) {
    embed(batch.rows[r].token, w.x.data() + r * hidden);
    kernels::rope_angles(batch.rows[r].position, c.head_dim, c.rope_theta, w.cos.data() + r * static_cast<size_t>(c.head_dim / 2),
                         w.sin.data() + r * static_cast<size_t>(c.head_dim / 2));
  });
  read_taps(batch, 0);

  for (int layer = 0; layer < c.blocks; ++layer) {
    const Block& b = blocks_[static_cast<size_t>(layer)];

    for_rows([&](size_t r) {
      kern.rms_norm(w.x.data() + r * hidden, b.attn_norm.data(), c.rms_eps, c.hidden, w.normed.row(static_cast<int>(r)));
      if (is_quantized(b.q)) w.normed.quantize_row(kern, static_cast<int>(r));
    });
    const LinearTask qkv[] = {{&b.q, w.q.data(), q_width}, {&b.k, w.k.data(), kv_width}, {&b.v, w.v.data(), kv_width}};
    run_linear(pool, kern, qkv, w.normed.input(), n);
    store_rows(pool, batch, layer);
    w.plan.run(pool, kern, w.q.data(), q_width, w.kv_blocks.data(), w.attended.data(), w.attended.stride());
    if (is_quantized(b.o)) for_rows([&](size_t r) { w.attended.quantize_row(kern, static_cast<int>(r)); });
    const LinearTask o[] = {{&b.o, w.y.data(), hidden}};
    run_linear(pool, kern, o, w.attended.input(), n);

    for_rows([&](size_t r) {
      kern.add(w.y.data() + r * hidden, c.hidden, w.x.data() + r * hidden);
      kern.rms_norm(w.x.data() + r * hidden, b.ffn_norm.data(), c.rms_eps, c.hidden, w.normed.row(static_cast<int>(r)));
      if (is_quantized(b.gate)) w.normed.quantize_row(kern, static_cast<int>(r));
    });
    const LinearTask gate_up[] = {{&b.gate, w.gated.data(), inter}, {&b.up, w.up.data(), inter}};
    run_linear(pool, kern, gate_up, w.normed.input(), n);
    for_rows([&](size_t r) {
      float* gate = w.gated.row(static_cast<int>(r));
      kern.silu_mul(gate, w.up.data() + r * inter, c.intermediate, gate);
      if (is_quantized(b.down)) w.gated.quantize_row(kern, static_cast<int>(r));
    });
    const LinearTask down[] = {{&b.down, w.y.data(), hidden}};
    run_linear(pool, kern, down, w.gated.input(), n);
    for_rows([&](size_t r) { kern.add(w.y.data() + r * hidden, c.hidden, w.x.data() + r * hidden); });
    read_taps(batch, layer + 1);
  }

  read_taps(batch, kFinalNormed);

  const int n_logits = static_cast<int>(batch.logit_rows.size());
  for (int i = 0; i < n_logits; ++i) {
    const size_t r = static_cast<size_t>(batch.logit_rows[static_cast<size_t>(i)]);
    kern.rms_norm(w.x.data() + r * hidden, output_norm_.data(), c.rms_eps, c.hidden, w.head.row(i));
  }
  if (n_logits > 0) {
    round_head_input(n_logits);
    if (batch.logits != nullptr) run_head(pool, n_logits, batch.logits);
    if (batch.best != nullptr) run_argmax(pool, kern, head_, w.head.input(), n_logits, batch.best);
  }
  for (const TargetRow& row : batch.rows) row.cache->set_length(row.position + 1);
  return {};
}

/// Rotates and scales q, rotates k, and stores k and v where attention reads them.
void Llama::store_rows(ThreadPool& pool, const TargetBatch& batch, int layer) {
  Workspace& w = *work_;
  const auto& c = config_;
  const size_t q_width = static_cast<size_t>(c.heads * c.head_dim), kv_width = static_cast<size_t>(c.kv_heads * c.head_dim);
  const size_t half = static_cast<size_t>(c.head_dim / 2);
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  pool.parallel_for(batch.rows.size(), 4, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      float* q = w.q.data() + r * q_width;
      float* k = w.k.data() + r * kv_width;
      kernels_->rope(q, c.heads, c.head_dim, w.cos.data() + r * half, w.sin.data() + r * half);
      kernels_->rope(k, c.kv_heads, c.head_dim, w.cos.data() + r * half, w.sin.data() + r * half);
      for (size_t i = 0; i < q_width; ++i) q[i] *= scale;
      const TargetRow& row = batch.rows[r];
      kernels::store_kv(kv_type(), row.cache->block(layer, row.position), row.position % kernels::kKvBlock, c.kv_heads, c.head_dim, k,
                        w.v.data() + r * kv_width);
    }
  });
  for (size_t g = 0; g < w.caches.size(); ++g) w.kv_blocks[g] = w.caches[g]->blocks(layer);
}

void Llama::plan_rows(const TargetBatch& batch) {
  Workspace& w = *work_;
  w.rows.clear();
  w.caches.clear();
  for (const TargetRow& row : batch.rows) {
    if (w.caches.empty() || w.caches.back() != row.cache) w.caches.push_back(row.cache);
    w.rows.push_back({static_cast<int>(w.caches.size()) - 1, row.position + 1});
  }
  w.kv_blocks.resize(w.caches.size());
  w.plan.plan(w.rows.data(), static_cast<int>(w.rows.size()));
}

void Llama::round_head_input(int n) {
  for (int i = 0; i < n && is_quantized(head_); ++i) work_->head.quantize_row(*kernels_, i);
}

/// logits of the first n rows of the workspace's head input, which have been rounded.
void Llama::run_head(ThreadPool& pool, int n, float* logits) {
  Workspace& w = *work_;
  const LinearTask task[] = {{&head_, logits, static_cast<size_t>(config_.vocab)}};
  run_linear(pool, *kernels_, task, w.head.input(), n);
}

void Llama::head(ThreadPool& pool, const float* x, int n, float* logits) {
  const size_t hidden = static_cast<size_t>(config_.hidden), vocab = static_cast<size_t>(config_.vocab);
  for (int begin = 0; begin < n; begin += max_rows_) {
    const int count = std::min(max_rows_, n - begin);
    for (int r = 0; r < count; ++r) std::copy_n(x + static_cast<size_t>(begin + r) * hidden, hidden, work_->head.row(r));
    round_head_input(count);
    run_head(pool, count, logits + static_cast<size_t>(begin) * vocab);
  }
}

/// Rounds a state of all rows into the slots of `features` that want it. kFinalNormed may be read after the last block.
void Llama::read_taps(const TargetBatch& batch, int boundary) const {
  const size_t hidden = static_cast<size_t>(config_.hidden), width = batch.taps.size() * hidden;
  for (size_t slot = 0; slot < batch.taps.size(); ++slot) {
    if (batch.taps[slot] != boundary) continue;
    std::vector<float> normed(boundary == kFinalNormed ? hidden : 0);
    for (size_t r = 0; r < batch.rows.size(); ++r) {
      const float* state = work_->x.data() + r * hidden;
      if (boundary == kFinalNormed) {
        kernels_->rms_norm(state, output_norm_.data(), config_.rms_eps, config_.hidden, normed.data());
        state = normed.data();
      }
      for (size_t i = 0; i < hidden; ++i) {
        batch.features[r * width + slot * hidden + i] = f32_to_bf16(state[i]);
      }
    }
  }
}

void Llama::embed(int32_t token, float* out) const {
  // The type was accepted at load, so this cannot fail.
  (void)dequantize(embedding_.type, embedding_.data.data() + static_cast<size_t>(token) * embedding_.row_bytes(), embedding_.cols(), out);
}

Status Llama::check(const TargetBatch& batch) const {
  if (batch.rows.empty() || batch.rows.size() > static_cast<size_t>(max_rows_)) {
    return invalid_argument("a forward takes 1 to {} rows, found {}", max_rows_, batch.rows.size());
  }
  for (const TargetRow& row : batch.rows) {
    if (row.token < 0 || row.token >= config_.vocab) {
      return invalid_argument("token id {} is outside the model's vocabulary of {}", row.token, config_.vocab);
    }
    if (row.position < 0 || row.position >= config_.context) {
      return invalid_argument("position {} is beyond the model's context of {} tokens", row.position, config_.context);
    }
    if (row.cache == nullptr || row.position >= row.cache->capacity()) {
      return internal_error("position {} has no room in its KV cache", row.position);
    }
  }
  for (int tap : batch.taps) {
    if (tap != kFinalNormed && (tap < 0 || tap > config_.blocks))
      return invalid_argument("boundary {} does not exist: the target has 0 to {}", tap, config_.blocks);
  }
  for (int row : batch.logit_rows) {
    if (row < 0 || static_cast<size_t>(row) >= batch.rows.size()) return internal_error("logit row {} is not in the batch", row);
  }
  return {};
}

Expected<std::vector<float>> load_vector(const GgufFile& file, const std::string& name, int width) {
  AERIE_ASSIGN(const TensorView* tensor, file.find(name));
  if (tensor->element_count() != static_cast<uint64_t>(width)) {
    return corrupt("{}: tensor {}: expected {} values, found shape {}", file.path(), name, width, tensor->shape_string());
  }
  return to_float(*tensor);
}

Status Llama::load_weights(const GgufFile& file, ThreadPool& pool) {
  const auto& c = config_;
  const bool keep = precision_ == Precision::kServed;
  std::set<DType> rounded;
  const auto matrix = [&](const std::string& name, int rows, int cols, RowOrder order, PackedMatrix& out) -> Status {
    AERIE_ASSIGN(const TensorView* tensor, file.find(name));
    if (tensor->shape != std::vector<uint64_t>{static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)}) {
      return corrupt("{}: tensor {}: expected [{}, {}], found {}", file.path(), name, rows, cols, tensor->shape_string());
    }
    auto packed = pack_tensor(pool, *tensor, keep, order, c.head_dim);
    if (!packed.ok()) return packed.status().with_context(file.path());
    out = std::move(packed).value();
    if (keep && is_rounded(tensor->type)) rounded.insert(tensor->type);
    weight_bytes_ += out.bytes();
    weight_elements_ += static_cast<uint64_t>(rows) * static_cast<uint64_t>(cols);
    return {};
  };
  const int q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  blocks_.resize(static_cast<size_t>(c.blocks));
  for (int i = 0; i < c.blocks; ++i) {
    Block& b = blocks_[static_cast<size_t>(i)];
    const std::string prefix = fmt::format("blk.{}.", i);
    AERIE_ASSIGN(b.attn_norm, load_vector(file, prefix + "attn_norm.weight", c.hidden));
    AERIE_ASSIGN(b.ffn_norm, load_vector(file, prefix + "ffn_norm.weight", c.hidden));
    AERIE_TRY(matrix(prefix + "attn_q.weight", q_width, c.hidden, half_split_order, b.q));
    AERIE_TRY(matrix(prefix + "attn_k.weight", kv_width, c.hidden, half_split_order, b.k));
    AERIE_TRY(matrix(prefix + "attn_v.weight", kv_width, c.hidden, nullptr, b.v));
    AERIE_TRY(matrix(prefix + "attn_output.weight", c.hidden, q_width, nullptr, b.o));
    AERIE_TRY(matrix(prefix + "ffn_gate.weight", c.intermediate, c.hidden, nullptr, b.gate));
    AERIE_TRY(matrix(prefix + "ffn_up.weight", c.intermediate, c.hidden, nullptr, b.up));
    AERIE_TRY(matrix(prefix + "ffn_down.weight", c.hidden, c.intermediate, nullptr, b.down));
  }
  AERIE_ASSIGN(output_norm_, load_vector(file, "output_norm.weight", c.hidden));
  AERIE_ASSIGN(const TensorView* embedding, file.find("token_embd.weight"));
  if (embedding->shape != std::vector<uint64_t>{static_cast<uint64_t>(c.vocab), static_cast<uint64_t>(c.hidden)}) {
    return corrupt("{}: tensor token_embd.weight: expected [{}, {}], found {}", file.path(), c.vocab, c.hidden, embedding->shape_string());
  }
  embedding_ = *embedding;
  std::vector<float> probe(static_cast<size_t>(c.hidden));
  AERIE_TRY(dequantize(embedding_.type, embedding_.data.data(), static_cast<uint64_t>(c.hidden), probe.data()));
  const bool tied = !file.find("output.weight").ok();
  AERIE_TRY(matrix(tied ? "token_embd.weight" : "output.weight", c.vocab, c.hidden, nullptr, head_));
  for (const DType type : rounded) {
    spdlog::info("{} weights are computed {}", dtype_name(type),
                 type == DType::kQ4_K ? "with the scales of their sub-blocks rounded to f16" : "in 8 bits with a scale per 32 columns");
  }
  return {};
}

Expected<std::unique_ptr<Target>> Llama::load(const GgufFile& file, const TargetOptions& options, ThreadPool& pool) {
  auto model = std::make_unique<Llama>();
  AERIE_ASSIGN(model->config_, read_target_config(file, "llama"));
  const TargetConfig& c = model->config_;
  if (c.hidden % kernels::kBlock != 0 || c.intermediate % kernels::kBlock != 0 || c.head_dim % 16 != 0) {
    return unsupported("{}: widths {} and {} must be multiples of 32 and the head size {} of 16", file.path(), c.hidden, c.intermediate,
                       c.head_dim);
  }
  if (file.has("llama.rope.scaling.type") || file.find("rope_freqs.weight").ok()) {
    return unsupported("{}: RoPE scaling is not supported yet", file.path());
  }
  if (file.has("llama.rope.dimension_count")) {
    AERIE_ASSIGN(const uint32_t rotated, file.get_u32("llama.rope.dimension_count"));
    if (rotated != static_cast<uint32_t>(c.head_dim)) {
      return unsupported("{}: RoPE over {} of {} head dimensions is not supported yet", file.path(), rotated, c.head_dim);
    }
  }
  if (file.has("llama.expert_count")) return unsupported("{}: mixture-of-experts models are not supported yet", file.path());
  for (const TensorView& tensor : file.tensors()) {
    if (tensor.name.find(".bias") != std::string::npos)
      return unsupported("{}: tensor {}: biases are not supported yet", file.path(), tensor.name);
  }
  model->kernels_ = options.kernels != nullptr ? options.kernels : &kernels::best_kernels();
  model->precision_ = options.precision;
  model->max_rows_ = options.max_rows;
  if (options.context > 0) model->config_.context = std::min(model->config_.context, options.context);
  AERIE_TRY(model->load_weights(file, pool));
  model->work_ = std::make_unique<Workspace>(c, model->kv_type(), options.max_rows, options.max_rows);
  return std::unique_ptr<Target>(std::move(model));
}

}  // namespace

Expected<std::unique_ptr<Target>> load_llama(const GgufFile& file, const TargetOptions& options, ThreadPool& pool) {
  return Llama::load(file, options, pool);
}

}  // namespace aerie
