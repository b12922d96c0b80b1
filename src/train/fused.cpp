#include "train/fused.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>

#include "train/row_ops.h"

namespace aerie::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::atomic<int> without_row_ops{0};

/// Both gradients are needed in rows of the shape that the forward saw.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight, double eps) {
    const at::Tensor x = input.contiguous(), y = at::empty_like(x);
    const int64_t width = x.size(-1), rows = x.numel() / width;
    const at::Tensor inverse = at::empty({rows}, x.options());
    with_row_types(x.scalar_type(), [&](auto, auto zero) {
      using A = decltype(zero);
      for_rows(rows, width, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) {
          values_of<A>(inverse)[r] = row_ops<A, A>().rms_norm(values_of<A>(x) + r * width, values_of<A>(weight), width, static_cast<A>(eps),
                                                              values_of<A>(y) + r * width);
        }
      });
    });
    context->save_for_backward({x, weight, inverse});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &inverse = saved[2];
    const at::Tensor dy = outputs[0].contiguous();
    const int64_t width = x.size(-1), rows = x.numel() / width;
    const at::Tensor dx = context->needs_input_grad(0) ? at::empty_like(x) : at::Tensor();
    const at::Tensor dw = at::zeros({at::get_num_threads(), width}, x.options());  // of each thread
    with_row_types(x.scalar_type(), [&](auto, auto zero) {
      using A = decltype(zero);
      for_rows(rows, width, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t r = begin; r < end; ++r) {
          row_ops<A, A>().rms_norm_backward(values_of<A>(x) + r * width, values_of<A>(weight), values_of<A>(dy) + r * width, width,
                                            values_of<A>(inverse)[r], dx.defined() ? values_of<A>(dx) + r * width : nullptr,
                                            values_of<A>(dw) + thread * width);
        }
      });
    });
    return {dx, dw.sum(0), at::Tensor()};
  }
};

struct Gated : torch::autograd::Function<Gated> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    const at::Tensor y = at::empty_like(gate);
    const int64_t width = gate.size(-1);
    with_row_types(gate.scalar_type(), [&](auto zero, auto wide) {
      using T = decltype(zero);
      for_rows(gate.size(0), width, [&](int64_t begin, int64_t end, int) {
        const int64_t at = begin * width;
        row_ops<T, decltype(wide)>().gated(values_of<T>(gate) + at, values_of<T>(up) + at, (end - begin) * width, values_of<T>(y) + at);
      });
    });
    context->save_for_backward({gate, up});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    const at::Tensor dy = outputs[0].contiguous(), d_gate = at::empty_like(gate), d_up = at::empty_like(up);
    const int64_t width = gate.size(-1);
    with_row_types(gate.scalar_type(), [&](auto zero, auto wide) {
      using T = decltype(zero);
      for_rows(gate.size(0), width, [&](int64_t begin, int64_t end, int) {
        const int64_t at = begin * width;
        row_ops<T, decltype(wide)>().gated_backward(values_of<T>(gate) + at, values_of<T>(up) + at, values_of<T>(dy) + at,
                                                    (end - begin) * width, values_of<T>(d_gate) + at, values_of<T>(d_up) + at);
      });
    });
    return {d_gate, d_up};
  }
};

at::Tensor turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const RopePlace& place) {
  const int64_t rows = x.size(0), row = x.size(1), width = row / place.heads, pairs = place.dim / 2;
  const int64_t stride = place.interleaved ? 2 : 1, second = place.interleaved ? 1 : pairs;  // from a pair's first value to its second
  const at::Tensor y = place.dim == width ? at::empty_like(x) : x.clone();
  with_row_types(x.scalar_type(), [&](auto, auto zero) {
    using A = decltype(zero);
    for_rows(rows, row, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t head = 0; head < place.heads; ++head) {
          const int64_t at = r * row + head * width + place.offset;
          const A* from = values_of<A>(x) + at;
          A* to = values_of<A>(y) + at;
          row_ops<A, A>().rotate(from, from + second, values_of<A>(cos) + r * pairs, values_of<A>(sin) + r * pairs, pairs, stride, to,
                                 to + second);
        }
      }
    });
  });
  return y;
}

struct Rotated : torch::autograd::Function<Rotated> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t heads,
                            int64_t offset, int64_t dim, bool interleaved) {
    context->save_for_backward({cos, sin});
    context->saved_data["place"] = std::vector<int64_t>{heads, offset, dim, interleaved ? 1 : 0};
    return turn(x.contiguous(), cos, sin, {heads, offset, dim, interleaved});
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<int64_t> place = context->saved_data["place"].toIntVector();
    variable_list gradients(7);
    gradients[0] = turn(outputs[0].contiguous(), saved[0], saved[1].neg(), {place[0], place[1], place[2], place[3] != 0});
    return gradients;
  }
};

}  // namespace

void for_rows(int64_t rows, int64_t values_per_row, const std::function<void(int64_t, int64_t, int)>& f) {
  constexpr int64_t kWorthwhile = 16384;  // values
  at::parallel_for(0, rows, std::max<int64_t>(1, kWorthwhile / values_per_row),
                   [&](int64_t begin, int64_t end) { f(begin, end, at::get_thread_num()); });
}

bool row_ops_reach(const at::Tensor& x) { return x.is_cpu() && without_row_ops == 0; }

WithoutRowOps::WithoutRowOps() { ++without_row_ops; }
WithoutRowOps::~WithoutRowOps() { --without_row_ops; }

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (row_ops_reach(x)) return RmsNorm::apply(x, weight, eps);
  return x * (x.square().mean(-1, /*keepdim=*/true) + eps).rsqrt() * weight;
}

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up) {
  return row_ops_reach(gate) ? Gated::apply(gate, up) : at::silu(gate) * up;
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const RopePlace& place) {
  if (row_ops_reach(x)) return Rotated::apply(x, cos, sin, place.heads, place.offset, place.dim, place.interleaved);
  const at::Tensor heads = x.view({x.size(0), place.heads, -1}), part = heads.narrow(2, place.offset, place.dim);
  // [rows, heads, pairs, 2] or [rows, heads, 2, pairs]
  const at::Tensor pairs = part.unflatten(2, place.interleaved ? at::IntArrayRef{place.dim / 2, 2} : at::IntArrayRef{2, place.dim / 2});
  const int64_t ends = place.interleaved ? 3 : 2;
  const at::Tensor a = pairs.select(ends, 0), b = pairs.select(ends, 1), c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  const at::Tensor turned = at::stack({a * c - b * s, b * c + a * s}, ends).flatten(2);
  const int64_t rest = heads.size(2) - place.offset - place.dim;
  return at::cat({heads.narrow(2, 0, place.offset), turned, heads.narrow(2, place.offset + place.dim, rest)}, 2).flatten(1);
}

}  // namespace aerie::train
