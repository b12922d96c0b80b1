#include "eagle3/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <new>

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

CpuOps::Tensor CpuOps::concat(Tensor a, Tensor b) {
  const Tensor out = tensor(a.rows, a.cols + b.cols);
  for (int r = 0; r < a.rows; ++r) {
    std::copy_n(a.row(r), a.cols, out.row(r));
    std::copy_n(b.row(r), b.cols, out.row(r) + a.cols);
  }
  return out;
}

CpuOps::Tensor CpuOps::linear(Tensor x, const Matrix& w) {
  const Tensor out = tensor(x.rows, w.rows());
  pool_->parallel_for(static_cast<size_t>(w.tiles()), kTileGrain, [&](size_t begin, size_t end) {
    kernels_->matmul_float(w, x.data, x.stride, x.rows, static_cast<int>(begin), static_cast<int>(end), out.data, out.stride);
  });
  return out;
}

CpuOps::Qkv CpuOps::qkv(Tensor x, const Matrix& q, const Matrix& k, const Matrix& v) {
  const Qkv out{tensor(x.rows, q.rows()), tensor(x.rows, k.rows()), tensor(x.rows, v.rows())};
  const Matrix* const matrices[] = {&q, &k, &v};
  const Tensor results[] = {out.q, out.k, out.v};
  const size_t tiles = static_cast<size_t>(q.tiles()) + static_cast<size_t>(k.tiles()) + static_cast<size_t>(v.tiles());
  pool_->parallel_for(tiles, kTileGrain, [&](size_t begin, size_t end) {
    size_t first = 0;  // number of the matrix's first tile in the common list
    for (int m = 0; m < 3; ++m) {
      const size_t count = static_cast<size_t>(matrices[m]->tiles());
      const size_t from = std::max(begin, first), to = std::min(end, first + count);
      if (from < to) {
        kernels_->matmul_float(*matrices[m], x.data, x.stride, x.rows, static_cast<int>(from - first), static_cast<int>(to - first),
                               results[m].data, results[m].stride);
      }
      first += count;
    }
  });
  return out;
}

CpuOps::Tensor CpuOps::gated_mlp_in(Tensor x, const Matrix& gate, const Matrix& up) {
  const Tensor g = tensor(x.rows, gate.rows());
  const Tensor u = tensor(x.rows, up.rows());
  pool_->parallel_for(static_cast<size_t>(gate.tiles()), kTileGrain, [&](size_t begin, size_t end) {
    kernels_->matmul_float(gate, x.data, x.stride, x.rows, static_cast<int>(begin), static_cast<int>(end), g.data, g.stride);
    kernels_->matmul_float(up, x.data, x.stride, x.rows, static_cast<int>(begin), static_cast<int>(end), u.data, u.stride);
  });
  // Whole rows: a vector kernel may treat the last columns of a call differently.
  pool_->parallel_for(static_cast<size_t>(x.rows), kRowGrain, [&](size_t begin, size_t end) {
    for (int r = static_cast<int>(begin); r < static_cast<int>(end); ++r) kernels_->silu_mul(g.row(r), u.row(r), g.cols, g.row(r));
  });
  return g;
}

const float* CpuOps::angles(int position, int head_dim, float theta) {
  if (head_dim != angle_head_dim_ || theta != angle_theta_) {
    angle_table_.clear();
    angle_head_dim_ = head_dim;
    angle_theta_ = theta;
  }
  const size_t width = static_cast<size_t>(head_dim);
  const size_t at = static_cast<size_t>(position) * width;
  while (angle_table_.size() <= at) {
    const size_t known = angle_table_.size();
    angle_table_.resize(known + width);
    kernels::rope_angles(static_cast<int>(known / width), head_dim, theta, angle_table_.data() + known,
                         angle_table_.data() + known + width / 2);
  }
  return angle_table_.data() + at;
}

CpuOps::Tensor CpuOps::rope(Tensor x, int heads, int head_dim, float theta, Positions positions) {
  for (int r = 0; r < x.rows; ++r) {
    const float* cosine = angles(positions[static_cast<size_t>(r)], head_dim, theta);
    kernels_->rope(x.row(r), heads, head_dim, cosine, cosine + head_dim / 2);
  }
  return x;
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
