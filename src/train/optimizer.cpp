#include "train/optimizer.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

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
  const double keep = 1.0 - rate * o.weight_decay;
  const double move = -rate * 0.2 * std::sqrt(static_cast<double>(std::max(p.value.size(0), p.value.size(1))));
  if (!row_ops_reach(p.value)) {
    p.first.mul_(o.momentum).add_(gradient, scale);
    const at::Tensor ahead = at::add(gradient * scale, p.first, o.momentum);
    p.value.mul_(keep).add_(orthogonalised(ahead.to(o.matmul_type), ahead.norm().item<double>()), move);
    return;
  }
  constexpr int64_t kPiece = 4096;  // stays in the cache from one loop over it to the next
  const at::Tensor g = gradient.contiguous(),
                   ahead = at::empty(p.value.sizes(), p.value.options().dtype(o.matmul_type).requires_grad(false));
  const int64_t n = p.value.numel(), pieces = (n + kPiece - 1) / kPiece;
  const auto for_pieces = [&](const auto& f) {
    for_rows(pieces, kPiece, [&](int64_t begin, int64_t end, int) {
      for (int64_t piece = begin; piece < end; ++piece) f(piece, piece * kPiece, std::min(kPiece, n - piece * kPiece));
    });
  };
  with_row_types(o.matmul_type, [&](auto narrow, auto wide) {
    using T = decltype(narrow);
    using A = decltype(wide);
    const RowOps<T, A>& ops = row_ops<T, A>();
    std::vector<double> squares(static_cast<size_t>(pieces));  // added up in order: the sum does not depend on the threads
    for_pieces([&](int64_t piece, int64_t at, int64_t count) {
      squares[static_cast<size_t>(piece)] = ops.momentum(static_cast<A>(o.momentum), static_cast<A>(scale), values_of<A>(g) + at, count,
                                                         values_of<A>(p.first) + at, values_of<T>(ahead) + at);
    });
    const at::Tensor step = orthogonalised(ahead, std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0))).contiguous();
    for_pieces([&](int64_t, int64_t at, int64_t count) {
      A* value = values_of<A>(p.value) + at;
      for (int64_t j = 0; j < count; ++j) value[j] *= static_cast<A>(keep);
      ops.add_product(static_cast<A>(move), values_of<T>(step) + at, count, value);
    });
  });
}

}  // namespace

at::Tensor orthogonalised(const at::Tensor& g, double norm) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;  // the steepest at zero of those that do not leave [0.7, 1.2]
  const bool tall = g.size(0) > g.size(1);
  at::Tensor x = g / (norm + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor gram = tall ? at::mm(x.t(), x) : at::mm(x, x.t());
    const at::Tensor powers = at::addmm(gram, gram, gram, b, c);
    x = tall ? at::addmm(x, x, powers, a) : at::addmm(x, powers, x, a);
  }
  return x;
}

double learning_rate_factor(int64_t step, int64_t warmup_steps, double progress) {
  const double warm = step < warmup_steps ? static_cast<double>(step + 1) / static_cast<double>(warmup_steps) : 1.0;
  return warm * (0.55 + 0.45 * std::cos(std::numbers::pi * progress));
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
