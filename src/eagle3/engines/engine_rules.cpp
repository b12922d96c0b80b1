#include "eagle3/engines/engine_rules.h"

namespace aerie {
namespace {

LayerIdRule sglang_ids(const EngineVersion& v, std::string_view architecture) {
  const LayerIdRule rule = *layer_id_rule("sglang", architecture);
  const bool known = rule == LayerIdRule::kFirstOne ? v.at_least(0, 5, 13) : rule == LayerIdRule::kLastBlock ? v.at_least(0, 5, 17) : true;
  return known ? rule : LayerIdRule::kBlockOutput;
}

EngineRules sglang(const EngineVersion& v, std::string_view architecture) {
  EngineRules r;
  r.llama_classes = "LlamaForCausalLMEagle3";
  r.mla_classes = v.at_least(0, 5, 12) ? "Eagle3DeepseekV2ForCausalLM" : "";
  r.draft_vocab_required = true;
  r.one_layer = !v.at_least(0, 5, 12);
  r.ids = IdSource::kNested;
  r.id_rule = sglang_ids(v, architecture);
  r.empty_list_is_absent = false;
  r.embedding_tap = v.at_least(0, 5, 22);
  r.aux = v.at_least(0, 5, 12) ? AuxCount::kNumberThenNested : AuxCount::kThree;
  r.aux_mla = AuxCount::kNestedThenTop;
  r.norm_before_fc = v.at_least(0, 5, 17) ? FlagPlace::kNestedThenTop : FlagPlace::kNowhere;
  r.fc_norm = r.norm_output = r.use_aux_norm = r.aux_norm_names = v.at_least(0, 5, 12);
  r.fc_norm_mla = r.norm_output_mla = v.at_least(0, 5, 13);
  r.width_gate = true;
  r.layout = LayerLayout::kHiddenNorm;
  r.fc_bias = r.o_bias = true;
  r.rope = v.at_least(0, 5, 10) ? RopeSource::kParametersFirst : RopeSource::kVersion4;
  r.numbered_names = v.at_least(0, 5, 12);
  r.model_prefix = true;
  r.embedding = OwnTensor::kIfWidthsDiffer;
  r.head = OwnTensor::kAlways;
  r.chunk_edge_bug = !v.at_least(0, 5, 13);
  return r;
}

EngineRules vllm(const EngineVersion& v, VllmRunner runner) {
  EngineRules r;
  r.llama_classes = "LlamaForCausalLMEagle3 Eagle3LlamaForCausalLM Eagle3MiniMaxM2ForCausalLM LlamaForCausalLM";
  r.qwen3_classes = v.at_least(0, 24) ? "Eagle3Qwen3ForCausalLM Qwen3ForCausalLM" : "";
  r.mla_classes = "Eagle3DeepseekV2ForCausalLM Eagle3DeepseekV3ForCausalLM DeepseekV2ForCausalLM DeepseekV3ForCausalLM";
  r.speculators = true;
  r.speculators_raw_default = false;
  r.ids = runner == VllmRunner::kV2 ? (v.at_least(0, 28) ? IdSource::kTopThenShortNested : IdSource::kTop)
          : v.at_least(0, 22)       ? IdSource::kTopThenNested
                                    : IdSource::kTop;
  r.aux = r.aux_mla = AuxCount::kNumberThenNested;
  r.aux_qwen3 = AuxCount::kNumbersThenTopThenNested;
  r.norm_before_fc = FlagPlace::kNestedThenTop;
  r.fc_norm = r.fc_norm_mla = r.norm_output = r.norm_output_mla = v.at_least(0, 22);
  r.norm_before_residual = true;
  r.layout = LayerLayout::kInputNorm;
  r.qkv_bias = r.o_bias = true;
  r.window = r.logit_scale = true;
  r.unknown = UnknownTensors::kRefused;
  r.embedding = r.head = OwnTensor::kIfStored;
  r.d2t_at_full_vocab_refused = v.at_least(0, 30);
  return r;
}

EngineRules llama_cpp() {
  EngineRules r;
  r.mla = false;
  r.speculators = true;
  r.draft_vocab_required = true;
  r.one_layer = true;
  r.ids = IdSource::kTop;
  r.file_order = true;
  r.norm_before_fc = FlagPlace::kTop;
  r.norm_before_residual = true;
  r.rope = RopeSource::kParametersFirst;
  r.unknown = UnknownTensors::kRefused;
  r.missing = MissingTensors::kRefused;
  r.embedding = r.head = OwnTensor::kIfStored;
  return r;
}

EngineRules tensorrt_llm() {
  EngineRules r;
  r.draft_vocab_required = true;
  r.norm_before_fc = r.norm_before_fc_mla = FlagPlace::kNested;
  r.fc_norm = r.fc_norm_mla = r.norm_output = r.norm_output_mla = r.post_norm_nested = r.fc_norm_wins = true;
  r.width_gate = true;
  r.layout = LayerLayout::kHiddenNorm;
  r.layout_flag = true;
  r.fc_bias = r.qkv_bias = r.o_bias = r.mlp_bias = true;
  r.embedding = OwnTensor::kIfWidthsDiffer;
  return r;
}

EngineRules openvino() {
  EngineRules r;
  r.llama_classes = "LlamaForCausalLMEagle3 Eagle3LlamaForCausalLM";
  r.mla = false;
  r.one_layer = true;
  r.id_rule = LayerIdRule::kShiftedDefault;
  r.numbered_names = false;
  return r;
}

}  // namespace

EngineRules engine_rules(const EngineVersion& version, VllmRunner runner, std::string_view target_architecture) {
  switch (version.engine) {
    case Engine::kSglang: return sglang(version, target_architecture);
    case Engine::kVllm: return vllm(version, runner);
    case Engine::kLlamaCpp: return llama_cpp();
    case Engine::kTensorRtLlm: return tensorrt_llm();
    case Engine::kOpenVino: return openvino();
  }
  return {};
}

}  // namespace aerie
