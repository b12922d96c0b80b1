#include "eagle3/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "models/linear.h"

namespace aerie {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr size_t kFloatsPerLine = 16;
constexpr size_t kFirstPiece = size_t{1} << 16;
constexpr size_t kTileGrain = 4;  // a tile of a 1,000-wide bf16 matrix is 32 kB, about a microsecond of reading
constexpr size_t kRowGrain = 8;   // a row of element-wise work is far below a microsecond

size_t round_up(size_t count) { return (count + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine; }

}  // namespace

void Arena::Free::operator()(float* memory) const { ::operator delete(memory, kAlignment); }

Arena::Piece Arena::new_piece(size_t count) {
  Piece piece;
  piece.memory.reset(static_cast<float*>(::operator new(count * sizeof(float), kAlignment)));
  piece.size = count;
  return piece;
}

float* Arena::floats(size_t count) {
  count = round_up(count);
  if (pieces_.empty() || pieces_.back().size - used_ < count) {
    pieces_.push_back(new_piece(std::max({count, kFirstPiece, total_})));
    used_ = 0;
  }
  float* out = pieces_.back().memory.get() + used_;
  used_ += count;
  total_ += count;
  return out;
}

void Arena::reset() {
  if (pieces_.size() > 1) {
    // One piece that holds all that the last step needed, so that the next one of its size allocates nothing.
    const size_t size = total_;
    pieces_.clear();
    pieces_.push_back(new_piece(size));
  }
  used_ = total_ = 0;
}

CpuOps::Tensor CpuOps::tensor(int rows, int cols) {
  const size_t stride = round_up(static_cast<size_t>(cols));
  return {arena_.floats(static_cast<size_t>(rows) * stride), rows, cols, stride};
}

AttentionPlan& CpuOps::attention(int heads, int kv_heads, int head_dim, kernels::KvType type) {
  if (!attention_ || attention_->heads != heads || attention_->kv_heads != kv_heads || attention_->head_dim != head_dim ||
      attention_->type != type) {
    attention_.emplace(Attention{heads, kv_heads, head_dim, type, AttentionPlan(heads, kv_heads, head_dim, type)});
  }
  return attention_->plan;
}

CpuOps::Tensor CpuOps::rms_norm(Tensor x, const Vector& weight, float eps) { return rms_norm_slices(x, {&weight, 1}, eps); }

CpuOps::Tensor CpuOps::rms_norm_slices(Tensor x, std::span<const Vector> weights, float eps) {
  const Tensor out = tensor(x.rows, x.cols);
  const int width = x.cols / static_cast<int>(weights.size());
  pool_->parallel_for(static_cast<size_t>(x.rows), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      for (size_t i = 0; i < weights.size(); ++i) {
        const size_t at = i * static_cast<size_t>(width);
        kernels_->rms_norm(x.row(static_cast<int>(r)) + at, weights[i].data(), eps, width, out.row(static_cast<int>(r)) + at);
      }
    }
  });
  return out;
}

CpuOps::Tensor CpuOps::rms_norm_heads(Tensor x, const Vector& weight, float eps) {
  const int width = static_cast<int>(weight.size());
  for (int r = 0; r < x.rows; ++r) {
    for (int at = 0; at < x.cols; at += width) kernels_->rms_norm(x.row(r) + at, weight.data(), eps, width, x.row(r) + at);
  }
  return x;
}

CpuOps::Tensor CpuOps::concat(Tensor a, Tensor b) {
  const Tensor out = tensor(a.rows, a.cols + b.cols);
  for (int r = 0; r < a.rows; ++r) {
    std::copy_n(a.row(r), a.cols, out.row(r));
    std::copy_n(b.row(r), b.cols, out.row(r) + a.cols);
  }
  return out;
}

LinearInput CpuOps::input(Tensor x, std::initializer_list<const Matrix*> matrices) {
  if (std::none_of(matrices.begin(), matrices.end(), [](const Matrix* matrix) { return is_quantized(*matrix); })) {
    return {x.data, x.stride, nullptr};
  }
  const auto blocks = scratch<kernels::QuantizedBlock>(kernels::quantized_blocks(x.rows, x.cols));
  pool_->parallel_for(static_cast<size_t>(x.rows), kRowGrain, [&](size_t begin, size_t end) {
    const int first = static_cast<int>(begin);
    kernels_->quantize_rows(x.row(first), x.stride, first, static_cast<int>(end) - first, x.cols, blocks.data());
  });
  return {x.data, x.stride, blocks.data()};
}

CpuOps::Tensor CpuOps::linear(Tensor x, const Matrix& w) {
  const Tensor out = tensor(x.rows, w.rows());
  const LinearTask task[] = {{&w, out.data, out.stride}};
  run_linear(*pool_, *kernels_, task, input(x, {&w}), x.rows, kTileGrain);
  return out;
}

void CpuOps::argmax(Tensor x, const Matrix& w, int32_t* best) { run_argmax(*pool_, *kernels_, w, input(x, {&w}), x.rows, best); }

