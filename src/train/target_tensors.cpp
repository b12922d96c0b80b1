#include "train/target_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file_io.h"
#include "eagle3/config_reader.h"
#include "eagle3/raw_checkpoint.h"
#include "formats/gguf.h"
#include "formats/json_text.h"
#include "formats/printable.h"
#include "formats/safetensors.h"
#include "models/registry.h"
#include "text/tokenizer.h"

namespace aerie::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

template <class File>
Status read_rows(const File& file, const std::string& name, int rows, int cols, std::vector<float>& out) {
  AERIE_ASSIGN(const TensorView* tensor, file.find(name));
  if (tensor->rows() != static_cast<uint64_t>(rows) || tensor->cols() != static_cast<uint64_t>(cols)) {
    return corrupt("{}: tensor {}: expected [{}, {}], found {}", file.path(), name, rows, cols, tensor->shape_string());
  }
  AERIE_ASSIGN(out, to_float(*tensor));
  return {};
}

Status check_end_token(int64_t id, int vocab, const std::string& where) {
  if (id >= 0 && id < vocab) return {};
  return corrupt("{}: end token {} is outside the vocabulary of {}", where, id, vocab);
}

Expected<TargetTensors> read_gguf(const std::string& path) {
  AERIE_ASSIGN(const GgufFile file, GgufFile::open(path));
  TargetTensors target;
  AERIE_ASSIGN(target.sha256, sha256_file(path));
  AERIE_ASSIGN(const std::string architecture, file.get_string("general.architecture"));
  AERIE_ASSIGN(target.config, read_target_config(file, architecture));
  const TargetConfig& c = target.config;
  AERIE_TRY(read_rows(file, "token_embd.weight", c.vocab, c.hidden, target.embedding));
  AERIE_TRY(read_rows(file, "output_norm.weight", 1, c.hidden, target.final_norm));
  if (file.has("output.weight")) AERIE_TRY(read_rows(file, "output.weight", c.vocab, c.hidden, target.head));
  if (auto frame = AnswerFrame::of_target(file); frame.ok()) target.frame = *std::move(frame);  // a base model has no template
  if (const auto tokenizer = Tokenizer::from_gguf(file); tokenizer.ok()) {
    for (int32_t id = 0; id < std::min(tokenizer->vocab_size(), c.vocab); ++id) {
      if (tokenizer->is_end_of_generation(id)) target.end_tokens.push_back(id);
    }
    return target;
  }
  // Training needs no tokenizer; of one that cannot be read, the ids that the file itself calls ends.
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (!file.has(key)) continue;
    AERIE_ASSIGN(const uint32_t id, file.get_u32(key));
    AERIE_TRY(check_end_token(id, c.vocab, fmt::format("{}: key {}", path, key)));
    target.end_tokens.push_back(static_cast<int32_t>(id));
  }
  return target;
}

// ---- folders of Hugging Face

/// Whose head reads rms_norm(x) * weight by a plain product. Others give the same tensors another meaning (Gemma and Qwen3-Next norm by one
/// plus the weight), and would be trained for a teacher that is not theirs without a sign of it.
constexpr std::string_view kPlainHeads[] = {"llama",       "mistral",     "mixtral",     "qwen2",   "qwen2_moe", "qwen3",     "qwen3_moe",
                                            "deepseek_v2", "deepseek_v3", "deepseek_v4", "kimi_k2", "kimi_k25",  "gpt_oss",   "glm4_moe",
                                            "smollm3",     "phi3",        "seed_oss",    "olmo2",   "ernie4_5",  "minimax_m2"};

Status check_plain_head(const json& config, const std::string& path) {
  const std::string type = config.value("model_type", json()).is_string() ? config["model_type"].get<std::string>() : "";
  if (std::ranges::find(kPlainHeads, type) == std::end(kPlainHeads)) {
    return unsupported(
        "{}: of {} it is not known that its head reads the state through a plain RMSNorm; known are {}. Train with its GGUF file", path,
        printable(type), fmt::join(kPlainHeads, ", "));
  }
  for (const char* key :
       {"final_logit_softcapping", "logits_scaling", "logit_scale", "embedding_multiplier", "scale_emb", "dim_model_base"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null() || (found->is_number() && found->get<double>() == 1.0)) continue;
    return unsupported("{}: config.json sets {}: the trainer knows targets whose head is a plain product with the normed state", path, key);
  }
  return {};
}

