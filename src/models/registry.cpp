#include "models/registry.h"

#include <array>

namespace aerie {
namespace {

struct Architecture {
  const char* name;
  Expected<std::unique_ptr<Target>> (*load)(const GgufFile&, const TargetOptions&, ThreadPool&);
};
constexpr std::array kArchitectures = {Architecture{"llama", load_llama}};

Expected<int> read_size(const GgufFile& file, const std::string& key, int most) {
  AERIE_ASSIGN(const uint32_t value, file.get_u32(key));
  if (value == 0 || value > static_cast<uint32_t>(most))
    return corrupt("{}: key {}: expected 1 to {}, found {}", file.path(), key, most, value);
  return static_cast<int>(value);
}

}  // namespace

Status check_target_config(const TargetConfig& c, const std::string& path) {
  if (c.heads % c.kv_heads != 0) return corrupt("{}: {} heads cannot share {} kv heads evenly", path, c.heads, c.kv_heads);
  if (c.rms_eps > 0 && c.rope_theta > 0) return {};
  return corrupt("{}: norm epsilon {} and RoPE base {} must be positive", path, c.rms_eps, c.rope_theta);
}

Expected<TargetConfig> read_target_config(const GgufFile& file, const std::string& prefix) {
  TargetConfig c;
  c.architecture = prefix;
  if (auto name = file.get_string("general.name"); name.ok()) c.name = *name;
  AERIE_ASSIGN(c.blocks, read_size(file, prefix + ".block_count", kMaxTargetBlocks));
  AERIE_ASSIGN(c.hidden, read_size(file, prefix + ".embedding_length", kMaxTargetWidth));
  AERIE_ASSIGN(c.intermediate, read_size(file, prefix + ".feed_forward_length", kMaxTargetWidth));
  AERIE_ASSIGN(c.heads, read_size(file, prefix + ".attention.head_count", kMaxTargetHeads));
  c.kv_heads = c.heads;
  if (file.has(prefix + ".attention.head_count_kv")) {
    AERIE_ASSIGN(c.kv_heads, read_size(file, prefix + ".attention.head_count_kv", kMaxTargetHeads));
  }
  if (file.has(prefix + ".attention.key_length")) {
    AERIE_ASSIGN(c.head_dim, read_size(file, prefix + ".attention.key_length", kMaxTargetWidth));
  } else {
    if (c.hidden % c.heads != 0) return corrupt("{}: width {} is not a multiple of {} heads", file.path(), c.hidden, c.heads);
    c.head_dim = c.hidden / c.heads;
  }
  AERIE_ASSIGN(c.context, read_size(file, prefix + ".context_length", kMaxTargetContext));
  AERIE_ASSIGN(c.rms_eps, file.get_f32(prefix + ".attention.layer_norm_rms_epsilon"));
  if (file.has(prefix + ".rope.freq_base")) {
    AERIE_ASSIGN(c.rope_theta, file.get_f32(prefix + ".rope.freq_base"));
  }
  AERIE_TRY(check_target_config(c, file.path()));
  AERIE_ASSIGN(const TensorView* embedding, file.find("token_embd.weight"));
  if (embedding->rows() > static_cast<uint64_t>(kMaxTargetVocab))
    return corrupt("{}: tensor token_embd.weight: {} rows are more than {}", file.path(), embedding->rows(), kMaxTargetVocab);
  c.vocab = static_cast<int>(embedding->rows());
  return c;
}

Expected<std::unique_ptr<Target>> load_target(const GgufFile& file, const TargetOptions& options, ThreadPool& pool) {
  AERIE_ASSIGN(const std::string architecture, file.get_string("general.architecture"));
  std::string known;
  for (const Architecture& a : kArchitectures) {
    if (architecture == a.name) return a.load(file, options, pool);
    known += (known.empty() ? "" : ", ") + std::string(a.name);
  }
  return unsupported("{}: architecture \"{}\" is not supported; known: {}", file.path(), architecture, known);
}

}  // namespace aerie
