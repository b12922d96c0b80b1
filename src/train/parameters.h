// The drafter's weights while they are trained: float32 masters, their AdamW moments, and the views that the forward runs on.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "eagle3/checkpoint.h"
#include "formats/safetensors.h"
#include "train/target_tensors.h"
#include "train/torch_ops.h"
#include "train/trainer.h"
#include "train/ttt.h"

namespace aerie::train {

/// One trained tensor. Names are those of DraftWeights, as in eagle3/checkpoint.h.
struct Parameter {
  std::string name;
  at::Tensor value;          // float32, a leaf of autograd; the head's gradient is written by hand
  at::Tensor gradient;       // the head's; undefined otherwise (value.grad() has it)
  at::Tensor first, second;  // the optimiser's moments
  double rate = 1.0;         // of the learning rate; 0 = frozen
  bool decay = true;         // matrices only
};

class Parameters {
 public:
  /// Norms of one and matrices drawn from `seed`; the head as `mode` says, from the target's rows of spec.d2t.
  static Parameters initial(const DraftSpec& spec, const TargetTensors& target, HeadMode mode, uint64_t seed,
                            at::ScalarType type = at::kFloat);

  /// Before anything is trained.
  void move_to(const at::Device& device);
  /// Takes over a drafter's weights; `checkpoint` has every tensor that `initial` made for the same spec.
  Status take(const DraftCheckpoint& checkpoint);

  std::vector<Parameter>& list() { return list_; }
  const std::vector<Parameter>& list() const { return list_; }
  Parameter* find(const std::string& name);

  /// The weights for one forward, matrices in `matmul_type`; gradients flow back to the masters.
  DraftWeights<TorchOps> view(const DraftSpec& spec, at::ScalarType matmul_type) const;
  /// Where the head's gradient is added up; undefined when it is frozen.
  at::Tensor head_gradient();

  void zero_gradients();
  /// Gradients of everything that is trained, made of zeros where there is none yet.
  std::vector<at::Tensor> gradients();
  /// Masters and moments.
  std::vector<at::Tensor> state();
  /// The norm of all gradients together.
  double gradient_norm() const;
  /// Copies by canonical name, rounded to bf16 as a checkpoint is: what is judged and what is saved are the same numbers.
  std::map<std::string, std::vector<float>> values() const;

 private:
  std::vector<Parameter> list_;
};

/// The teacher's tensors for a draft vocabulary, with the head in `matmul_type`.
Teacher make_teacher(const TargetTensors& target, const DraftSpec& spec, at::ScalarType state_type, at::ScalarType matmul_type,
                     const at::Device& device = at::kCPU);

/// Saves or restores masters and moments among the tensors of a safetensors file. A file that was there becomes previous_state(path).
std::string previous_state(const std::string& path);
Status save_training_state(const std::string& path, const Parameters& parameters, const std::vector<int32_t>& d2t,
                           const std::map<std::string, std::string>& metadata);
/// kCorrupt: its tensors or what is said beside them are not what was saved, by the checksum that was saved with them. Nothing of it may be
/// believed before.
Status check_training_state(const SafetensorsFile& file);
Status load_training_state(const SafetensorsFile& file, Parameters& parameters);

}  // namespace aerie::train
