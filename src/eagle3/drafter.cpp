#include "eagle3/drafter.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "models/attention.h"

namespace aerie {
namespace {

/// Attention of draft_step over KV caches: appends each row to its cache, then lets it see the cache up to and with itself.
class KvAttend {
 public:
  KvAttend(CpuOps& ops, const DraftSpec& spec, std::span<const DraftRow> rows) : ops_(ops), spec_(spec), rows_(rows) {}

  CpuTensor operator()(CpuTensor q, CpuTensor k, CpuTensor v) const {
    const CpuTensor out = ops_.tensor(q.rows, q.cols);
    const float scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
    const std::span<AttentionRow> visibility = ops_.scratch<AttentionRow>(rows_.size());
    int group = 0;
    for (int r = 0; r < q.rows; ++r) {
      const size_t at = static_cast<size_t>(r);
      if (r > 0 && rows_[at - 1].kv != rows_[at].kv) ++group;
      rows_[at].kv->append(k.row(r), v.row(r));
      visibility[at] = {group, rows_[at].kv->length()};
      for (int c = 0; c < q.cols; ++c) q.row(r)[c] *= scale;
    }
    // Only now: an append may move a cache's table of blocks.
    const auto blocks = ops_.scratch<const void* const*>(static_cast<size_t>(group) + 1);
    for (size_t r = 0; r < rows_.size(); ++r) blocks[static_cast<size_t>(visibility[r].group)] = rows_[r].kv->blocks();
    AttentionPlan& plan = ops_.attention(spec_.heads, spec_.kv_heads, spec_.head_dim, rows_[0].kv->type());
    plan.plan(visibility.data(), q.rows);
    plan.run(ops_.pool(), ops_.kernels(), q.data, q.stride, blocks.data(), out.data, out.stride);
    return out;
  }

