#include "train/ttt_attention.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "train/fused.h"
#include "train/row_ops.h"

namespace aerie::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Matrix products in bf16 are compiled for each shape they meet: blocks are rounded up to multiples of these. What lies beyond is
// multiplied by weights of zero.
constexpr int64_t kRowStep = 32, kKeyStep = 64;

/// Which of a block's keys one of its rows sees: [first, end).
struct Visible {
  int64_t first, end;
};

/// A run of rows and the step-0 keys it sees: those of its document from `begin` to the run's last row.
struct Block {
  int64_t row = 0, rows = 0;  // places in the step's list
  int64_t key = 0, keys = 0;  // places among the step-0 rows
  std::vector<Visible> seen;  // by each row
  int64_t wide_rows() const { return rounded_up(rows, kRowStep); }
  int64_t wide_keys() const { return rounded_up(keys, kKeyStep); }
};

/// Everything about a step that is not a tensor.
struct Shape {
  int64_t rows = 0, heads = 0, kv_heads = 0, dim = 0, value_dim = 0;
  int64_t hidden_own = 0;  // the oldest own keys, that a window hides from every row
  double scale = 1;
  at::ScalarType product_type = at::kFloat;
  std::vector<Block> blocks;
  int64_t shared() const { return heads / kv_heads; }  // heads that share a key's head
};

Shape shape_of(const DraftSpec& spec, const PackedBatch& batch, const StepPlan& plan, int64_t step, at::ScalarType product_type) {
  Shape shape;
  shape.rows = static_cast<int64_t>(plan.tokens.size());
  shape.heads = spec.heads;
  shape.kv_heads = spec.kv_heads;
  shape.dim = spec.head_dim;
  shape.value_dim = spec.value_dim();
  shape.scale = spec.attention_scale / std::sqrt(static_cast<double>(spec.head_dim));
  shape.product_type = product_type;
  std::vector<int64_t> document_begin;
  for (int64_t begin = 0; const int64_t rows : batch.document_rows) {
    document_begin.push_back(begin);
    begin += rows;
  }
  // The newest key that a row sees is its own of this step; a window reaches back from there.
  const int64_t window = spec.sliding_window;
  shape.hidden_own = window == 0 ? 0 : std::max<int64_t>(step - window, 0);
  for (const RowRun& run : plan.runs) {
    // The oldest key that a row of the document sees.
    const auto oldest = [&](int64_t row) { return window == 0 ? 0 : std::max<int64_t>(row + step + 1 - window, 0); };
    const int64_t begin = std::min(oldest(run.first), run.first);
    Block block;
    block.row = run.begin;
    block.rows = run.count;
    block.key = document_begin[static_cast<size_t>(run.document)] + begin;
    for (int64_t r = run.begin; r < run.begin + run.count; ++r) {
      const int64_t row = plan.positions[static_cast<size_t>(r)] - step, end = row + 1 - begin;
      block.seen.push_back({std::min(oldest(row) - begin, end), end});
    }
    block.keys = block.seen.back().end;
    shape.blocks.push_back(std::move(block));
  }
  return shape;
}

/// Calls f(task, thread) on all threads, neighbouring tasks on different ones, since their sizes grow with their numbers. Which thread has
/// which task depends on the numbers alone.
template <class F>
void for_tasks(int64_t tasks, const F& f) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), tasks);
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;  // the mode is each thread's own
    for (int64_t thread = begin; thread < end; ++thread) {
      for (int64_t task = thread; task < tasks; task += threads) f(task, thread);
    }
  });
}

/// x [n, kv_heads * shared * width] as [kv_heads, (n + spare) * shared, width] of the products' type, with `spare` rows of zeros behind.
at::Tensor by_kv_head(const at::Tensor& x, const Shape& shape, int64_t shared, int64_t spare, double scale = 1) {
  const int64_t width = x.size(1) / (shape.kv_heads * shared);
  at::Tensor out = at::empty({shape.kv_heads, x.size(0) + spare, shared, width}, x.options().dtype(shape.product_type));
  const at::Tensor from = x.view({x.size(0), shape.kv_heads, shared, width}).permute({1, 0, 2, 3});
  out.narrow(1, 0, x.size(0)).copy_(scale == 1 ? from : from * scale);
  out.narrow(1, x.size(0), spare).zero_();
  return out.view({shape.kv_heads, -1, width});
}

