// The one forward of an EAGLE-3 drafter (arXiv 2503.01840). Training, replay and serving instantiate this template over their
// own operations; a second copy of it anywhere would be a defect.
//
// Row i of a drafter reads e = embed(token i+1) and h: the fused target feature of position i at step 0, its own output of the
// step before at later steps. Its RoPE position is i + step, and it predicts token i+2+step.
//
// `Ops` supplies: types Tensor, Matrix, Vector; and
//   rms_norm(Tensor [n,w], Vector [w], float eps) -> Tensor [n,w]
//   rms_norm_slices(Tensor [n,k*w], span of k Vectors [w], eps) -> Tensor [n,k*w]     each slice normed by itself
//   concat(Tensor [n,a], Tensor [n,b]) -> Tensor [n,a+b]
//   linear(Tensor [n,in], Matrix [out,in]) -> Tensor [n,out]
//   qkv(Tensor [n,in], Matrix q, Matrix k, Matrix v) -> struct {q, k, v}              one list of tasks
//   gated_mlp_in(Tensor [n,in], Matrix gate, Matrix up) -> Tensor [n,inter]           silu(gate x) * (up x)
//   rope(Tensor [n,heads*head_dim], heads, head_dim, theta, Positions) -> Tensor
//   add(Tensor, Tensor) -> Tensor
#pragma once

#include <vector>

#include "eagle3/draft_spec.h"

namespace aerie {

template <class Ops>
struct DraftWeights {
  using Matrix = typename Ops::Matrix;
  using Vector = typename Ops::Vector;
  Matrix fc;                    // [H, k*Ht]
  Vector input_norm;            // [k*Ht]       only FeatureNorm::kConcat
  std::vector<Vector> fc_norm;  // k x [Ht]     only FeatureNorm::kPerTap
  Vector input_layernorm;       // [H]          on the embedding
  Vector hidden_norm;           // [H]          on the feature
  Matrix q, k, v;               // [heads*head_dim | kv_heads*head_dim, 2H]
  Matrix o;                     // [H, heads*head_dim]
  Vector post_attention_layernorm;  // [H]
  Matrix gate, up;              // [I, H]
  Matrix down;                  // [H, I]
  Vector norm;                  // [H]
  Matrix lm_head;               // [Vd, H]
};

template <class Ops>
struct DraftStep {
  typename Ops::Tensor head_input;  // [n, H] logits = lm_head head_input
  typename Ops::Tensor feedback;    // [n, H] h of the next step
};

/// h = fc(norm(g)) for the target's features g [n, k*Ht]; only step 0 uses it, it is never applied to fed-back state.
template <class Ops>
typename Ops::Tensor fuse_features(Ops& ops, const DraftSpec& spec, const DraftWeights<Ops>& w, typename Ops::Tensor g) {
  switch (spec.feature_norm) {
    case FeatureNorm::kNone: break;
    case FeatureNorm::kConcat: g = ops.rms_norm(g, w.input_norm, spec.rms_eps); break;
    case FeatureNorm::kPerTap: g = ops.rms_norm_slices(g, w.fc_norm, spec.rms_eps); break;
  }
  return ops.linear(g, w.fc);
}

/// One draft step for n rows: e [n,H] embeddings, h [n,H] features or fed-back states, their RoPE positions, and `attend`, which
/// takes q [n, heads*head_dim], k and v [n, kv_heads*head_dim] (q and k already rotated), makes k and v visible to the rows that
/// may see them, and returns [n, heads*head_dim].
template <class Ops, class Attend>
DraftStep<Ops> draft_step(Ops& ops, const DraftSpec& spec, const DraftWeights<Ops>& w, typename Ops::Tensor e, typename Ops::Tensor h,
                          const typename Ops::Positions& positions, Attend&& attend) {
  auto e_normed = ops.rms_norm(e, w.input_layernorm, spec.rms_eps);
  auto h_normed = ops.rms_norm(h, w.hidden_norm, spec.rms_eps);
  auto x = ops.concat(e_normed, h_normed);  // [n, 2H], embedding first

  auto [q, k, v] = ops.qkv(x, w.q, w.k, w.v);
  q = ops.rope(q, spec.heads, spec.head_dim, spec.rope_theta, positions);
  k = ops.rope(k, spec.kv_heads, spec.head_dim, spec.rope_theta, positions);
  auto attended = attend(q, k, v);  // [n, heads*head_dim]

  auto residual = spec.norm_before_residual ? h_normed : h;
  auto y = ops.add(residual, ops.linear(attended, w.o));
  auto u = ops.rms_norm(y, w.post_attention_layernorm, spec.rms_eps);
  auto z = ops.add(y, ops.linear(ops.gated_mlp_in(u, w.gate, w.up), w.down));

  auto normed = ops.rms_norm(z, w.norm, spec.rms_eps);
  return {normed, spec.feedback == Feedback::kPostNorm ? normed : z};
}

}  // namespace aerie