 private:
  CpuOps& ops_;
  const DraftSpec& spec_;
  std::span<const DraftRow> rows_;
};

Expected<const TensorView*> find(const DraftCheckpoint& checkpoint, const DraftTensor& wanted) {
  const auto it = checkpoint.tensors.find(wanted.name);
  if (it == checkpoint.tensors.end()) return not_found("{}: the drafter's tensor {} is missing", checkpoint.spec.path, wanted.name);
  if (it->second.shape != wanted.shape) {
    return corrupt("{}: the drafter's tensor {} has the shape {}, which its spec does not call for", checkpoint.spec.path, wanted.name,
                   it->second.shape_string());
  }
  return &it->second;
}

/// Row r of a tensor as float32; a NaN or an infinity among the weights would silently spoil every draft.
Status read_row(const TensorView& tensor, uint64_t r, std::vector<float>& out) {
  const uint64_t cols = tensor.cols();
  out.resize(cols);
  const auto bytes = static_cast<uint64_t>(block_bytes(tensor.type));
  AERIE_TRY(dequantize(tensor.type, tensor.data.data() + r * cols * bytes, cols, out.data()));
  for (uint64_t c = 0; c < cols; ++c) {
    if (!std::isfinite(out[c])) return corrupt("{} holds {} in row {}, column {}", tensor.name, out[c], r, c);
  }
  return {};
}

void round_to_bf16(const std::vector<float>& row, std::vector<uint16_t>& out) {
  out.resize(row.size());
  std::transform(row.begin(), row.end(), out.begin(), f32_to_bf16);
}

Status pack(const TensorView& tensor, DraftPrecision precision, kernels::PackedMatrix& out) {
  const bool exact = precision == DraftPrecision::kFloat32;
  out = {exact ? kernels::TileFormat::kF32 : kernels::TileFormat::kBf16, static_cast<int>(tensor.rows()), static_cast<int>(tensor.cols())};
  if (out.empty()) return resource_error("no memory for {} {}", tensor.name, tensor.shape_string());
  std::vector<float> row;
  std::vector<uint16_t> rounded;
  for (uint64_t r = 0; r < tensor.rows(); ++r) {
    AERIE_TRY(read_row(tensor, r, row));
    if (exact) {
      kernels::pack_row_f32(out, static_cast<int>(r), row.data());
    } else {
      round_to_bf16(row, rounded);
      kernels::pack_row_bf16(out, static_cast<int>(r), rounded.data());
    }
  }
  return {};
}

}  // namespace

Expected<Drafter> Drafter::create(const DraftCheckpoint& checkpoint, TargetTables target, DraftPrecision precision) {
  const DraftSpec& spec = checkpoint.spec;
  AERIE_TRY(spec.validate().with_context(spec.path));
  AERIE_TRY(check_fits_target(spec, target.hidden, target.vocab, target.blocks).with_context(spec.path));
  if (spec.layers != 1 || spec.attention != AttentionKind::kGqa || !spec.has_fc || spec.fc_bias || spec.qkv_bias || spec.o_bias ||
      spec.mlp_bias || spec.qk_norm || spec.feature_normed_twice || !spec.head_norm || spec.logit_scale != 1.0f ||
      spec.rope_scaling.kind != RopeScalingKind::kNone || spec.rope_dim != spec.head_dim || spec.rope_interleaved ||
      spec.attention_scale != 1.0f || spec.sliding_window != 0) {
    return unsupported("{}: this drafter's forward is not computed yet", spec.path);
  }
  if (spec.head_dim % 8 != 0)
    return unsupported("{}: head_dim is {}, the attention kernels need a multiple of 8", spec.path, spec.head_dim);
  if (!spec.own_embedding && !target.embed)
    return invalid_argument("{}: the drafter uses its target's embedding, but none was given", spec.path);
  if (!spec.own_head && !target.head) return invalid_argument("{}: the drafter uses its target's head, but none was given", spec.path);

  Drafter out;
  out.spec_ = spec;
  out.precision_ = precision;
  out.target_ = std::move(target);
  auto& w = out.weights_;
  w.fc_norm.resize(spec.feature_norm == FeatureNorm::kPerTap ? spec.taps.size() : 0);
  const std::map<std::string, CpuOps::Matrix*> matrices = {{"fc", &w.fc}, {"layers.0.q", &w.q},       {"layers.0.k", &w.k},
                                                           {"layers.0.v", &w.v},   {"layers.0.o", &w.o},       {"layers.0.gate", &w.gate},
                                                           {"layers.0.up", &w.up}, {"layers.0.down", &w.down}, {"lm_head", &w.lm_head}};
  std::map<std::string, CpuOps::Vector*> vectors = {{"input_norm", &w.input_norm},
                                                    {"layers.0.input_layernorm", &w.input_layernorm},
                                                    {"layers.0.hidden_norm", &w.hidden_norm},
                                                    {"layers.0.post_attention_layernorm", &w.post_attention_layernorm},
                                                    {"norm", &w.norm}};
  for (size_t i = 0; i < w.fc_norm.size(); ++i) vectors[fmt::format("fc_norm.{}", i)] = &w.fc_norm[i];

  for (const DraftTensor& wanted : draft_tensors(spec)) {
    AERIE_ASSIGN(const TensorView* tensor, find(checkpoint, wanted));
    if (const auto matrix = matrices.find(wanted.name); matrix != matrices.end()) {
      AERIE_TRY(pack(*tensor, precision, *matrix->second).with_context(spec.path));
    } else if (const auto vector = vectors.find(wanted.name); vector != vectors.end()) {
      AERIE_TRY(read_row(*tensor, 0, *vector->second).with_context(spec.path));
    } else {  // embed_tokens
      std::vector<float> row;
      std::vector<uint16_t> rounded;
      for (uint64_t r = 0; r < tensor->rows(); ++r) {
        AERIE_TRY(read_row(*tensor, r, row).with_context(spec.path));
        if (precision == DraftPrecision::kFloat32) {
          out.embedding_f32_.insert(out.embedding_f32_.end(), row.begin(), row.end());
        } else {
          round_to_bf16(row, rounded);
          out.embedding_bf16_.insert(out.embedding_bf16_.end(), rounded.begin(), rounded.end());
        }
      }
    }
  }
  return out;
}

size_t Drafter::step_bytes() const {
  const auto& w = weights_;
  size_t bytes = 0;
  for (const auto* matrix : {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down, &w.lm_head}) bytes += matrix->bytes();
  return bytes;
}

CpuTensor Drafter::embed(CpuOps& ops, std::span<const DraftRow> rows) const {
  const CpuTensor out = ops.tensor(static_cast<int>(rows.size()), spec_.hidden);
  const size_t width = static_cast<size_t>(spec_.hidden);
  for (size_t r = 0; r < rows.size(); ++r) {
    float* to = out.row(static_cast<int>(r));
    const size_t at = static_cast<size_t>(rows[r].token) * width;
    if (!spec_.own_embedding) {
      target_.embed(rows[r].token, to);
    } else if (precision_ == DraftPrecision::kFloat32) {
      std::copy_n(embedding_f32_.data() + at, width, to);
    } else {
      std::transform(embedding_bf16_.data() + at, embedding_bf16_.data() + at + width, to, bf16_to_f32);
    }
  }
  return out;
}

void Drafter::run(CpuOps& ops, std::span<const DraftRow> rows, CpuTensor h, DraftStates& out) const {
  const std::span<int> positions = ops.scratch<int>(rows.size());
  std::transform(rows.begin(), rows.end(), positions.begin(), [](const DraftRow& row) { return row.position; });
  const DraftStep<CpuOps> step = draft_step<CpuOps>(ops, spec_, weights_, embed(ops, rows), h, positions, KvAttend(ops, spec_, rows));
  const size_t width = static_cast<size_t>(spec_.hidden);
  out.head_input.resize(rows.size() * width);
  out.feedback.resize(rows.size() * width);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy_n(step.head_input.row(static_cast<int>(r)), width, out.head_input.data() + r * width);
    std::copy_n(step.feedback.row(static_cast<int>(r)), width, out.feedback.data() + r * width);
  }
}

