#include "eagle3/dialects/named_tensors.h"

#include <algorithm>
#include <set>
#include <utility>

#include "formats/printable.h"

namespace aerie {
namespace {

struct Module {
  const char* canonical;
  const char* file;
};
constexpr Module kModules[] = {{"input_layernorm", "input_layernorm"},
                               {"hidden_norm", "hidden_norm"},
                               {"post_attention_layernorm", "post_attention_layernorm"},
                               {"q", "self_attn.q_proj"},
                               {"k", "self_attn.k_proj"},
                               {"v", "self_attn.v_proj"},
                               {"o", "self_attn.o_proj"},
                               {"q_norm", "self_attn.q_norm"},
                               {"k_norm", "self_attn.k_norm"},
                               {"q_a", "self_attn.q_a_proj"},
                               {"q_a_norm", "self_attn.q_a_layernorm"},
                               {"q_b", "self_attn.q_b_proj"},
                               {"kv_a", "self_attn.kv_a_proj_with_mqa"},
                               {"kv_a_norm", "self_attn.kv_a_layernorm"},
                               {"kv_b", "self_attn.kv_b_proj"},
                               {"gate", "mlp.gate_proj"},
                               {"up", "mlp.up_proj"},
                               {"down", "mlp.down_proj"}};
// Names outside the layers that are spelt in other ways than NAME.weight.
constexpr Module kOthers[] = {
    {"fc_norm.0", "aux_norm_low"}, {"fc_norm.1", "aux_norm_mid"}, {"fc_norm.2", "aux_norm_high"}, {"layers.0.hidden_norm", "hidden_norm"}};

bool starts_with(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }

bool strip_end(std::string& text, const std::string& ending) {
  if (text.size() <= ending.size() || text.compare(text.size() - ending.size(), ending.size(), ending) != 0) return false;
  text.resize(text.size() - ending.size());
  return true;
}

/// The index of "layers.12.", with `at` behind it; -1 where the name has none.
int layer_index(const std::string& name, size_t& at) {
  const std::string prefix = "layers.";
  if (!starts_with(name, prefix)) return -1;
  int index = 0;
  for (at = prefix.size(); at < name.size() && name[at] >= '0' && name[at] <= '9'; ++at) {
    index = index * 10 + (name[at] - '0');
    if (index > 999) return -1;
  }
  if (at == prefix.size() || at >= name.size() || name[at] != '.') return -1;
  ++at;
  return index;
}

bool is_buffer(const std::string& name) {
  const std::string ending = ".rotary_emb.inv_freq";
  return name.size() > ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
}

std::string shape_string(const std::vector<uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

std::string canonical_name(const std::string& name) {
  std::string rest = starts_with(name, "model.") ? name.substr(6) : name;
  if (rest == "d2t" || rest == "t2d") return rest;
  if (starts_with(rest, "midlayer.")) rest = "layers.0." + rest.substr(9);
  const bool bias = strip_end(rest, ".bias");
  if (!bias && !strip_end(rest, ".weight")) return "";
  size_t at = 0;
  if (layer_index(rest, at) >= 0) {
    for (const Module& module : kModules) {
      if (rest.compare(at, std::string::npos, module.file) == 0) return rest.substr(0, at) + module.canonical + (bias ? "_bias" : "");
    }
    return "";
  }
  if (bias) return rest == "fc" ? "fc_bias" : "";
  for (const Module& other : kOthers) {
    if (rest == other.file) return other.canonical;
  }
  for (const char* plain : {"embed_tokens", "input_norm", "fc", "norm", "lm_head"}) {
    if (rest == plain) return rest;
  }
  const std::string norm = "fc_norm.";
  const bool numbered = starts_with(rest, norm) && rest.size() > norm.size() && rest.size() < norm.size() + 4 &&
                        std::all_of(rest.begin() + static_cast<long>(norm.size()), rest.end(), [](char c) { return c >= '0' && c <= '9'; });
  return numbered ? rest : "";
}

std::string checkpoint_name(const std::string& canonical, const std::string& first_layer) {
  if (canonical == "d2t" || canonical == "t2d") return canonical;
  size_t at = 0;
  std::string base = canonical;
  const bool bias = strip_end(base, "_bias");
  const std::string ending = bias ? ".bias" : ".weight";
  if (layer_index(base, at) < 0) return base + ending;
  const std::string layer = base.substr(0, at), part = base.substr(at);
  const auto it = std::find_if(std::begin(kModules), std::end(kModules), [&](const Module& m) { return part == m.canonical; });
  return (layer == "layers.0." ? first_layer : layer) + (it == std::end(kModules) ? part : it->file) + ending;
}

Expected<NamedTensors> NamedTensors::of_folder(const RawCheckpoint& raw) {
  NamedTensors out;
  for (const TensorView& tensor : raw.tensors()) {
    if (is_buffer(tensor.name)) continue;
    const std::string name = canonical_name(tensor.name);
    if (name.empty()) {
      out.add_unknown(tensor);
    } else if (!out.add(name, tensor)) {
      return corrupt("{} and {} are the same tensor under two names: remove the wrong one", printable(out.find(name)->name),
                     printable(tensor.name));
    }
  }
  return out;
}

const TensorView* NamedTensors::find(const std::string& canonical) const {
  const auto it = tensors_.find(canonical);
  return it == tensors_.end() ? nullptr : &it->second;
}

int NamedTensors::taps_of_fc(int target_hidden) const {
  const TensorView* fc = find("fc");
  const auto width = static_cast<uint64_t>(target_hidden);
  if (fc == nullptr || fc->shape.size() != 2 || fc->cols() % width != 0) return 0;
  return static_cast<int>(std::min<uint64_t>(fc->cols() / width, 64));
}

int NamedTensors::layers() const {
  int out = 0;
  size_t at = 0;
  for (const auto& [name, unused] : tensors_) out = std::max(out, layer_index(name, at) + 1);
  return out;
}

Status NamedTensors::explain_unused(const std::string& canonical, const TensorView& tensor, const DraftSpec& spec) const {
  const std::string shown = printable(tensor.name);
  size_t at = 0;
  const int layer = layer_index(canonical, at);
  const std::string part = layer >= 0 ? canonical.substr(at) : canonical;
  if (canonical == "input_norm") {
    return corrupt("{} is there, but norm_before_fc is not true in the config: it would never be applied", shown);
  }
  if (starts_with(canonical, "fc_norm.")) {
    if (spec.feature_norm != FeatureNorm::kPerTap) {
      return corrupt("{} is there, but fc_norm is not true in the config: it would never be applied", shown);
    }
    return corrupt("{} is there, but the drafter has only {} taps", shown, spec.taps.size());
  }
  if (canonical == "fc" || canonical == "fc_bias") return corrupt("{} is there, but the drafter reads no taps of the target", shown);
  if (layer >= spec.layers) return corrupt("{} is there, but the drafter has only {} layers", shown, spec.layers);
  if (part == "q_norm" || part == "k_norm") return corrupt("{} is there, but not the other norm of queries and keys", shown);
  if (part.size() > 5 && part.compare(part.size() - 5, 5, "_bias") == 0) {
    return corrupt("{} is there, but config.json says that there are no such biases, or others of them are missing", shown);
  }
  return corrupt("{} is a tensor that no part of the forward uses; remove it if it belongs to training only", shown);
}

Status NamedTensors::hand_out(const std::string& shown_first_layer, DraftCheckpoint& out) const {
  const DraftSpec& spec = out.spec;
  const std::vector<DraftTensor> wanted_tensors = draft_tensors(spec);
  std::set<std::string> wanted_names = {"d2t", "t2d"};
  for (const DraftTensor& wanted : wanted_tensors) wanted_names.insert(wanted.name);
  for (const TensorView& tensor : unknown_) {
    return corrupt("{} is a tensor that no part of the forward uses; remove it if it belongs to training only", printable(tensor.name));
  }
  for (const auto& [name, tensor] : tensors_) {
    if (wanted_names.count(name) == 0) return explain_unused(name, tensor, spec);
  }
  for (const DraftTensor& wanted : wanted_tensors) {
    const TensorView* tensor = find(wanted.name);
    if (tensor == nullptr) {
      const bool flagged = wanted.name == "input_norm" || starts_with(wanted.name, "fc_norm.");
      return not_found("the tensor {} {} is missing{}", checkpoint_name(wanted.name, shown_first_layer), shape_string(wanted.shape),
                       flagged ? ", though the config says that the feature is normalised with it" : "");
    }
    if (tensor->shape != wanted.shape) {
      const uint64_t width = static_cast<uint64_t>(spec.target_hidden);
      const bool taps = wanted.name == "fc" && tensor->shape.size() == 2 && tensor->cols() % width == 0;
      return corrupt(
          "{} has the shape {}, expected {} by the config{}", tensor->name, tensor->shape_string(), shape_string(wanted.shape),
          taps ? fmt::format(": it reads {} taps of width {}, but there are {}", tensor->cols() / width, width, spec.taps.size()) : "");
    }
    if (tensor->type != DType::kF32 && tensor->type != DType::kF16 && tensor->type != DType::kBF16) {
      return unsupported("{} has the type {}: only F32, F16 and BF16 weights are supported", tensor->name, dtype_name(tensor->type));
    }
    out.tensors[wanted.name] = *tensor;
  }
  return {};
}

}  // namespace aerie
