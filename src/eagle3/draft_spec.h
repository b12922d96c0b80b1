// DraftSpec: everything that a drafter's forward depends on, with nothing left implicit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

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

/// Where the value of a field came from.
enum class Source { kRead, kInferred, kDefaulted };
struct Provenance {
  Source source = Source::kDefaulted;
  std::string why;  // the key that was read, or the reason of an inference or a default
};

/// See docs/architecture.md for the words. Boundary b is the target's residual stream after b blocks.
struct DraftSpec {
  std::vector<int> taps;  // ordered boundaries; their states are concatenated into the feature
  int target_hidden = 0;  // Ht
  int hidden = 0;         // H
  int heads = 0, kv_heads = 0, head_dim = 0;
  int intermediate = 0;
  FeatureNorm feature_norm = FeatureNorm::kNone;
  bool norm_before_residual = false;  // the residual is rms(h, hidden_norm) rather than h
  Feedback feedback = Feedback::kPreNorm;
  float rope_theta = 10000.0f;
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
  int32_t to_target(int draft_id) const { return d2t.empty() ? draft_id : d2t[static_cast<size_t>(draft_id)]; }

  /// Checks that the fields fit together: widths positive, heads divisible by kv_heads, head_dim even, taps not empty and not
  /// negative, d2t injective and in range, shared tensors only where the widths allow it. The error names the field.
  Status validate() const;
};

/// Checks a drafter against the target it is to be used with; the error names both sizes.
Status check_fits_target(const DraftSpec& spec, int target_hidden, int target_vocab, int target_blocks);

/// The fields that differ between two specs, as "name: A against B"; where a spec came from (dialect, path, provenance) is not a
/// field of it. Empty means that both describe the same forward.
std::vector<std::string> differing_fields(const DraftSpec& a, const DraftSpec& b);

/// Target id -> draft id, -1 where the target token is outside the draft vocabulary. Size V.
std::vector<int32_t> invert_d2t(const DraftSpec& spec);

}  // namespace aerie
