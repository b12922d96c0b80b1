#include "eagle3/drafter.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "models/attention.h"

namespace aerie {
namespace {

/// Width of a head in the cache: the kernels take keys and values of one width, a multiple of 8.
int padded_head_dim(const DraftSpec& spec) { return (std::max(spec.head_dim, spec.value_dim()) + 7) / 8 * 8; }

/// Attention of draft_step over KV caches: appends each row to its cache, then lets it see the cache up to and with itself.
class KvAttend {
 public:
  KvAttend(CpuOps& ops, const DraftSpec& spec, std::span<const DraftRow> rows)
      : ops_(ops),
        spec_(spec),
        rows_(rows),
        width_(padded_head_dim(spec)),
        visibility_(ops.scratch<AttentionRow>(rows.size())),
        plan_(ops.attention(spec.heads, spec.kv_heads, width_, rows[0].kv->type())) {
    int group = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (r > 0 && rows[r - 1].kv != rows[r].kv) ++group;
      const int visible = rows[r].kv->append() + 1;
      visibility_[r] = {group, visible, spec.sliding_window == 0 ? 0 : std::max(0, visible - spec.sliding_window)};
    }
    // Only now: an append may move a cache's table of blocks.
    blocks_ = ops.scratch<const void* const*>(static_cast<size_t>(group) + 1);
    for (size_t r = 0; r < rows.size(); ++r) blocks_[static_cast<size_t>(visibility_[r].group)] = rows[r].kv->blocks();
    plan_.plan(visibility_.data(), static_cast<int>(rows.size()));
  }

  CpuTensor operator()(int layer, CpuTensor q, CpuTensor k, CpuTensor v) const {
    const float scale = spec_.attention_scale / std::sqrt(static_cast<float>(spec_.head_dim));
    q = padded(q, spec_.heads);
    k = padded(k, spec_.kv_heads);
    v = padded(v, spec_.kv_heads);
    for (int r = 0; r < q.rows; ++r) {
      const size_t at = static_cast<size_t>(r);
      rows_[at].kv->store(layer, visibility_[at].visible - 1, k.row(r), v.row(r));
      for (int c = 0; c < q.cols; ++c) q.row(r)[c] *= scale;
    }
    const CpuTensor out = ops_.tensor(q.rows, q.cols);
    plan_.run(ops_.pool(), ops_.kernels(), q.data, q.stride, blocks_.data(), out.data, out.stride, layer * spec_.kv_heads);
    return with_head_width(out, spec_.heads, spec_.value_dim());
  }

 private:
  CpuTensor padded(CpuTensor x, int heads) const { return with_head_width(x, heads, width_); }

  /// The heads of x cut off, or continued with zeros, at `width` values each; x itself where they have that width.
  CpuTensor with_head_width(CpuTensor x, int heads, int width) const {
    const int from = x.cols / heads, common = std::min(from, width);
    if (from == width) return x;
    const CpuTensor out = ops_.tensor(x.rows, heads * width);
    for (int r = 0; r < x.rows; ++r) {
      for (int head = 0; head < heads; ++head) {
        float* to = std::copy_n(x.row(r) + head * from, common, out.row(r) + head * width);
        std::fill_n(to, width - common, 0.0f);
      }
    }
    return out;
  }

