#include "engine/runtime.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>

namespace aerie {
namespace {

namespace fs = std::filesystem;

struct KnownModel {
  const char* name;
  const char* target;   // below the model cache
  const char* drafter;  // below the project's folder models/
};
constexpr std::array kKnownModels = {KnownModel{"smollm2", "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-eagle3"}};

const KnownModel* find_known(const std::string& name) {
  for (const KnownModel& model : kKnownModels) {
    if (name == model.name) return &model;
  }
  return nullptr;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path model_cache() {
  if (const std::string root = environment("AERIE_MODELS"); !root.empty()) return root;
  fs::path cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = fs::path(environment("HOME")) / ".cache";
  return cache / "aerie";
}

/// The project's models/ folder: the nearest one above the program (which lies in build/PRESET/), or above the current folder.
std::optional<fs::path> shipped_models() {
  std::error_code ignored;
  for (fs::path from : {fs::read_symlink("/proc/self/exe", ignored).parent_path(), fs::current_path(ignored)}) {
    for (; from.has_relative_path(); from = from.parent_path()) {
      if (fs::is_directory(from / "models" / kKnownModels[0].drafter, ignored)) return from / "models";
    }
  }
  return std::nullopt;
}

std::string known_names() {
  std::string names;
  for (const KnownModel& model : kKnownModels) names += (names.empty() ? "" : ", ") + std::string(model.name);
  return names;
}

}  // namespace

Expected<std::string> resolve_target(const std::string& path_or_name) {
  if (fs::exists(path_or_name)) return path_or_name;
  const KnownModel* known = find_known(path_or_name);
  if (known == nullptr) return not_found("{}: no such file, and no known model has this name (known: {})", path_or_name, known_names());
  const fs::path path = model_cache() / known->target;
  if (!fs::exists(path)) return not_found("{}: the model is not at {}; scripts/fetch-model.sh puts it there", path_or_name, path.string());
  return path.string();
}

Expected<std::string> resolve_drafter(const std::string& path_or_name) {
  if (fs::exists(path_or_name)) return path_or_name;
  const KnownModel* known = find_known(path_or_name);
  if (known == nullptr) return not_found("{}: no such folder, and no known drafter has this name (known: {})", path_or_name, known_names());
  const auto models = shipped_models();
  if (!models)
    return not_found("{}: the shipped drafter models/{} is not above the program or the current folder", path_or_name, known->drafter);
  return (*models / known->drafter).string();
}

Expected<const kernels::Kernels*> choose_kernels(const std::string& isa) {
  if (isa.empty()) return &kernels::best_kernels();
  AERIE_ASSIGN(const kernels::Isa parsed, kernels::parse_isa(isa));
  return kernels::kernels_for(parsed);
}

Expected<int> choose_threads(int asked) {
  const int cores = default_thread_count();
  if (asked < 0 || asked > 4 * cores) {
    return invalid_argument("--threads {}: expected 1 to {} (this process may use {} cores)", asked, 4 * cores, cores);
  }
  return asked == 0 ? cores : asked;
}

Status add_target_facts(const GgufFile& target, OpenOptions& known) {
  AERIE_ASSIGN(known.target_architecture, target.get_string("general.architecture"));
  AERIE_ASSIGN(const uint32_t blocks, target.get_u32(known.target_architecture + ".block_count"));
  if (blocks > static_cast<uint32_t>(kMaxTap)) return corrupt("{}: a target of {} blocks is not believed", target.path(), blocks);
  known.target_blocks = static_cast<int>(blocks);
  return {};
}

Expected<DraftLength*> Runtime::draft_length() {
  if (!draft_length_) {
    AERIE_ASSIGN(const CycleCosts costs, measure_cycle_costs(*this));
    draft_length_.emplace(costs);
  }
  return &*draft_length_;
}

TargetTables tables_of(Target& target, ThreadPool& pool) {
  TargetTables tables;
  tables.hidden = target.config().hidden;
  tables.vocab = target.config().vocab;
  tables.blocks = target.config().blocks;
  tables.embed = [&target](int32_t token, float* out) { target.embed(token, out); };
  tables.head = [&target, &pool](const float* x, int n, float* logits) { target.head(pool, x, n, logits); };
  return tables;
}

Expected<std::unique_ptr<Runtime>> Runtime::load(const RuntimeOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  AERIE_ASSIGN(const int threads, choose_threads(options.threads));
  AERIE_ASSIGN(const kernels::Kernels* kernels, choose_kernels(options.isa));
  AERIE_ASSIGN(const std::string path, resolve_target(options.target));
  AERIE_ASSIGN(GgufFile file, GgufFile::open(path));
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(file)));
  runtime->pool_ = std::make_unique<ThreadPool>(threads);
  AERIE_ASSIGN(runtime->target_,
               load_target(runtime->file_, {options.precision, kernels, options.max_rows, options.context}, *runtime->pool_));
  AERIE_ASSIGN(Tokenizer tokenizer, Tokenizer::from_gguf(runtime->file_));
  if (tokenizer.vocab_size() > runtime->target_->config().vocab) {
    return corrupt("{}: the tokenizer has {} tokens but the embedding only {} rows", path, tokenizer.vocab_size(),
                   runtime->target_->config().vocab);
  }
  runtime->tokenizer_ = std::move(tokenizer);
  auto chat_template = ChatTemplate::from_gguf(runtime->file_, *runtime->tokenizer_);
  if (chat_template.ok()) {
    runtime->chat_template_ = std::move(chat_template).value();
  } else if (chat_template.status().code() != StatusCode::kNotFound) {
    return chat_template.status();
  }
  runtime->draft_ops_.emplace(*kernels, *runtime->pool_);
  if (!options.drafter.empty()) {
    AERIE_ASSIGN(const std::string folder, resolve_drafter(options.drafter));
    OpenOptions reading = options.reading;
    AERIE_TRY(add_target_facts(runtime->file_, reading));
    AERIE_ASSIGN(DraftCheckpoint checkpoint, open_drafter(folder, reading));
    runtime->drafter_findings_ = checkpoint.findings;
    const auto precision = options.precision == Precision::kServed ? DraftPrecision::kServed : DraftPrecision::kFloat32;
    AERIE_ASSIGN(Drafter drafter, Drafter::create(checkpoint, tables_of(*runtime->target_, *runtime->pool_), precision));
    runtime->drafter_ = std::move(drafter);
  }
  runtime->load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return runtime;
}

}  // namespace aerie
