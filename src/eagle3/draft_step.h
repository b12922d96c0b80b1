// The one forward of an EAGLE-3 drafter (arXiv 2503.01840). Training, replay and serving instantiate this template over their
// own operations; a second copy of it anywhere would be a defect.
//
// Row i of a drafter reads e = embed(token i+1) and h: the fused target feature of position i at step 0, its own output of the
// step before at later steps. Its RoPE position is i + step, and it predicts token i+2+step.
//
// `Ops` supplies: types Tensor, Matrix, Vector, Positions; and
//   rms_norm(Tensor [n,w], Vector [w], float eps) -> Tensor [n,w]
//   rms_norm_slices(Tensor [n,k*w], span of k Vectors [w], eps) -> Tensor [n,k*w]     each slice normed by itself
//   rms_norm_heads(Tensor [n,heads*d], Vector [d], eps) -> Tensor                     each head normed with the one weight
//   concat(Tensor [n,a], Tensor [n,b]) -> Tensor [n,a+b]
//   linear(Tensor [n,in], Linear [out,in]) -> Tensor [n,out]                          with its bias, if it has one
//   qkv(Tensor [n,in], Linear q, Linear k, Linear v) -> struct {q, k, v}              one list of tasks
//   gated_mlp_in(Tensor [n,in], Linear gate, Linear up) -> Tensor [n,inter]           silu(gate x) * (up x)
//   rope(Tensor [n,heads*d], heads, offset, Rope, Positions) -> Tensor                turns rope.dim values of a head from `offset` on
//   split_heads(Tensor [n,heads*(a+b)], heads, a) -> struct {first [n,heads*a], second [n,heads*b]}
//   join_heads(Tensor [n,heads*a], Tensor [n,b], heads) -> Tensor [n,heads*(a+b)]     every head with the one b
//   add(Tensor, Tensor) -> Tensor
#pragma once

#include "eagle3/draft_spec.h"
#include "eagle3/draft_weights.h"