/// What a step's backward pass takes over from its forward pass.
struct Products {
  Shape shape;
  at::Tensor q, keys, values;       // by_kv_head; q is scaled
  std::vector<at::Tensor> weights;  // of each block [kv_heads, wide_rows * shared, wide_keys], zero where nothing is seen
  at::Tensor own_weights;           // [n, heads, own]
};

template <class T, class A>
class Step {
 public:
  /// Own keys and values as in TttAttention::Layer, contiguous.
  Step(Products& products, const at::Tensor& q, const at::Tensor& own_keys, const at::Tensor& own_values)
      : p_(products), shape_(products.shape), q_(q), own_keys_(own_keys), own_values_(own_values), own_(products.own_weights.size(2)) {}

  /// Adds to the rows of `output`, and fills the products' weights.
  void forward(const at::Tensor& output) const {
    const int64_t shared = shape_.shared();
    for_tasks(static_cast<int64_t>(shape_.blocks.size()) * shape_.kv_heads, [&](int64_t task, int64_t) {
      const size_t number = static_cast<size_t>(task / shape_.kv_heads);
      const Block& block = shape_.blocks[number];
      const int64_t kv_head = task % shape_.kv_heads, wide_keys = block.wide_keys();
      at::Tensor weights = p_.weights[number][kv_head];
      at::mm_out(weights, rows_of(p_.q, block, kv_head), keys_of(p_.keys, block, kv_head).t());
      T* const w = values_of<T>(weights);
      std::vector<A> scratch(static_cast<size_t>(wide_keys));
      for (int64_t r = 0; r < block.rows; ++r) {
        const Visible seen = block.seen[static_cast<size_t>(r)];
        for (int64_t h = 0; h < shared; ++h) {
          const int64_t at = (block.row + r) * shape_.heads + kv_head * shared + h;
          A* own_weights = values_of<A>(p_.own_weights) + at * own_;
          for (int64_t j = 0; j < own_; ++j) {
            own_weights[j] = static_cast<A>(shape_.scale) * ops_.dot(values_of<A>(q_) + at * shape_.dim,
                                                                     own_row(own_keys_, block.row + r, j, kv_head, shape_.dim), shape_.dim);
          }
          ops_.softmax(w + (r * shared + h) * wide_keys, seen.first, seen.end, wide_keys, own_weights, own_, scratch.data());
        }
      }
      std::fill(w + block.rows * shared * wide_keys, w + weights.numel(), T(0));
      const at::Tensor attended = at::mm(weights, keys_of(p_.values, block, kv_head));
      for (int64_t r = 0; r < block.rows; ++r) {
        for (int64_t h = 0; h < shared; ++h) {
          const int64_t at = (block.row + r) * shape_.heads + kv_head * shared + h;
          A* out = values_of<A>(output) + at * shape_.value_dim;
          ops_.add_product(1, values_of<T>(attended) + (r * shared + h) * shape_.value_dim, shape_.value_dim, out);
          for (int64_t j = 0; j < own_; ++j) {
            ops_.add_scaled(values_of<A>(p_.own_weights)[at * own_ + j], own_row(own_values_, block.row + r, j, kv_head, shape_.value_dim),
                            shape_.value_dim, out);
          }
        }
      }
    });
  }