  CpuOps& ops_;
  const DraftSpec& spec_;
  std::span<const DraftRow> rows_;
  int width_;
  std::span<AttentionRow> visibility_;
  std::span<const void* const*> blocks_;
  AttentionPlan& plan_;
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
Status read_finite_row(const TensorView& tensor, uint64_t r, std::vector<float>& out) {
  AERIE_TRY(read_row(tensor, r, out));
  for (size_t c = 0; c < out.size(); ++c) {
    if (!std::isfinite(out[c])) return corrupt("{} holds {} in row {}, column {}", tensor.name, out[c], r, c);
  }
  return {};
}

void round_to_bf16(const std::vector<float>& row, std::vector<uint16_t>& out) {
  out.resize(row.size());
  std::transform(row.begin(), row.end(), out.begin(), f32_to_bf16);
}

Status pack(const TensorView& tensor, DraftPrecision precision, kernels::PackedMatrix& out) {
  using kernels::TileFormat;
  const TileFormat format = precision == DraftPrecision::kFloat32  ? TileFormat::kF32
                            : tensor.cols() % kernels::kBlock == 0 ? TileFormat::kQ8
                                                                   : TileFormat::kBf16;
  out = {format, static_cast<int>(tensor.rows()), static_cast<int>(tensor.cols())};
  if (out.empty()) return resource_error("no memory for {} {}", tensor.name, tensor.shape_string());
  std::vector<float> row;
  std::vector<uint16_t> bf16;
  for (uint64_t r = 0; r < tensor.rows(); ++r) {
    AERIE_TRY(read_finite_row(tensor, r, row));
    const int at = static_cast<int>(r);
    if (format == TileFormat::kF32) {
      kernels::pack_row_f32(out, at, row.data());
    } else if (format == TileFormat::kBf16) {
      round_to_bf16(row, bf16);
      kernels::pack_row_bf16(out, at, bf16.data());
    } else if (!kernels::pack_row_rounded(out, at, row.data())) {
      return unsupported("{}: row {} holds a weight that fits no 8 bits with a finite f16 scale, use float32", tensor.name, r);
    }
  }
  return {};
}

}  // namespace

Status Drafter::check(const DraftSpec& spec, const TargetTables& target) {
  AERIE_TRY(spec.validate());
  AERIE_TRY(check_fits_target(spec, target.hidden, target.vocab, target.blocks));
  if (!spec.own_embedding && !target.embed) return invalid_argument("the drafter uses its target's embedding, but none was given");
  if (!spec.own_head && !target.head) return invalid_argument("the drafter uses its target's head, but none was given");
  return {};
}

Expected<Drafter> Drafter::create(const DraftCheckpoint& checkpoint, TargetTables target, DraftPrecision precision) {
  const DraftSpec& spec = checkpoint.spec;
  AERIE_TRY(check(spec, target).with_context(spec.path));
  const auto weights = std::make_shared<Weights>();

  Drafter out;
  out.spec_ = spec;
  out.precision_ = precision;
  out.target_ = std::move(target);
  out.kv_dim_ = padded_head_dim(spec);
  std::map<std::string, CpuOps::Matrix*> matrices;
  std::map<std::string, CpuOps::Vector*> vectors;
  visit_weights(spec, weights->forward, [&](const std::string& name, auto& weight) {
    if constexpr (std::is_same_v<decltype(weight), CpuOps::Matrix&>) {
      matrices[name] = &weight;
    } else {
      vectors[name] = &weight;
    }
  });

  for (const DraftTensor& wanted : draft_tensors(spec)) {
    AERIE_ASSIGN(const TensorView* tensor, find(checkpoint, wanted));
    if (const auto matrix = matrices.find(wanted.name); matrix != matrices.end()) {
      AERIE_TRY(pack(*tensor, precision, *matrix->second).with_context(spec.path));
    } else if (const auto vector = vectors.find(wanted.name); vector != vectors.end()) {
      AERIE_TRY(read_finite_row(*tensor, 0, *vector->second).with_context(spec.path));
    } else if (wanted.name != "embed_tokens") {
      return internal_error("{}: the drafter's tensor {} has no place in the forward", spec.path, wanted.name);
    } else {
      std::vector<float> row;
      std::vector<uint16_t> rounded;
      for (uint64_t r = 0; r < tensor->rows(); ++r) {
        AERIE_TRY(read_finite_row(*tensor, r, row).with_context(spec.path));
        if (precision == DraftPrecision::kFloat32) {
          weights->embedding_f32.insert(weights->embedding_f32.end(), row.begin(), row.end());
        } else {
          round_to_bf16(row, rounded);
          weights->embedding_bf16.insert(weights->embedding_bf16.end(), rounded.begin(), rounded.end());
        }
      }
    }
  }
  out.weights_ = weights;
  return out;
}

Expected<Drafter> Drafter::read_as(const DraftSpec& spec) const {
  AERIE_TRY(check(spec, target_).with_context(spec.path));
  const std::vector<DraftTensor> own = draft_tensors(spec_);
  for (const DraftTensor& wanted : draft_tensors(spec)) {
    const auto it = std::find_if(own.begin(), own.end(), [&](const DraftTensor& tensor) { return tensor.name == wanted.name; });
    if (it == own.end()) return invalid_argument("{}: read in this way the drafter needs {}, which it has not", spec.path, wanted.name);
    if (it->shape != wanted.shape) {
      return invalid_argument("{}: read in this way the drafter needs {} of shape [{}], it has [{}]", spec.path, wanted.name,
                              fmt::join(wanted.shape, ", "), fmt::join(it->shape, ", "));
    }
  }
  Drafter out = *this;
  out.spec_ = spec;
  out.kv_dim_ = padded_head_dim(spec);
  return out;
}

size_t Drafter::step_bytes() const {
  const auto of = [](const Linear<CpuOps>& linear) { return linear.weight.bytes(); };
  size_t bytes = weights_->forward.lm_head.bytes();
  for (const auto& w : weights_->forward.layers) {
    for (const auto* linear : {&w.q, &w.k, &w.v, &w.q_a, &w.q_b, &w.kv_a, &w.kv_b, &w.o, &w.gate, &w.up, &w.down}) bytes += of(*linear);
  }
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
      std::copy_n(weights_->embedding_f32.data() + at, width, to);
    } else {
      std::transform(weights_->embedding_bf16.data() + at, weights_->embedding_bf16.data() + at + width, to, bf16_to_f32);
    }
  }
  return out;
}