/// `eos_token_id` of a config: an id or a list of them.
Status add_end_tokens(const json& config, int vocab, const std::string& where, std::vector<int32_t>& out) {
  const auto found = config.find("eos_token_id");
  if (found == config.end() || found->is_null()) return {};
  for (const json& id : found->is_array() ? *found : json::array({*found})) {
    if (!id.is_number_integer()) return corrupt("{}: eos_token_id: expected an integer or a list of them", where);
    AERIE_TRY(check_end_token(id.get<int64_t>(), vocab, where));
    if (const auto token = id.get<int32_t>(); std::find(out.begin(), out.end(), token) == out.end()) out.push_back(token);
  }
  return {};
}

Expected<TargetConfig> read_config(const json& text, const std::string& path, const std::string& name) {
  TargetConfig c;
  ConfigReader config(text, "", path + "/config.json");
  c.name = name;
  c.architecture = config.text("model_type").value_or("");
  const auto size = [&](const char* key, int most, std::optional<int> otherwise = {}) -> Expected<int> {
    const std::optional<int> found = config.integer(key, 1, most);
    AERIE_TRY(config.status());
    if (found) return *found;
    return otherwise ? Expected<int>(*otherwise) : Expected<int>(config.missing(key));
  };
  AERIE_ASSIGN(c.blocks, size("num_hidden_layers", kMaxTargetBlocks));
  AERIE_ASSIGN(c.hidden, size("hidden_size", kMaxTargetWidth));
  AERIE_ASSIGN(c.intermediate, size("intermediate_size", kMaxTargetWidth));
  AERIE_ASSIGN(c.heads, size("num_attention_heads", kMaxTargetHeads));
  AERIE_ASSIGN(c.kv_heads, size("num_key_value_heads", kMaxTargetHeads, c.heads));
  const bool even = c.hidden % c.heads == 0;
  AERIE_ASSIGN(c.head_dim, size("head_dim", kMaxTargetWidth, even ? std::optional<int>(c.hidden / c.heads) : std::nullopt));
  AERIE_ASSIGN(c.vocab, size("vocab_size", kMaxTargetVocab));
  AERIE_ASSIGN(c.context, size("max_position_embeddings", kMaxTargetContext));
  std::optional<double> theta = config.number("rope_theta");
  if (const json* rope = config.object("rope_parameters"); !theta && rope != nullptr) {
    ConfigReader inner(*rope, "rope_parameters.", path + "/config.json");
    theta = inner.number("rope_theta");
    AERIE_TRY(inner.status());
  }
  const std::optional<double> eps = config.number("rms_norm_eps");
  AERIE_TRY(config.status());
  if (theta) c.rope_theta = static_cast<float>(*theta);
  if (!eps) return config.missing("rms_norm_eps");
  c.rms_eps = static_cast<float>(*eps);
  AERIE_TRY(check_target_config(c, path));
  return c;
}

/// The names of the three tensors: "model." stands before those of a language model, "language_model.model." and the like in one that also
/// sees.
struct TensorNames {
  std::string embedding, norm, head;
};

/// Which file holds each tensor of the folder.
Expected<std::map<std::string, std::string>> list_tensors(const fs::path& folder) {
  std::error_code error;
  const fs::path index = folder / "model.safetensors.index.json", single = folder / "model.safetensors";
  std::map<std::string, std::string> out;
  if (fs::exists(index, error)) {
    AERIE_ASSIGN(const auto shards, read_shard_index(index.string()));
    for (const auto& [shard, names] : shards) {
      for (const std::string& name : names) out[name] = (folder / shard).string();
    }
    return out;
  }
  if (!fs::exists(single, error)) {
    return not_found("{}: it holds neither model.safetensors nor model.safetensors.index.json", folder.string());
  }
  AERIE_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(single.string()));
  for (const TensorView& tensor : file.tensors()) out[tensor.name] = single.string();
  return out;
}

