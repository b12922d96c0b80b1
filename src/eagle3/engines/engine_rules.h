// The switches by which engines differ in what they make of a drafter's files. Data; as_served.cpp follows it.
#pragma once

#include <string>
#include <string_view>

#include "eagle3/draft_spec.h"
#include "eagle3/engines/engine_version.h"
#include "eagle3/engines/target_family.h"
#include "eagle3/layer_ids.h"

namespace aerie {

/// The module that an engine builds for a drafter.
enum class DrafterClass { kLlama, kQwen3, kMla };

/// Where a list of layer ids is looked for.
enum class IdSource { kNowhere, kTop, kNested, kTopThenNested, kTopThenShortNested };

/// Where a flag is looked for: at the config's top level, in its eagle_config.
enum class FlagPlace { kNowhere, kTop, kNested, kNestedThenTop };

/// How many tap widths fc is built for.
enum class AuxCount {
  kThree,
  kNumberThenNested,  // num_aux_hidden_states, then the nested list's length, then 3
  kNestedThenTop,     // the nested list's length, then the top-level list's, then 3
  kNumbersThenTopThenNested,
};

enum class UnknownTensors { kDropped, kRefused };
enum class MissingTensors { kSilent, kRefused };

/// Whose embedding or head is used.
enum class OwnTensor { kNever, kIfStored, kAlways, kIfWidthsDiffer };

/// Which of RoPE's two schemas is read.
enum class RopeSource {
  kVersion4,         // rope_theta and rope_scaling alone
  kParametersFirst,  // rope_parameters where it is there, otherwise version 4
  kScalingFirst,     // transformers 5: a rope_scaling dict beats rope_parameters; a rope_theta in a dict beats the top level's
};

struct EngineRules {
  // What is loaded at all. Empty class lists: any architecture with a draft_vocab_size.
  std::string_view llama_classes, qwen3_classes, mla_classes;
  bool mla = true;                      // where any architecture is loaded: one with kv_lora_rank too
  bool speculators = false;             // the nested config of the speculators dialect is read
  bool speculators_raw_default = true;  // norm_before_residual that it does not state is false
  bool draft_vocab_required = false;
  bool one_layer = false;  // num_hidden_layers other than 1 is refused

  IdSource ids = IdSource::kNowhere;
  LayerIdRule id_rule = LayerIdRule::kBoundary;
  bool file_order = false;           // otherwise captured in ascending order, each once
  bool empty_list_is_absent = true;  // otherwise nothing is captured
  bool embedding_tap = true;         // boundary 0 can be captured
  AuxCount aux = AuxCount::kThree, aux_mla = AuxCount::kThree, aux_qwen3 = AuxCount::kThree;

  FlagPlace norm_before_fc = FlagPlace::kNowhere, norm_before_fc_mla = FlagPlace::kNowhere;
  bool fc_norm = false, fc_norm_mla = false, norm_output = false, norm_output_mla = false;  // at the top level
  bool use_aux_norm = false;                                                                // another word for fc_norm
  bool post_norm_nested = false;  // eagle_config.return_hidden_post_norm is norm_output too
  bool fc_norm_wins = false;      // over norm_before_fc; otherwise both run
  bool norm_before_residual = false;
  bool width_gate = false;  // norms and fc run only where the feature is wider than H

  LayerLayout layout = LayerLayout::kInputNorm;
  bool layout_flag = false;  // eagle_config.next_layer_regular false means kConcat
  bool fc_bias = false, qkv_bias = false, o_bias = false, mlp_bias = false;
  bool window = false, logit_scale = false;
  RopeSource rope = RopeSource::kScalingFirst;

  bool midlayer_names = true, numbered_names = true;    // midlayer.*, layers.0.*
  bool model_prefix = false, model_prefix_mla = false;  // "model.fc.weight" is found
  bool aux_norm_names = false;                          // aux_norm_low.weight is fc_norm.0.weight
  UnknownTensors unknown = UnknownTensors::kDropped;
  MissingTensors missing = MissingTensors::kSilent;
  OwnTensor embedding = OwnTensor::kNever, head = OwnTensor::kIfStored;
  bool d2t_at_full_vocab_refused = false;
  bool chunk_edge_bug = false;  // the last row of a prefill chunk is paired with a sampled token
};

/// The rules of one release; for vLLM `runner` must be V1 or V2.
EngineRules engine_rules(const EngineVersion& version, VllmRunner runner, std::string_view target_architecture);

}  // namespace aerie