namespace aerie {

template <class Ops>
struct DraftStep {
  typename Ops::Tensor head_input;  // [n, H] logits = logit_scale * lm_head head_input
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
  return spec.has_fc ? ops.linear(g, w.fc) : g;
}

/// What a layer's attention and its residual read of e and h [n, H].
template <class Ops>
struct LayerInput {
  typename Ops::Tensor x;         // [n, layer_input_width]
  typename Ops::Tensor residual;  // [n, H]
};

template <class Ops>
LayerInput<Ops> layer_input(Ops& ops, const DraftSpec& spec, const DraftLayerWeights<Ops>& w, int layer, const typename Ops::Tensor& e,
                            const typename Ops::Tensor& h) {
  const float eps = spec.rms_eps;
  if (layer > 0 && spec.layout == LayerLayout::kHiddenNorm) return {ops.rms_norm(h, w.hidden_norm, eps), h};
  if (layer > 0 && spec.layout == LayerLayout::kInputNorm) return {ops.rms_norm(h, w.input_layernorm, eps), h};
  const bool normed_twice = layer == 0 && spec.feature_normed_twice;
  auto e_normed = ops.rms_norm(e, w.input_layernorm, eps);
  auto h_normed = ops.rms_norm(normed_twice ? ops.rms_norm(h, w.input_layernorm, eps) : h, w.hidden_norm, eps);
  return {ops.concat(e_normed, h_normed), layer == 0 && spec.norm_before_residual ? h_normed : h};  // [n, 2H], embedding first
}

/// q, k and v of plain attention, q and k rotated.
template <class Ops>
typename Ops::Qkv project_gqa(Ops& ops, const DraftSpec& spec, const DraftLayerWeights<Ops>& w, const typename Ops::Tensor& x,
                              const typename Ops::Positions& positions) {
  auto [q, k, v] = ops.qkv(x, w.q, w.k, w.v);
  if (spec.qk_norm) {
    q = ops.rms_norm_heads(q, w.q_norm, spec.rms_eps);
    k = ops.rms_norm_heads(k, w.k_norm, spec.rms_eps);
  }
  q = ops.rope(q, spec.heads, 0, spec.rope(), positions);
  k = ops.rope(k, spec.kv_heads, 0, spec.rope(), positions);
  return {q, k, v};
}

/// The same with latent attention (arXiv 2405.04434), expanded to one key and one value for every head: a head of q and k is
/// [nope | rotated], and all heads share k's rotated part.
template <class Ops>
typename Ops::Qkv project_mla(Ops& ops, const DraftSpec& spec, const DraftLayerWeights<Ops>& w, const typename Ops::Tensor& x,
                              const typename Ops::Positions& positions) {
  auto q = spec.q_rank == 0 ? ops.linear(x, w.q) : ops.linear(ops.rms_norm(ops.linear(x, w.q_a), w.q_a_norm, spec.latent_eps), w.q_b);
  auto [latent, k_rotated] = ops.split_heads(ops.linear(x, w.kv_a), 1, spec.kv_rank);  // [n, kv_rank], [n, rope_dim]
  auto kv = ops.linear(ops.rms_norm(latent, w.kv_a_norm, spec.latent_eps), w.kv_b);    // [n, heads*(nope_dim + v_dim)]
  auto [k_nope, v] = ops.split_heads(kv, spec.heads, spec.nope_dim);
  q = ops.rope(q, spec.heads, spec.nope_dim, spec.rope(), positions);
  k_rotated = ops.rope(k_rotated, 1, 0, spec.rope(), positions);
  return {q, ops.join_heads(k_nope, k_rotated, spec.heads), v};
}

/// One layer for n rows; its output is h of the next layer.
template <class Ops, class Attend>
typename Ops::Tensor draft_layer(Ops& ops, const DraftSpec& spec, const DraftLayerWeights<Ops>& w, int layer, const typename Ops::Tensor& e,
                                 const typename Ops::Tensor& h, const typename Ops::Positions& positions, Attend&& attend) {
  auto [x, residual] = layer_input(ops, spec, w, layer, e, h);
  const bool is_mla = spec.attention == AttentionKind::kMla;
  auto [q, k, v] = is_mla ? project_mla(ops, spec, w, x, positions) : project_gqa(ops, spec, w, x, positions);
  auto attended = attend(layer, q, k, v);  // [n, heads*value_dim]

  auto y = ops.add(residual, ops.linear(attended, w.o));
  auto u = ops.rms_norm(y, w.post_attention_layernorm, spec.rms_eps);
  return ops.add(y, ops.linear(ops.gated_mlp_in(u, w.gate, w.up), w.down));
}

/// One draft step for n rows: e [n,H] embeddings, h [n,H] features or fed-back states, their RoPE positions, and `attend`, which
/// takes a layer's number, q [n, heads*head_dim], k [n, kv_heads*head_dim] and v [n, kv_heads*value_dim] (q and k already rotated),
/// makes k and v visible to the rows that may see them, and returns [n, heads*value_dim].
template <class Ops, class Attend>
DraftStep<Ops> draft_step(Ops& ops, const DraftSpec& spec, const DraftWeights<Ops>& w, const typename Ops::Tensor& e,
                          typename Ops::Tensor h, const typename Ops::Positions& positions, Attend&& attend) {
  for (int j = 0; j < spec.layers; ++j) h = draft_layer(ops, spec, w.layers[static_cast<size_t>(j)], j, e, h, positions, attend);
  if (!spec.head_norm && spec.feedback == Feedback::kPreNorm) return {h, h};
  auto normed = ops.rms_norm(h, w.norm, spec.rms_eps);
  return {spec.head_norm ? normed : h, spec.feedback == Feedback::kPostNorm ? normed : h};
}

}  // namespace aerie