Expected<TensorNames> find_names(const std::map<std::string, std::string>& tensors, const std::string& path) {
  constexpr std::string_view kEmbedding = "embed_tokens.weight", kModel = "model.";
  std::vector<std::string> found;
  for (const auto& [name, file] : tensors) {
    const bool whole_word = name == kEmbedding || name.ends_with("." + std::string(kEmbedding));
    if (whole_word) found.push_back(name);
  }
  if (found.size() != 1) {
    return unsupported("{}: expected one tensor that ends in {}, found {}", path, kEmbedding, found.size());
  }
  TensorNames out;
  out.embedding = found[0];
  const std::string prefix = out.embedding.substr(0, out.embedding.size() - kEmbedding.size());
  out.norm = prefix + "norm.weight";
  std::string outer = prefix.ends_with(kModel) ? prefix.substr(0, prefix.size() - kModel.size()) : prefix;
  for (const std::string& head : {outer + "lm_head.weight", std::string("lm_head.weight")}) {
    if (out.head.empty() && tensors.count(head) != 0) out.head = head;
  }
  return out;
}

Expected<TargetTensors> read_folder(const std::string& path) {
  AERIE_ASSIGN(const json whole, RawCheckpoint::read_config(path));
  // A model that also sees keeps its language model's sizes apart.
  const auto inner = whole.find("text_config");
  const json& config = inner != whole.end() && inner->is_object() ? *inner : whole;
  AERIE_TRY(check_plain_head(config, path));
  TargetTensors target;
  AERIE_ASSIGN(target.config, read_config(config, path, fs::path(path).lexically_normal().filename().string()));
  const TargetConfig& c = target.config;
  AERIE_TRY(add_end_tokens(config, c.vocab, path + "/config.json", target.end_tokens));
  std::error_code error;
  if (const fs::path generation = fs::path(path) / "generation_config.json"; fs::exists(generation, error)) {
    AERIE_ASSIGN(const MappedFile file, MappedFile::open(generation.string()));
    auto parsed = parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
    if (!parsed.ok()) return parsed.status().with_context(generation.string());
    if (parsed->is_object()) AERIE_TRY(add_end_tokens(*parsed, c.vocab, generation.string(), target.end_tokens));
  }

  AERIE_ASSIGN(const auto tensors, list_tensors(path));
  AERIE_ASSIGN(const TensorNames names, find_names(tensors, path));
  const auto ties = [](const json& object) { return object.value("tie_word_embeddings", json(false)) == json(true); };
  const bool tied = ties(config) || ties(whole);
  if (names.head.empty() && !tied) {
    return not_found("{}: it has no lm_head.weight, and config.json does not say that the embedding is also the output matrix", path);
  }
  std::vector<TensorView> views;
  std::vector<SafetensorsFile> files;  // that the views point into
  const auto read = [&](const std::string& name, int rows, std::vector<float>& out) -> Status {
    const auto place = tensors.find(name);
    if (place == tensors.end()) return not_found("{}: it has no tensor {}", path, name);
    AERIE_ASSIGN(SafetensorsFile file, SafetensorsFile::open(place->second));
    AERIE_TRY(read_rows(file, name, rows, c.hidden, out));
    views.push_back(**file.find(name));
    files.push_back(std::move(file));
    return {};
  };
  AERIE_TRY(read(names.embedding, c.vocab, target.embedding));
  AERIE_TRY(read(names.norm, 1, target.final_norm));
  if (!tied) AERIE_TRY(read(names.head, c.vocab, target.head));
  target.sha256 = tensors_id(std::move(views));
  return target;
}

}  // namespace

Expected<TargetTensors> read_target_tensors(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) ? read_folder(path) : read_gguf(path);
}

TargetFacts facts_of(const TargetTensors& target, TensorView& view) {
  const TargetConfig& c = target.config;
  view.name = "embedding";
  view.type = DType::kF32;
  view.shape = {static_cast<uint64_t>(c.vocab), static_cast<uint64_t>(c.hidden)};
  view.data = {reinterpret_cast<const uint8_t*>(target.embedding.data()), target.embedding.size() * sizeof(float)};
  return {c.hidden, c.vocab, c.blocks, c.context, c.rope_theta, &view};
}

}  // namespace aerie::train