  struct Gradients {
    at::Tensor q, keys, values, own_keys, own_values;
  };
  /// d_output [n, heads * value_dim].
  Gradients backward(const at::Tensor& d_output) const {
    const int64_t shared = shape_.shared(), threads = at::get_num_threads();
    const at::Tensor d_rows = by_kv_head(d_output, shape_, shared, kMaxRun);
    Gradients d = {at::zeros_like(q_), {}, {}, at::zeros_like(own_keys_), at::zeros_like(own_values_)};
    // Every thread has a sum of its own of what many blocks add to.
    const at::Tensor d_keys = at::zeros({threads, shape_.kv_heads, p_.keys.size(1), shape_.dim}, q_.options());
    const at::Tensor d_values = at::zeros({threads, shape_.kv_heads, p_.values.size(1), shape_.value_dim}, q_.options());
    for_tasks(static_cast<int64_t>(shape_.blocks.size()) * shape_.kv_heads, [&](int64_t task, int64_t thread) {
      const size_t number = static_cast<size_t>(task / shape_.kv_heads);
      const Block& block = shape_.blocks[number];
      const int64_t kv_head = task % shape_.kv_heads, wide_keys = block.wide_keys();
      const at::Tensor weights = p_.weights[number][kv_head], dy = rows_of(d_rows, block, kv_head);
      const at::Tensor scores = at::mm(dy, keys_of(p_.values, block, kv_head).t());  // the weights' gradients, then the scores'
      T* const ds = values_of<T>(scores);
      for (int64_t r = 0; r < block.rows; ++r) {
        for (int64_t h = 0; h < shared; ++h) {
          const int64_t line = (r * shared + h) * wide_keys;
          row_backward(block.row + r, kv_head, h, d_output, values_of<T>(weights) + line, ds + line, wide_keys, d);
        }
      }
      std::fill(ds + block.rows * shared * wide_keys, ds + scores.numel(), T(0));
      const at::Tensor dq = at::mm(scores, keys_of(p_.keys, block, kv_head));
      for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t at = (block.row + r) * shape_.heads + kv_head * shared;  // the heads of a key's head stand side by side
        ops_.add_product(static_cast<A>(shape_.scale), values_of<T>(dq) + r * shared * shape_.dim, shared * shape_.dim,
                         values_of<A>(d.q) + at * shape_.dim);
      }
      add_product(at::mm(scores.t(), rows_of(p_.q, block, kv_head)), d_keys[thread][kv_head], block);
      add_product(at::mm(weights.t(), dy), d_values[thread][kv_head], block);
    });
    d.keys = as_rows(d_keys);
    d.values = as_rows(d_values);
    return d;
  }

 private:
  /// The block's rows in a tensor by_kv_head, as many as its weights have.
  at::Tensor rows_of(const at::Tensor& x, const Block& block, int64_t kv_head) const {
    return x[kv_head].narrow(0, block.row * shape_.shared(), block.wide_rows() * shape_.shared());
  }
  at::Tensor keys_of(const at::Tensor& x, const Block& block, int64_t kv_head) const {
    return x[kv_head].narrow(0, block.key, block.wide_keys());
  }
  A* own_row(const at::Tensor& x, int64_t row, int64_t j, int64_t kv_head, int64_t width) const {
    return values_of<A>(x) + ((row * x.size(1) + shape_.hidden_own + j) * shape_.kv_heads + kv_head) * width;
  }

  /// One head of one row: its own keys' and values' gradients, and its scores'.
  void row_backward(int64_t row, int64_t kv_head, int64_t h, const at::Tensor& d_output, const T* weights, T* gradients, int64_t n,
                    const Gradients& d) const {
    const int64_t at = row * shape_.heads + kv_head * shape_.shared() + h;
    const A* own_weights = values_of<A>(p_.own_weights) + at * own_;
    const A* dy = values_of<A>(d_output) + at * shape_.value_dim;
    std::array<A, kMaxTttSteps> own_gradients;
    for (int64_t j = 0; j < own_; ++j) {
      own_gradients[static_cast<size_t>(j)] = ops_.dot(dy, own_row(own_values_, row, j, kv_head, shape_.value_dim), shape_.value_dim);
      ops_.add_scaled(own_weights[j], dy, shape_.value_dim, own_row(d.own_values, row, j, kv_head, shape_.value_dim));
    }
    ops_.softmax_backward(weights, gradients, n, own_weights, own_gradients.data(), own_);
    for (int64_t j = 0; j < own_; ++j) {
      const A scaled = static_cast<A>(shape_.scale) * own_gradients[static_cast<size_t>(j)];
      ops_.add_scaled(scaled, own_row(own_keys_, row, j, kv_head, shape_.dim), shape_.dim, values_of<A>(d.q) + at * shape_.dim);
      ops_.add_scaled(scaled, values_of<A>(q_) + at * shape_.dim, shape_.dim, own_row(d.own_keys, row, j, kv_head, shape_.dim));
    }
  }

  /// Adds the product's rows, of the block's keys, to their sums.
  void add_product(const at::Tensor& product, const at::Tensor& sums, const Block& block) const {
    const int64_t width = product.size(1);
    ops_.add_product(1, values_of<T>(product), block.keys * width, values_of<A>(sums) + block.key * width);
  }
  /// [threads, kv_heads, n + spare, width] -> [n, kv_heads * width].
  at::Tensor as_rows(const at::Tensor& sums) const {
    const int64_t n = sums.size(2) - kKeyStep;
    return sums.sum(0).narrow(1, 0, n).transpose(0, 1).reshape({n, -1});
  }

  Products& p_;
  const Shape& shape_;
  const at::Tensor &q_, &own_keys_, &own_values_;
  const int64_t own_;
  const RowOps<T, A>& ops_ = row_ops<T, A>();
};