CpuOps::Tensor CpuOps::add_bias(Tensor x, const Vector& bias) const {
  if (bias.empty()) return x;
  for (int r = 0; r < x.rows; ++r) kernels_->add(bias.data(), x.cols, x.row(r));
  return x;
}

CpuOps::Qkv CpuOps::qkv(Tensor x, const Linear<CpuOps>& q, const Linear<CpuOps>& k, const Linear<CpuOps>& v) {
  const Qkv out{tensor(x.rows, q.weight.rows()), tensor(x.rows, k.weight.rows()), tensor(x.rows, v.weight.rows())};
  const LinearTask tasks[] = {
      {&q.weight, out.q.data, out.q.stride}, {&k.weight, out.k.data, out.k.stride}, {&v.weight, out.v.data, out.v.stride}};
  run_linear(*pool_, *kernels_, tasks, input(x, {&q.weight, &k.weight, &v.weight}), x.rows, kTileGrain);
  return {add_bias(out.q, q.bias), add_bias(out.k, k.bias), add_bias(out.v, v.bias)};
}

CpuOps::Tensor CpuOps::gated_mlp_in(Tensor x, const Linear<CpuOps>& gate, const Linear<CpuOps>& up) {
  const Tensor g = tensor(x.rows, gate.weight.rows());
  const Tensor u = tensor(x.rows, up.weight.rows());
  const LinearTask tasks[] = {{&gate.weight, g.data, g.stride}, {&up.weight, u.data, u.stride}};
  run_linear(*pool_, *kernels_, tasks, input(x, {&gate.weight, &up.weight}), x.rows, kTileGrain);
  add_bias(g, gate.bias);
  add_bias(u, up.bias);
  // Whole rows: a vector kernel may treat the last columns of a call differently.
  pool_->parallel_for(static_cast<size_t>(x.rows), kRowGrain, [&](size_t begin, size_t end) {
    for (int r = static_cast<int>(begin); r < static_cast<int>(end); ++r) kernels_->silu_mul(g.row(r), u.row(r), g.cols, g.row(r));
  });
  return g;
}

CpuOps::Tensor CpuOps::rope(Tensor x, int heads, int offset, const Rope& rope, Positions positions) {
  const int width = x.cols / heads, half = rope.dim / 2;
  const bool whole = rope.dim == width && !rope.interleaved;
  const std::span<float> halves = rope.interleaved ? scratch<float>(static_cast<size_t>(rope.dim)) : std::span<float>();
  for (int r = 0; r < x.rows; ++r) {
    const float* cosine = rope_table_.angles(rope, positions[static_cast<size_t>(r)]);
    const float* sine = cosine + half;
    if (whole) {
      kernels_->rope(x.row(r), heads, width, cosine, sine);
      continue;
    }
    for (int head = 0; head < heads; ++head) {
      float* part = x.row(r) + head * width + offset;
      if (!rope.interleaved) {
        kernels_->rope(part, 1, rope.dim, cosine, sine);
        continue;
      }
      for (int i = 0; i < rope.dim; ++i) halves[static_cast<size_t>(i / 2 + i % 2 * half)] = part[i];
      kernels_->rope(halves.data(), 1, rope.dim, cosine, sine);
      for (int i = 0; i < rope.dim; ++i) part[i] = halves[static_cast<size_t>(i / 2 + i % 2 * half)];
    }
  }
  return x;
}

CpuOps::Halves CpuOps::split_heads(Tensor x, int heads, int first_width) {
  const int width = x.cols / heads, second_width = width - first_width;
  const Halves out{tensor(x.rows, heads * first_width), tensor(x.rows, heads * second_width)};
  for (int r = 0; r < x.rows; ++r) {
    for (int head = 0; head < heads; ++head) {
      const float* from = x.row(r) + head * width;
      std::copy_n(from, first_width, out.first.row(r) + head * first_width);
      std::copy_n(from + first_width, second_width, out.second.row(r) + head * second_width);
    }
  }
  return out;
}

CpuOps::Tensor CpuOps::join_heads(Tensor a, Tensor b, int heads) {
  const int width = a.cols / heads;
  const Tensor out = tensor(a.rows, a.cols + heads * b.cols);
  for (int r = 0; r < a.rows; ++r) {
    float* to = out.row(r);
    for (int head = 0; head < heads; ++head) {
      to = std::copy_n(a.row(r) + head * width, width, to);
      to = std::copy_n(b.row(r), b.cols, to);
    }
  }
  return out;
}

CpuOps::Tensor CpuOps::add(Tensor a, Tensor b) {
  const Tensor out = tensor(a.rows, a.cols);
  for (int r = 0; r < a.rows; ++r) {
    std::copy_n(a.row(r), a.cols, out.row(r));
    kernels_->add(b.row(r), a.cols, out.row(r));
  }
  return out;
}

}  // namespace aerie
