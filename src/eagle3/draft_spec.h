// DraftSpec: everything that a drafter's forward depends on, with nothing left implicit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/boundary.h"
#include "models/rope.h"

namespace aerie {

/// What normalises the target's feature before fc.
enum class FeatureNorm {
  kNone,
  kConcat,  // one RMSNorm over the k*Ht wide concat (`norm_before_fc`, tensor input_norm.weight)
  kPerTap,  // one RMSNorm per tap (`fc_norm`, tensors fc_norm.{i}.weight)
};

/// What a draft step hands to the next one as its h.
enum class Feedback {
  kPreNorm,   // the layer's output z (EAGLE-3)
  kPostNorm,  // rms(z, norm) (EAGLE-3.1, `norm_output`)
};

enum class AttentionKind {
  kGqa,  // q, k and v projected from the layer's input
  kMla,  // DeepSeek's latent attention (arXiv 2405.04434): low-rank q and kv, one rotated key slice shared by all heads
};

/// What the layers after the first one read. The first always reads the 2H wide concat of embedding and feature.
enum class LayerLayout {
  kHiddenNorm,  // "A": rms(z, hidden_norm), H wide (SGLang, TensorRT-LLM's default); the layer has no input_layernorm
  kInputNorm,   // "B": rms(z, input_layernorm), H wide: an ordinary block (vLLM, speculators, ModelOpt); no hidden_norm
  kConcat,      // "C": concat(rms(e, input_layernorm), rms(z, hidden_norm)), 2H wide (TensorRT-LLM, next_layer_regular false)
};

/// Where the value of a field came from.
enum class Source { kRead, kInferred, kDefaulted };
struct Provenance {
  Source source = Source::kDefaulted;
  std::string why;  // the key that was read, or the reason of an inference or a default
};

/// See docs/architecture.md for the words. Boundary b is the target's residual stream after b blocks.
struct DraftSpec {
  std::vector<int> taps;  // ordered boundaries, or kFinalNormed; their states are concatenated into the feature
  int target_hidden = 0;  // Ht
  int hidden = 0;         // H
  int layers = 1;
  LayerLayout layout = LayerLayout::kInputNorm;  // of the layers after the first
  AttentionKind attention = AttentionKind::kGqa;
  int heads = 0, kv_heads = 0;
  int head_dim = 0;             // of queries and keys; MLA: nope_dim + rope_dim
  int q_rank = 0, kv_rank = 0;  // MLA: q_lora_rank (0: q is projected directly) and kv_lora_rank
  int nope_dim = 0, v_dim = 0;  // MLA: the part of a key that is not rotated, the width of a value
  float latent_eps = 1e-6f;     // MLA: of the norms of q_a and kv_a, which DeepSeek's code makes without rms_eps
  int intermediate = 0;
  bool has_fc = true;  // false: the feature is h itself (one tap of the drafter's own width)
  bool fc_bias = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  // an RMSNorm of head_dim on every head's query and key, before RoPE (Qwen3)
  FeatureNorm feature_norm = FeatureNorm::kNone;
  bool norm_before_residual = false;  // the first layer's residual is rms(h, hidden_norm) rather than h
  bool feature_normed_twice = false;  // hidden_norm reads rms(h, input_layernorm) rather than h (ModelOpt's trainer)
  Feedback feedback = Feedback::kPreNorm;
  bool head_norm = true;     // false: the head reads z as it is (SpecForge 0.2.0 with norm_output false)
  float logit_scale = 1.0f;  // multiplies the logits
  float rope_theta = 10000.0f;
  RopeScaling rope_scaling;
  int rope_dim = 0;               // values of a head that are rotated, its first ones (MLA: its last ones); even
  bool rope_interleaved = false;  // pairs (2j, 2j+1) rather than (j, j + rope_dim/2)
  float attention_scale = 1.0f;   // multiplies 1/sqrt(head_dim) (DeepSeek's YaRN: mscale squared)
  int sliding_window = 0;         // a row sees this many rows, itself included; 0: all
  float rms_eps = 1e-6f;
  int max_positions = 0;
  bool own_embedding = false;      // the checkpoint has embed_tokens; otherwise the target's table is used (needs H == Ht)
  bool own_head = true;            // the checkpoint has lm_head; otherwise the target's is used (needs Vd == V and H == Ht)
  int vocab = 0, draft_vocab = 0;  // V, Vd
  std::vector<int32_t> d2t;        // [Vd] absolute target ids, injective and in [0, V); empty means identity (Vd == V)

  std::string dialect;  // "speculators", ...
  std::string path;
  std::map<std::string, Provenance> provenance;  // by field name

  int feature_width() const { return static_cast<int>(taps.size()) * target_hidden; }
  int query_width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
  /// Width of one head's value, and of what o reads.
  int value_dim() const { return attention == AttentionKind::kMla ? v_dim : head_dim; }
  int attended_width() const { return heads * value_dim(); }
  Rope rope() const { return {rope_dim, rope_theta, rope_interleaved, rope_scaling}; }
  /// Width of what layer j's attention reads: 2H for the first.
  int layer_input_width(int layer) const { return layer == 0 || layout == LayerLayout::kConcat ? 2 * hidden : hidden; }
  int32_t to_target(int draft_id) const { return d2t.empty() ? draft_id : d2t[static_cast<size_t>(draft_id)]; }

  /// Checks that the fields fit together: widths positive, heads divisible by kv_heads, rotated widths even, taps not empty, d2t
  /// injective and in range, shared tensors only where the widths allow it. The error names the field.
  Status validate() const;
};

/// Checks a drafter against the target it is to be used with; the error names both sizes.
Status check_fits_target(const DraftSpec& spec, int target_hidden, int target_vocab, int target_blocks);

/// Target id -> draft id, -1 where the target token is outside the draft vocabulary. Size V.
std::vector<int32_t> invert_d2t(const DraftSpec& spec);

}  // namespace aerie
