// A drafter's weights over one set of operations, and their canonical names.
#pragma once

#include <string>
#include <vector>

#include "eagle3/draft_spec.h"

namespace aerie {

/// A projection x -> weight x + bias.
template <class Ops>
struct Linear {
  typename Ops::Matrix weight;  // [out, in]
  typename Ops::Vector bias;    // [out], empty where the spec has none
};

/// One layer. `in` is DraftSpec::layer_input_width; what a layer's spec does not call for stays empty.
template <class Ops>
struct DraftLayerWeights {
  using Vector = typename Ops::Vector;
  Vector input_layernorm;           // [H]
  Vector hidden_norm;               // [H]
  Linear<Ops> q;                    // [heads*head_dim, in]; MLA: where q_rank is 0
  Linear<Ops> k, v;                 // [kv_heads*head_dim, in]
  Vector q_norm, k_norm;            // [head_dim]
  Linear<Ops> q_a;                  // MLA: [q_rank, in]
  Vector q_a_norm;                  //      [q_rank]
  Linear<Ops> q_b;                  //      [heads*head_dim, q_rank]
  Linear<Ops> kv_a;                 //      [kv_rank + rope_dim, in]
  Vector kv_a_norm;                 //      [kv_rank]
  Linear<Ops> kv_b;                 //      [heads*(nope_dim + v_dim), kv_rank]
  Linear<Ops> o;                    // [H, heads*value_dim]
  Vector post_attention_layernorm;  // [H]
  Linear<Ops> gate, up;             // [I, H]
  Linear<Ops> down;                 // [H, I]
};

template <class Ops>
struct DraftWeights {
  using Vector = typename Ops::Vector;
  Vector input_norm;            // [k*Ht]  only FeatureNorm::kConcat
  std::vector<Vector> fc_norm;  // k x [Ht]  only FeatureNorm::kPerTap
  Linear<Ops> fc;               // [H, k*Ht]
  std::vector<DraftLayerWeights<Ops>> layers;
  Vector norm;                   // [H]
  typename Ops::Matrix lm_head;  // [Vd, H]
};

/// Sizes the lists of `weights` for `spec` and calls visit(canonical name, Matrix& or Vector&) for every weight that a drafter can
/// have. Names as in checkpoint.h; those that draft_tensors(spec) does not list stay empty.
template <class Ops, class Visit>
void visit_weights(const DraftSpec& spec, DraftWeights<Ops>& weights, Visit&& visit) {
  const auto linear = [&](const std::string& name, Linear<Ops>& to) {
    visit(name, to.weight);
    visit(name + "_bias", to.bias);
  };
  weights.fc_norm.resize(spec.feature_norm == FeatureNorm::kPerTap ? spec.taps.size() : 0);
  weights.layers.resize(static_cast<size_t>(spec.layers));
  visit("input_norm", weights.input_norm);
  for (size_t i = 0; i < weights.fc_norm.size(); ++i) visit("fc_norm." + std::to_string(i), weights.fc_norm[i]);
  linear("fc", weights.fc);
  for (size_t j = 0; j < weights.layers.size(); ++j) {
    DraftLayerWeights<Ops>& w = weights.layers[j];
    const std::string layer = "layers." + std::to_string(j) + ".";
    visit(layer + "input_layernorm", w.input_layernorm);
    visit(layer + "hidden_norm", w.hidden_norm);
    linear(layer + "q", w.q);
    linear(layer + "k", w.k);
    linear(layer + "v", w.v);
    visit(layer + "q_norm", w.q_norm);
    visit(layer + "k_norm", w.k_norm);
    linear(layer + "q_a", w.q_a);
    visit(layer + "q_a_norm", w.q_a_norm);
    linear(layer + "q_b", w.q_b);
    linear(layer + "kv_a", w.kv_a);
    visit(layer + "kv_a_norm", w.kv_a_norm);
    linear(layer + "kv_b", w.kv_b);
    linear(layer + "o", w.o);
    visit(layer + "post_attention_layernorm", w.post_attention_layernorm);
    linear(layer + "gate", w.gate);
    linear(layer + "up", w.up);
    linear(layer + "down", w.down);
  }
  visit("norm", weights.norm);
  visit("lm_head", weights.lm_head);
}

}  // namespace aerie