/// Calls f(T(), A()) for the products' and the states' types.
template <class F>
void with_types(const Products& products, at::ScalarType state_type, F&& f) {
  with_row_types(products.shape.product_type == at::kBFloat16 ? at::kBFloat16 : state_type, f);
}

struct Attend : torch::autograd::Function<Attend> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& own_keys, const at::Tensor& own_values, const Shape& shape) {
    const variable_list inputs = {query.contiguous(), own_keys.contiguous(), own_values.contiguous()};
    const auto held = c10::make_intrusive<Held>();
    Products& p = held->products;
    p.shape = shape;
    p.q = by_kv_head(inputs[0], shape, shape.shared(), kMaxRun, shape.scale);
    p.keys = by_kv_head(keys.contiguous(), shape, 1, kKeyStep);
    p.values = by_kv_head(values.contiguous(), shape, 1, kKeyStep);
    for (const Block& block : shape.blocks) {
      p.weights.push_back(at::empty({shape.kv_heads, block.wide_rows() * shape.shared(), block.wide_keys()}, p.q.options()));
    }
    p.own_weights = at::empty({shape.rows, shape.heads, own_keys.size(1) - shape.hidden_own}, query.options());
    const at::Tensor output = at::zeros({shape.rows, shape.heads * shape.value_dim}, query.options());
    with_types(p, query.scalar_type(),
               [&](auto zero, auto wide) { Step<decltype(zero), decltype(wide)>(p, inputs[0], inputs[1], inputs[2]).forward(output); });
    context->save_for_backward(inputs);
    context->saved_data["held"] = at::IValue::make_capsule(held);
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["held"].toCapsule();
    Products& p = static_cast<Held&>(*capsule).products;
    const at::Tensor d_output = outputs[0].contiguous();
    variable_list gradients;
    with_types(p, saved[0].scalar_type(), [&](auto zero, auto wide) {
      const auto d = Step<decltype(zero), decltype(wide)>(p, saved[0], saved[1], saved[2]).backward(d_output);
      gradients = {d.q, d.keys, d.values, d.own_keys, d.own_values, at::Tensor()};
    });
    return gradients;
  }

 private:
  struct Held : torch::CustomClassHolder {
    Products products;
  };
};

