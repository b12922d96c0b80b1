#include "eagle3/dialects/recognise.h"

#include <algorithm>
#include <filesystem>

#include "eagle3/dialects/named_tensors.h"
#include "formats/printable.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

constexpr const char* kGgufArchitecture = "eagle3";

struct Family {
  const char* mark;
  const char* name;
};

constexpr Family kArchitectures[] = {
    {"PEagleDraftModel", "a P-EAGLE drafter"},
    {"PeagleLlamaForCausalLM", "a P-EAGLE drafter"},
    {"PeagleQwen3ForCausalLM", "a P-EAGLE drafter"},
    {"DFlashDraftModel", "a DFlash drafter"},
    {"DSparkDraftModel", "a DSpark drafter"},
    {"LlamaForCausalLMEagle4", "an EAGLE-4 drafter"},
    {"LlamaForCausalLMEagle", "an EAGLE-1 or EAGLE-2 drafter"},
    {"EagleLlamaForCausalLM", "an EAGLE-1 or EAGLE-2 drafter"},
    {"EagleLlamaModel", "an EAGLE-1 or EAGLE-2 drafter"},
    {"EAGLEModel", "an EAGLE-1 or EAGLE-2 drafter"},
    {"EagleModel", "an EAGLE-1 or EAGLE-2 drafter"},
    {"MistralLarge3EagleForCausalLM", "an EAGLE drafter of Mistral"},
    {"MedusaModel", "a set of Medusa heads"},
};
constexpr Family kKeys[] = {
    {"dflash_config", "a DFlash drafter"},          {"dspark_config", "a DSpark drafter"},   {"medusa_num_heads", "a set of Medusa heads"},
    {"medusa_num_layers", "a set of Medusa heads"}, {"eagle4_config", "an EAGLE-4 drafter"},
};
constexpr Family kSpeculatorsTypes[] = {
    {"eagle", "an EAGLE-1 or EAGLE-2 drafter"},
    {"peagle", "a P-EAGLE drafter"},
    {"dflash", "a DFlash drafter"},
    {"dspark", "a DSpark drafter"},
    {"mlp", "an MLP speculator"},
    {"independent", "a draft model of its own"},
};
// Parts of tensor names.
constexpr Family kTensors[] = {
    {"mask_hidden", "a P-EAGLE drafter"},
    {"parallel_draft_heads.", "an EAGLE drafter with Medusa heads"},
    {"medusa_heads.", "a set of Medusa heads"},
    {"eh_proj.", "a drafter that joins embedding and feature by eh_proj"},
};

// Drafters of this shape, whoever made them.
constexpr const char* kDrafters[] = {"LlamaForCausalLMEagle3",      "Eagle3LlamaForCausalLM",      "EAGLE3LlamaForCausalLM",
                                     "LlamaEagle3DraftModel",       "Eagle3Qwen3ForCausalLM",      "Qwen3ForCausalLMEagle3",
                                     "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM", "Eagle3DeepSeekV2ForCausalLM",
                                     "Eagle3DeepSeekV3ForCausalLM", "Eagle3MiniMaxM2ForCausalLM",  "Eagle3Qwen2_5vlForCausalLM",
                                     "Eagle3Qwen3vlForCausalLM"};
// Keys of eagle_config that ModelOpt's exporter alone writes.
constexpr const char* kModelOptKeys[] = {"use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm",
                                         "parallel_draft_step", "parallel_draft_heads_num_layers"};

Status refuse(const std::string& name, const std::string& mark) {
  return unsupported("this is {} ({}), not an EAGLE-3 drafter of a kind that is supported", name, mark);
}

/// The names under `architectures`.
std::vector<std::string> architectures_of(const Json& config) {
  std::vector<std::string> out;
  const auto it = config.find("architectures");
  if (it == config.end() || !it->is_array()) return out;
  for (const Json& item : *it) {
    if (item.is_string()) out.push_back(item.get<std::string>());
  }
  return out;
}

