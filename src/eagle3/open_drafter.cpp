#include <filesystem>

#include "eagle3/checkpoint.h"
#include "eagle3/dialects/speculators.h"
#include "formats/printable.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

struct Family {
  const char* architecture;
  const char* name;
};

// Drafters that are known and not readable yet, and models that are no EAGLE-3 drafters at all.
constexpr Family kFamilies[] = {
    {"LlamaForCausalLMEagle3", "a drafter of the SpecForge dialect"},
    {"Eagle3LlamaForCausalLM", "a drafter of the SpecForge dialect"},
    {"EAGLE3LlamaForCausalLM", "a drafter of the SpecForge dialect"},
    {"Eagle3Qwen3ForCausalLM", "an EAGLE-3 drafter of Qwen3 shape"},
    {"Eagle3DeepseekV2ForCausalLM", "an EAGLE-3 drafter with MLA attention"},
    {"Eagle3DeepSeekV3ForCausalLM", "an EAGLE-3 drafter with MLA attention"},
    {"MistralLarge3EagleForCausalLM", "an EAGLE drafter of Mistral"},
    {"PEagleDraftModel", "a P-EAGLE drafter"},
    {"DFlashDraftModel", "a DFlash drafter"},
};

}  // namespace

Expected<DraftCheckpoint> open_drafter(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return not_found("{}: there is no drafter here, expected a folder with config.json and model.safetensors", path);
  if (!fs::is_directory(status)) {
    if (fs::path(path).extension() == ".gguf") {
      return unsupported("{}: drafters in GGUF files are not supported yet, use the folder with config.json and model.safetensors", path);
    }
    return invalid_argument("{}: a drafter is a folder with config.json and model.safetensors, this is a file", path);
  }
  const auto has = [&](const char* name) { return fs::exists(fs::path(path) / name, error); };
  if (!has("config.json")) return not_found("{}: the folder has no config.json, so it is no drafter", path);
  auto config = RawCheckpoint::read_config(path);
  if (!config.ok()) return config.status();

  if (config->contains("speculators_model_type")) return speculators::load_checkpoint(path);
  for (const char* key : {"dflash_config", "dspark_config"}) {
    if (config->contains(key)) return unsupported("{}: this is a DFlash or DSpark drafter (it has {}), not an EAGLE-3 one", path, key);
  }
  const auto architectures = config->find("architectures");
  if (architectures != config->end() && architectures->is_array() && !architectures->empty() && architectures->front().is_string()) {
    const auto& found = architectures->front().get_ref<const std::string&>();
    for (const Family& family : kFamilies) {
      if (found == family.architecture) {
        return unsupported("{}: this is {} ({}), which is not supported yet; only the speculators dialect is", path, family.name, found);
      }
    }
    return unsupported(
        "{}: config.json names the architecture {}, which is no drafter that is known; only the speculators dialect is supported", path,
        printable(found));
  }
  if (has("pytorch_model.bin")) {
    return unsupported("{}: this looks like a drafter of the SafeAILab dialect (pytorch_model.bin), which is not supported yet", path);
  }
  return unsupported("{}: config.json has neither speculators_model_type nor architectures: the drafter's dialect is not known", path);
}

}  // namespace aerie