/// The same in LibTorch's own operations, for other devices.
at::Tensor attend_plainly(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& own_keys,
                          const at::Tensor& own_values, const Shape& shape) {
  // [kv_heads, n, shared, width] of queries and outputs, [kv_heads, n, width] of keys and values
  const auto by_head = [&](const at::Tensor& x, int64_t row, int64_t rows) {
    return x.narrow(0, row, rows).unflatten(1, {shape.kv_heads, -1}).transpose(0, 1).to(shape.product_type);
  };
  const int64_t own = own_keys.size(1) - shape.hidden_own;
  std::vector<at::Tensor> parts;
  int64_t done = 0;
  for (const Block& block : shape.blocks) {
    if (block.row > done) parts.push_back(at::zeros({block.row - done, shape.heads * shape.value_dim}, q.options()));
    done = block.row + block.rows;
    const at::Tensor query = by_head(q * shape.scale, block.row, block.rows).unflatten(2, {shape.shared(), shape.dim});
    const at::Tensor k = by_head(keys, block.key, block.keys), v = by_head(values, block.key, block.keys);
    std::vector<int64_t> first, end;
    for (const Visible& seen : block.seen) {
      first.push_back(seen.first);
      end.push_back(seen.end);
    }
    const at::Tensor column = at::arange(block.keys, q.options().dtype(at::kLong)).unsqueeze(0);
    const at::Tensor hidden =
        (column < index_tensor(first, q.device()).unsqueeze(1)).logical_or(column >= index_tensor(end, q.device()).unsqueeze(1));
    const at::Tensor scores = at::matmul(query.flatten(1, 2), k.transpose(1, 2)).to(q.scalar_type()).unflatten(1, {block.rows, -1});
    std::vector<at::Tensor> all = {scores.masked_fill(hidden.unsqueeze(1), -std::numeric_limits<double>::infinity())};
    const auto own_by_head = [&](const at::Tensor& x) {  // [kv_heads, n, own, width]
      return x.narrow(0, block.row, block.rows).narrow(1, shape.hidden_own, own).unflatten(2, {shape.kv_heads, -1}).permute({2, 0, 1, 3});
    };
    const at::Tensor exact = (q * shape.scale).narrow(0, block.row, block.rows).unflatten(1, {shape.kv_heads, shape.shared(), shape.dim});
    if (own > 0) all.push_back(at::matmul(exact.transpose(0, 1), own_by_head(own_keys).transpose(2, 3)));
    const at::Tensor weights = at::softmax(at::cat(all, 3), 3);
    const at::Tensor seen = weights.narrow(3, 0, block.keys).to(shape.product_type);
    at::Tensor out = at::matmul(seen.flatten(1, 2), v).to(q.scalar_type()).unflatten(1, {block.rows, -1});
    if (own > 0) out = out + at::matmul(weights.narrow(3, block.keys, own), own_by_head(own_values));
    parts.push_back(out.transpose(0, 1).flatten(1));
  }
  if (shape.rows > done) parts.push_back(at::zeros({shape.rows - done, shape.heads * shape.value_dim}, q.options()));
  return at::cat(parts, 0);
}

}  // namespace

void TttAttention::begin_step(const StepPlan& plan) {
  plan_ = &plan;
  if (plan.parents.empty()) return;
  const at::Device device = layers_[0].keys.device();
  const at::Tensor parents = index_tensor(plan.parents, device);
  for (Layer& layer : layers_) {
    if (!layer.own_keys.defined()) continue;
    layer.own_keys = layer.own_keys.index_select(0, parents);
    layer.own_values = layer.own_values.index_select(0, parents);
  }
}

at::Tensor TttAttention::operator()(int layer_number, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  Layer& layer = layers_[static_cast<size_t>(layer_number)];
  const auto one_step = [](const at::Tensor& x) { return x.unsqueeze(1); };
  if (plan_ == &batch_.steps[0]) {
    layer.keys = k;
    layer.values = v;
    layer.own_keys = one_step(k).narrow(1, 0, 0);
    layer.own_values = one_step(v).narrow(1, 0, 0);
  } else {
    layer.own_keys = at::cat({layer.own_keys, one_step(k)}, 1);
    layer.own_values = at::cat({layer.own_values, one_step(v)}, 1);
  }
  const Shape shape = shape_of(spec_, batch_, *plan_, layer.own_keys.size(1), product_type_);
  if (row_ops_reach(q)) return Attend::apply(q, layer.keys, layer.values, layer.own_keys, layer.own_values, shape);
  return attend_plainly(q, layer.keys, layer.values, layer.own_keys, layer.own_values, shape);
}

}  // namespace aerie::train
