#include "train/optimizer.h"

#include <cmath>

#include "train/fused.h"

namespace aerie::train {
namespace {

void adam(Parameter& p, const at::Tensor& gradient, const OptimizerOptions& o, double rate, double scale, int64_t step) {
  if (!row_ops_reach(p.value)) {
    const at::Tensor g = gradient * scale;
    p.first.mul_(o.beta1).add_(g, 1 - o.beta1);
    p.second.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
    if (p.decay) p.value.mul_(1 - rate * o.weight_decay);
    const at::Tensor spread = (p.second / (1 - std::pow(o.beta2, static_cast<double>(step)))).sqrt_().add_(o.eps);
    p.value.addcdiv_(p.first, spread, -rate / (1 - std::pow(o.beta1, static_cast<double>(step))));
    return;
  }
  const at::Tensor g = gradient.contiguous();
  with_row_types(p.value.scalar_type(), [&](auto, auto zero) {
    using A = decltype(zero);
    AdamStep<A> adam;
    adam.beta1 = static_cast<A>(o.beta1);
    adam.beta2 = static_cast<A>(o.beta2);
    adam.eps = static_cast<A>(o.eps);
    adam.gradient_scale = static_cast<A>(scale);
    adam.keep = static_cast<A>(p.decay ? 1.0 - rate * o.weight_decay : 1.0);
    adam.rate = static_cast<A>(rate / (1.0 - std::pow(o.beta1, static_cast<double>(step))));
    adam.inverse_correction2 = static_cast<A>(1.0 / (1.0 - std::pow(o.beta2, static_cast<double>(step))));
    for_rows(p.value.numel(), 1, [&](int64_t begin, int64_t end, int) {
      row_ops<A, A>().adam(adam, values_of<A>(g) + begin, end - begin, values_of<A>(p.value) + begin, values_of<A>(p.first) + begin,
                           values_of<A>(p.second) + begin);
    });
  });
}

/// Muon with Nesterov momentum. The factor gives the step the root mean square that AdamW's has (arXiv 2502.16982), so that both take the
/// same learning rates.
void muon(Parameter& p, const at::Tensor& gradient, const OptimizerOptions& o, double rate, double scale) {
  p.first.mul_(o.momentum).add_(gradient, scale);
  const at::Tensor ahead = at::add(gradient * scale, p.first, o.momentum);
  const double longer = static_cast<double>(std::max(ahead.size(0), ahead.size(1)));
  p.value.mul_(1.0 - rate * o.weight_decay).add_(orthogonalised(ahead, o.matmul_type), -rate * 0.2 * std::sqrt(longer));
}

}  // namespace

at::Tensor orthogonalised(const at::Tensor& g, at::ScalarType type) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;  // the steepest at zero of those that do not leave [0.7, 1.2]
  const bool tall = g.size(0) > g.size(1);
  at::Tensor x = ((tall ? g.t() : g) / (g.norm() + 1e-7)).to(type);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor gram = at::matmul(x, x.t());
    x = a * x + at::matmul(b * gram + c * at::matmul(gram, gram), x);
  }
  return (tall ? x.t() : x).to(g.scalar_type());
}

void update(Parameters& parameters, const OptimizerOptions& options, double learning_rate, int64_t step, double norm) {
  const at::NoGradGuard no_grad;
  const double scale = norm > options.clip ? options.clip / norm : 1.0;
  for (Parameter& p : parameters.list()) {
    const at::Tensor gradient = p.gradient.defined() ? p.gradient : p.value.grad();
    if (!gradient.defined() || p.rate == 0.0) continue;
    const double rate = learning_rate * p.rate;
    // The head's rows are the tokens' own vectors, not a map between two spaces.
    if (options.kind == Optimizer::kMuon && p.value.dim() == 2 && p.name != "lm_head") {
      muon(p, gradient, options, rate, scale);
    } else {
      adam(p, gradient, options, rate, scale, step);
    }
  }
}

}  // namespace aerie::train