void Drafter::run(CpuOps& ops, std::span<const DraftRow> rows, CpuTensor h, DraftStates& out) const {
  const std::span<int> positions = ops.scratch<int>(rows.size());
  std::transform(rows.begin(), rows.end(), positions.begin(), [](const DraftRow& row) { return row.position; });
  const DraftStep<CpuOps> step =
      draft_step<CpuOps>(ops, spec_, weights_->forward, embed(ops, rows), h, positions, KvAttend(ops, spec_, rows));
  const size_t width = static_cast<size_t>(spec_.hidden);
  out.head_input.resize(rows.size() * width);
  out.feedback.resize(rows.size() * width);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy_n(step.head_input.row(static_cast<int>(r)), width, out.head_input.data() + r * width);
    std::copy_n(step.feedback.row(static_cast<int>(r)), width, out.feedback.data() + r * width);
  }
}

template <class Feature, class ToFloat>
void Drafter::first_step(CpuOps& ops, std::span<const DraftRow> rows, const Feature* features, ToFloat to_float, DraftStates& out) const {
  ops.reset();
  const CpuTensor g = ops.tensor(static_cast<int>(rows.size()), spec_.feature_width());
  for (int r = 0; r < g.rows; ++r) {
    const Feature* from = features + static_cast<size_t>(r) * static_cast<size_t>(g.cols);
    std::transform(from, from + g.cols, g.row(r), to_float);
  }
  run(ops, rows, fuse_features(ops, spec_, weights_->forward, g), out);
}

void Drafter::step0(CpuOps& ops, std::span<const DraftRow> rows, const uint16_t* features, DraftStates& out) const {
  first_step(ops, rows, features, bf16_to_f32, out);
}

void Drafter::step0(CpuOps& ops, std::span<const DraftRow> rows, const float* features, DraftStates& out) const {
  first_step(
      ops, rows, features, [](float value) { return value; }, out);
}

void Drafter::step(CpuOps& ops, std::span<const DraftRow> rows, const float* h, DraftStates& out) const {
  ops.reset();
  // Copied: `h` may be the vector that the results are written to.
  const CpuTensor input = ops.tensor(static_cast<int>(rows.size()), spec_.hidden);
  for (int r = 0; r < input.rows; ++r) std::copy_n(h + static_cast<size_t>(r) * static_cast<size_t>(input.cols), input.cols, input.row(r));
  run(ops, rows, input, out);
}

CpuTensor Drafter::head(CpuOps& ops, const float* head_input, int n) const {
  const auto scaled = [&](const CpuTensor& logits) {
    if (spec_.logit_scale == 1.0f) return logits;
    for (int r = 0; r < logits.rows; ++r) {
      for (int c = 0; c < logits.cols; ++c) logits.row(r)[c] *= spec_.logit_scale;
    }
    return logits;
  };
  if (!spec_.own_head) {
    const auto width = static_cast<size_t>(spec_.draft_vocab);
    const CpuTensor out{ops.scratch<float>(static_cast<size_t>(n) * width).data(), n, spec_.draft_vocab, width};
    target_.head(head_input, n, out.data);
    return scaled(out);
  }
  // The view is only read; tensors have no const form.
  const CpuTensor x{const_cast<float*>(head_input), n, spec_.hidden, static_cast<size_t>(spec_.hidden)};
  return scaled(ops.linear(x, weights_->forward.lm_head));
}

void Drafter::logits(CpuOps& ops, const float* head_input, int n, float* out) const {
  ops.reset();
  const CpuTensor result = head(ops, head_input, n);
  for (int r = 0; r < n; ++r) std::copy_n(result.row(r), result.cols, out + static_cast<size_t>(r) * static_cast<size_t>(result.cols));
}

void Drafter::argmax(CpuOps& ops, const float* head_input, int n, int32_t* target_ids) const {
  ops.reset();
  if (spec_.own_head) {
    // logit_scale is positive and changes no order.
    ops.argmax({const_cast<float*>(head_input), n, spec_.hidden, static_cast<size_t>(spec_.hidden)}, weights_->forward.lm_head, target_ids);
  } else {
    const CpuTensor result = head(ops, head_input, n);
    for (int r = 0; r < n; ++r) target_ids[r] = ops.kernels().argmax(result.row(r), result.cols);
  }
  for (int r = 0; r < n; ++r) {
    if (target_ids[r] >= 0) target_ids[r] = spec_.to_target(target_ids[r]);
  }
}

}  // namespace aerie