/// Ok where nothing speaks against an EAGLE-3 drafter.
Status check_family(const RawCheckpoint& raw, const NamedTensors& tensors) {
  const Json& config = raw.config();
  for (const std::string& found : architectures_of(config)) {
    for (const Family& family : kArchitectures) {
      if (found == family.mark) return refuse(family.name, found);
    }
  }
  if (const auto it = config.find("speculators_model_type"); it != config.end() && it->is_string()) {
    for (const Family& family : kSpeculatorsTypes) {
      if (it->get_ref<const std::string&>() == family.mark) {
        return refuse(family.name, fmt::format("speculators_model_type is '{}'", family.mark));
      }
    }
  }
  for (const Family& family : kKeys) {
    if (config.contains(family.mark)) return refuse(family.name, fmt::format("it has {}", family.mark));
  }
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) continue;
    std::string method = "an unnamed method";
    if (it->is_object() && it->contains("quant_method") && (*it)["quant_method"].is_string()) {
      method = printable((*it)["quant_method"].get_ref<const std::string&>());
    }
    return unsupported("the drafter's weights are quantised ({}: {}), only F32, F16 and BF16 weights are supported", key, method);
  }
  for (const TensorView& tensor : raw.tensors()) {
    for (const Family& family : kTensors) {
      if (tensor.name.find(family.mark) != std::string::npos) return refuse(family.name, "it has the tensor " + printable(tensor.name));
    }
    for (const char* scale : {"weight_scale", "input_scale", "weight_packed", "weight_scale_inv"}) {
      if (tensor.name.find(scale) != std::string::npos) {
        return unsupported("the drafter's weights are quantised (it has the tensor {}), only F32, F16 and BF16 weights are supported",
                           printable(tensor.name));
      }
    }
  }
  // EAGLE-1 and 2: fc over the embedding and one state, an ordinary layer behind it, and no norm of the feature.
  const TensorView* fc = tensors.find("fc");
  const TensorView* q = tensors.find("layers.0.q");
  if (fc != nullptr && q != nullptr && !tensors.has("layers.0.hidden_norm") && fc->cols() == 2 * fc->rows() && q->cols() == fc->rows()) {
    return refuse("an EAGLE-1 or EAGLE-2 drafter",
                  fmt::format("{} is {} and there is no hidden_norm", printable(fc->name), fc->shape_string()));
  }
  return {};
}

Expected<Recognised> recognise_flat(const RawCheckpoint& raw, const NamedTensors& tensors) {
  const Json& config = raw.config();
  std::string architecture;
  bool is_drafter = false;
  for (const std::string& name : architectures_of(config)) {
    architecture = name;
    is_drafter = is_drafter || std::find(std::begin(kDrafters), std::end(kDrafters), name) != std::end(kDrafters);
  }
  if (architecture == "LlamaEagle3DraftModel") return Recognised{Dialect::kNemo, "its architecture is LlamaEagle3DraftModel"};
  const bool prefixed =
      std::any_of(raw.tensors().begin(), raw.tensors().end(), [](const TensorView& t) { return t.name.rfind("model.", 0) == 0; });
  if (is_drafter && prefixed) return Recognised{Dialect::kNemo, "its tensors' names begin with model."};
  if (config.contains("aux_hidden_states_layer_ids")) return Recognised{Dialect::kAngelSlim, "it has aux_hidden_states_layer_ids"};
  if (const auto it = config.find("eagle_config"); it != config.end() && it->is_object()) {
    for (const char* key : kModelOptKeys) {
      if (it->contains(key)) return Recognised{Dialect::kModelOpt, fmt::format("its eagle_config has {}", key)};
    }
  }
  if (is_drafter) return Recognised{Dialect::kSpecForge, fmt::format("its architecture is {}", architecture)};
  if (tensors.has("layers.0.hidden_norm") && tensors.has("fc")) {
    return Recognised{Dialect::kSafeAiLab,
                      architecture.empty()
                          ? "it names no architecture, but has the tensors of an EAGLE-3 drafter"
                          : fmt::format("its architecture is {}, but its tensors are an EAGLE-3 drafter's", printable(architecture))};
  }
  if (!architecture.empty()) {
    return unsupported(
        "config.json names the architecture {}, and the tensors are no EAGLE-3 drafter's: neither fc nor hidden_norm is there",
        printable(architecture));
  }
  return unsupported("config.json names no architecture, and the tensors are no EAGLE-3 drafter's: the drafter's dialect is not known");
}

}  // namespace

const char* dialect_name(Dialect dialect) {
  switch (dialect) {
    case Dialect::kSpeculators: return "speculators";
    case Dialect::kSafeAiLab: return "safeailab";
    case Dialect::kSpecForge: return "specforge";
    case Dialect::kModelOpt: return "modelopt";
    case Dialect::kNemo: return "nemo";
    case Dialect::kAngelSlim: return "angelslim";
    case Dialect::kGguf: return "gguf";
  }
  return "?";
}

bool is_drafter_path(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return true;
  const auto file = GgufFile::open(path);
  if (!file.ok()) return false;
  const auto architecture = file->get_string("general.architecture");
  return architecture.ok() && *architecture == kGgufArchitecture;
}

Expected<Recognised> recognise(const RawCheckpoint& raw) {
  if (raw.gguf() != nullptr) {
    AERIE_ASSIGN(const std::string architecture, raw.gguf()->get_string("general.architecture"));
    if (architecture == kGgufArchitecture) return Recognised{Dialect::kGguf, fmt::format("general.architecture is {}", architecture)};
    return unsupported("this is a GGUF file of the architecture {}, not of a drafter ({})", printable(architecture), kGgufArchitecture);
  }
  AERIE_ASSIGN(const NamedTensors tensors, NamedTensors::of_folder(raw));
  AERIE_TRY(check_family(raw, tensors));
  if (raw.config().contains("speculators_model_type")) return Recognised{Dialect::kSpeculators, "it has speculators_model_type"};
  return recognise_flat(raw, tensors);
}

}  // namespace aerie
