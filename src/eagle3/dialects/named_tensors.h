// A checkpoint's tensors by canonical name, each of them accounted for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "eagle3/checkpoint.h"
#include "eagle3/dialects/layer_config.h"
#include "eagle3/dialects/vocab_map.h"
#include "eagle3/raw_checkpoint.h"

namespace aerie {

/// The canonical name ("layers.0.q") of a tensor's name in PyTorch's checkpoints ("layers.0.self_attn.q_proj.weight"), in all
/// spellings that are known: `midlayer.` and `model.` in front, SGLang's aux_norm_{low,mid,high}. Also "d2t" and "t2d". Empty where
/// the name is none of them.
std::string canonical_name(const std::string& name);

/// The name in a checkpoint whose first layer is called `first_layer` ("layers.0." or "midlayer.").
std::string checkpoint_name(const std::string& canonical, const std::string& first_layer = "layers.0.");

class NamedTensors {
 public:
  /// All tensors of a folder. Two that have the same canonical name are an error; buffers that are computed are left out.
  static Expected<NamedTensors> of_folder(const RawCheckpoint& raw);

  /// Null where there is none.
  const TensorView* find(const std::string& canonical) const;
  bool has(const std::string& canonical) const { return find(canonical) != nullptr; }
  /// Adds a tensor under its canonical name; false where the name is taken. `tensor.name` is what errors call it.
  bool add(const std::string& canonical, const TensorView& tensor) { return tensors_.emplace(canonical, tensor).second; }
  void add_unknown(const TensorView& tensor) { unknown_.push_back(tensor); }

  /// Hands the tensors that the spec calls for to `out`. A missing or misshapen one, and one that nothing uses, is an error.
  Status hand_out(const std::string& shown_first_layer, DraftCheckpoint& out) const;

  /// How many layers have tensors: the highest index plus one.
  int layers() const;
  /// How many taps of this width fc reads, 0 where that cannot be told.
  int taps_of_fc(int target_hidden) const;

 private:
  Status explain_unused(const std::string& canonical, const TensorView& tensor, const DraftSpec& spec) const;

  std::map<std::string, TensorView> tensors_;
  std::vector<TensorView> unknown_;
};

/// What differs between dialects where the tensors have the last word.
struct TensorRules {
  D2tForm d2t = D2tForm::kOffset;
  bool layers_as_claimed = false;  // otherwise the stored layers count: some configs keep the target's number
};

/// Sets what the tensors decide: layers, layout, biases, q/k norms, own embedding and head, Vd, d2t. The rest of the spec is set,
/// taps included (they may be kUnknownTap).
Status settle_by_tensors(const NamedTensors& tensors, const LayerClaims& claims, const TensorRules& rules, SpecBuilder& build);

/// spec.validate() with taps that are not known taken as good.
Status validate_but_unknown_taps(const DraftSpec& spec);

}  // namespace aerie