void Drafter::step0(CpuOps& ops, std::span<const DraftRow> rows, const uint16_t* features, DraftStates& out) const {
  ops.reset();
  const CpuTensor g = ops.tensor(static_cast<int>(rows.size()), spec_.feature_width());
  for (int r = 0; r < g.rows; ++r) {
    const uint16_t* from = features + static_cast<size_t>(r) * static_cast<size_t>(g.cols);
    std::transform(from, from + g.cols, g.row(r), bf16_to_f32);
  }
  run(ops, rows, fuse_features(ops, spec_, weights_, g), out);
}

void Drafter::step(CpuOps& ops, std::span<const DraftRow> rows, const float* h, DraftStates& out) const {
  ops.reset();
  // Copied: `h` may be the vector that the results are written to.
  const CpuTensor input = ops.tensor(static_cast<int>(rows.size()), spec_.hidden);
  for (int r = 0; r < input.rows; ++r) std::copy_n(h + static_cast<size_t>(r) * static_cast<size_t>(input.cols), input.cols, input.row(r));
  run(ops, rows, input, out);
}

CpuTensor Drafter::head(CpuOps& ops, const float* head_input, int n) const {
  if (!spec_.own_head) {
    const auto width = static_cast<size_t>(spec_.draft_vocab);
    const CpuTensor out{ops.scratch<float>(static_cast<size_t>(n) * width).data(), n, spec_.draft_vocab, width};
    target_.head(head_input, n, out.data);
    return out;
  }
  // The view is only read; tensors have no const form.
  const CpuTensor x{const_cast<float*>(head_input), n, spec_.hidden, static_cast<size_t>(spec_.hidden)};
  return ops.linear(x, weights_.lm_head);
}

void Drafter::logits(CpuOps& ops, const float* head_input, int n, float* out) const {
  ops.reset();
  const CpuTensor result = head(ops, head_input, n);
  for (int r = 0; r < n; ++r) std::copy_n(result.row(r), result.cols, out + static_cast<size_t>(r) * static_cast<size_t>(result.cols));
}

void Drafter::argmax(CpuOps& ops, const float* head_input, int n, int32_t* target_ids) const {
  ops.reset();
  const CpuTensor result = head(ops, head_input, n);
  for (int r = 0; r < n; ++r) {
    const int best = ops.kernels().argmax(result.row(r), result.cols);
    target_ids[r] = best < 0 ? -1 : spec_.to_target(best);
  }
}

}  // namespace aerie
