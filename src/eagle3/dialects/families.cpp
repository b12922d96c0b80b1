#include "eagle3/dialects/families.h"

#include <algorithm>

#include "eagle3/dialects/named_tensors.h"
#include "formats/printable.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

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
    {"dflash_config", "a DFlash drafter"},         {"dspark_config", "a DSpark drafter"}, {"medusa_num_heads", "a set of Medusa heads"},
    {"medusa_num_layers", "a set of Medusa heads"}, {"eagle4_config", "an EAGLE-4 drafter"},
};
constexpr Family kSpeculatorsTypes[] = {
    {"eagle", "an EAGLE-1 or EAGLE-2 drafter"}, {"peagle", "a P-EAGLE drafter"}, {"dflash", "a DFlash drafter"},
    {"dspark", "a DSpark drafter"},             {"mlp", "an MLP speculator"},    {"independent", "a draft model of its own"},
};
// Parts of tensor names.
constexpr Family kTensors[] = {
    {"mask_hidden", "a P-EAGLE drafter"},
    {"parallel_draft_heads.", "an EAGLE drafter with Medusa heads"},
    {"medusa_heads.", "a set of Medusa heads"},
    {"eh_proj.", "a drafter that joins embedding and feature by eh_proj"},
};

Status refuse(const std::string& name, const std::string& mark) {
  return unsupported("this is {} ({}), not an EAGLE-3 drafter of a kind that is supported", name, mark);
}

}  // namespace

Status check_family(const RawCheckpoint& raw) {
  const Json& config = raw.config();
  if (const auto it = config.find("architectures"); it != config.end() && it->is_array()) {
    for (const Json& item : *it) {
      if (!item.is_string()) continue;
      const auto& found = item.get_ref<const std::string&>();
      for (const Family& family : kArchitectures) {
        if (found == family.mark) return refuse(family.name, found);
      }
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
        return unsupported("the drafter's weights are quantised (it has the tensor {}), only F32, F16 and BF16 weights are supported", printable(tensor.name));
      }
    }
  }
  // EAGLE-1 and 2: fc over the embedding and one state, an ordinary layer behind it, and no norm of the feature.
  if (raw.gguf() == nullptr) {
    auto tensors = NamedTensors::of_folder(raw);
    if (!tensors.ok()) return tensors.status();
    const TensorView* fc = tensors->find("fc");
    const TensorView* q = tensors->find("layers.0.q");
    if (fc != nullptr && q != nullptr && !tensors->has("layers.0.hidden_norm") && fc->cols() == 2 * fc->rows() && q->cols() == fc->rows()) {
      return refuse("an EAGLE-1 or EAGLE-2 drafter", fmt::format("{} is {} and there is no hidden_norm", printable(fc->name), fc->shape_string()));
    }
  }
  return {};
}

}  // namespace aerie
