// A healthy drafter with a flat config, as SpecForge writes it, in pieces that a test can damage.
#pragma once

#include "checkpoint_parts.h"
#include "draft_fixture.h"
#include "eagle3/dialects/named_tensors.h"

namespace aerie {

/// A drafter of a target with N = 12 blocks, H = Ht = 16, as SpecForge writes it.
inline DraftSpec flat_spec() {
  DraftSpec spec = tiny_spec();
  spec.taps = {2, 6, 9};
  spec.target_hidden = 16;
  spec.feature_norm = FeatureNorm::kNone;
  spec.norm_before_residual = false;
  spec.feedback = Feedback::kPreNorm;
  spec.own_embedding = false;
  return spec;
}

inline void add_weights(Parts& parts, const DraftSpec& spec, const std::string& first_layer, unsigned seed = 1) {
  for (const auto& [name, values] : random_weights(spec, seed)) {
    std::vector<uint64_t> shape;
    for (const DraftTensor& tensor : draft_tensors(spec)) {
      if (tensor.name == name) shape = tensor.shape;
    }
    std::vector<uint8_t> bytes(values.size() * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    parts.tensors[checkpoint_name(name, first_layer)] = {DType::kF32, shape, std::move(bytes)};
  }
}

/// The same with latent attention.
inline DraftSpec latent_spec() {
  DraftSpec spec = flat_spec();
  spec.attention = AttentionKind::kMla;
  spec.q_rank = 12;
  spec.kv_rank = 8;
  spec.nope_dim = 8;
  spec.rope_dim = 4;
  spec.v_dim = 6;
  spec.head_dim = 12;
  spec.kv_heads = 4;
  return spec;
}

inline Parts flat_parts(const DraftSpec& spec = flat_spec(), const std::string& first_layer = "midlayer.") {
  Parts parts;
  parts.config = {{"architectures", {"LlamaForCausalLMEagle3"}},
                  {"model_type", "llama"},
                  {"hidden_size", spec.hidden},
                  {"intermediate_size", spec.intermediate},
                  {"num_attention_heads", spec.heads},
                  {"num_key_value_heads", spec.kv_heads},
                  {"head_dim", spec.head_dim},
                  {"num_hidden_layers", spec.layers},
                  {"vocab_size", spec.vocab},
                  {"draft_vocab_size", spec.draft_vocab},
                  {"rms_norm_eps", 1e-5},
                  {"rope_theta", 10000.0},
                  {"max_position_embeddings", spec.max_positions},
                  {"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {1, 5, 8}}, {"use_aux_hidden_state", true}}}};
  add_weights(parts, spec, first_layer);
  std::vector<int64_t> offsets;
  std::vector<uint8_t> known(static_cast<size_t>(spec.vocab), 0);
  for (size_t d = 0; d < spec.d2t.size(); ++d) {
    offsets.push_back(spec.d2t[d] - static_cast<int64_t>(d));
    known[static_cast<size_t>(spec.d2t[d])] = 1;
  }
  if (!offsets.empty()) {
    parts.set_i64("d2t", offsets);
    parts.tensors["t2d"] = {DType::kBool, {known.size()}, known};
  }
  return parts;
}

}  // namespace aerie
