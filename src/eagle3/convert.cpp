#include "eagle3/convert.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "eagle3/compare.h"
#include "eagle3/dialects/flat.h"
#include "eagle3/dialects/gguf_eagle3.h"
#include "eagle3/dialects/speculators.h"
#include "eagle3/drafter.h"
#include "eagle3/spec_fields.h"
#include "formats/printable.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

struct FormatName {
  DraftFormat format;
  const char* name;
};
constexpr FormatName kFormats[] = {{DraftFormat::kSpeculators, "speculators"},
                                   {DraftFormat::kSpecForge, "specforge"},
                                   {DraftFormat::kSglang, "sglang"},
                                   {DraftFormat::kModelOpt, "modelopt"},
                                   {DraftFormat::kGguf, "gguf"}};

/// The tensors as F32, whose bytes `made` owns.
Expected<std::map<std::string, TensorView>> widened(const std::map<std::string, TensorView>& tensors,
                                                    std::vector<std::vector<float>>& made) {
  std::map<std::string, TensorView> out = tensors;
  made.reserve(tensors.size());
  for (auto& [name, tensor] : out) {
    AERIE_ASSIGN(std::vector<float> values, to_float(tensor));
    made.push_back(std::move(values));
    tensor.type = DType::kF32;
    tensor.data = {reinterpret_cast<const uint8_t*>(made.back().data()), made.back().size() * sizeof(float)};
  }
  return out;
}

Status write(const DraftCheckpoint& checkpoint, const std::string& path, DraftFormat format, const ConvertOptions& options) {
  const DraftSpec& spec = checkpoint.spec;
  if (format == DraftFormat::kGguf) {
    gguf_eagle3::SaveOptions save;
    save.float32 = options.float32;
    save.tokenizer = options.tokenizer;
    save.name = options.target_name.empty() ? "EAGLE-3 drafter" : options.target_name + " EAGLE-3 drafter";
    return gguf_eagle3::save_checkpoint(path, checkpoint, save);
  }
  std::vector<std::vector<float>> made;
  std::map<std::string, TensorView> wide;
  if (options.float32) {
    AERIE_ASSIGN(wide, widened(checkpoint.tensors, made));
  }
  const std::map<std::string, TensorView>& tensors = options.float32 ? wide : checkpoint.tensors;
  if (format == DraftFormat::kSpeculators) {
    speculators::SaveOptions save;
    save.verifier = options.target_name;
    return speculators::save_checkpoint(path, spec, tensors, save);
  }
  AERIE_ASSIGN(const LayerIds ids, layer_ids_of(format, spec, options.target));
  const flat::Maker maker = format == DraftFormat::kModelOpt ? flat::Maker::kModelOpt
                            : format == DraftFormat::kSglang ? flat::Maker::kSglang
                                                             : flat::Maker::kSpecForge;
  return flat::save_checkpoint(path, spec, tensors, maker, ids);
}

/// Two steps of some rows, in float32 on the scalar kernels.
Expected<std::vector<float>> forward_of(const DraftCheckpoint& checkpoint, ThreadPool& pool) {
  const DraftSpec& spec = checkpoint.spec;
  // A target's tables: functions of the ids, so that both drafters borrow the same.
  TargetTables tables;
  tables.hidden = spec.target_hidden;
  tables.vocab = spec.vocab;
  tables.blocks = kMaxTap;
  tables.embed = [&spec](int32_t token, float* out) {
    for (int c = 0; c < spec.hidden; ++c) out[c] = std::sin(static_cast<float>(token) * 0.37f + static_cast<float>(c));
  };
  tables.head = [&spec](const float* x, int n, float* logits) {
    for (int r = 0; r < n; ++r) {
      for (int t = 0; t < spec.vocab; ++t)
        logits[static_cast<ptrdiff_t>(r) * spec.vocab + t] = x[static_cast<ptrdiff_t>(r) * spec.hidden + t % spec.hidden];
    }
  };
  AERIE_ASSIGN(const Drafter drafter, Drafter::create(checkpoint, tables, DraftPrecision::kFloat32));
  AERIE_ASSIGN(const kernels::Kernels* kernels, kernels::kernels_for(kernels::Isa::kScalar));
  CpuOps ops(*kernels, pool);
  constexpr int kRows = 4;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> features(static_cast<size_t>(kRows) * static_cast<size_t>(spec.feature_width()));
  for (uint16_t& value : features) value = f32_to_bf16(normal(random));
  DraftKv kv = drafter.new_kv();
  std::vector<DraftRow> rows(kRows);
  for (int r = 0; r < kRows; ++r)
    rows[static_cast<size_t>(r)] = {static_cast<int32_t>(random() % static_cast<unsigned>(spec.vocab)), r, &kv};
  DraftStates states;
  drafter.step0(ops, rows, features.data(), states);
  std::vector<float> logits(static_cast<size_t>(kRows) * static_cast<size_t>(spec.draft_vocab));
  drafter.logits(ops, states.head_input.data(), kRows, logits.data());
  std::vector<float> out = logits;
  for (DraftRow& row : rows) row.position += kRows;
  drafter.step(ops, rows, states.feedback.data(), states);
  drafter.logits(ops, states.head_input.data(), kRows, logits.data());
  out.insert(out.end(), logits.begin(), logits.end());
  return out;
}

Status verify(const DraftCheckpoint& given, const std::string& path) {
  AERIE_ASSIGN(const DraftCheckpoint found, open_drafter(path));
  if (const auto differences = differing_fields(given.spec, found.spec); !differences.empty()) {
    return internal_error("what was written reads back as another forward: {}", fmt::join(differences, "; "));
  }
  AERIE_ASSIGN(const std::vector<WeightDifference> weights, differing_weights(given, found));
  if (!weights.empty()) return internal_error("the weight {} reads back differently", weights.front().name);
  ThreadPool pool(1);
  auto before = forward_of(given, pool);
  // A drafter that this program cannot compute is compared by its spec and weights alone.
  if (before.status().code() == StatusCode::kUnsupported) return {};
  if (!before.ok()) return before.status();
  AERIE_ASSIGN(const std::vector<float> after, forward_of(found, pool));
  if (before->size() != after.size() || std::memcmp(before->data(), after.data(), after.size() * sizeof(float)) != 0) {
    return internal_error("the forward of what was written differs from the forward of what was given");
  }
  return {};
}

}  // namespace

const char* draft_format_name(DraftFormat format) {
  for (const FormatName& f : kFormats) {
    if (f.format == format) return f.name;
  }
  return "?";
}

Expected<DraftFormat> parse_draft_format(std::string_view text) {
  for (const FormatName& f : kFormats) {
    if (text == f.name) return f.format;
  }
  return invalid_argument("the format is {}, expected speculators, specforge, sglang, modelopt or gguf", printable(text));
}

Status convert_drafter(const DraftCheckpoint& checkpoint, const std::string& path, DraftFormat format, const ConvertOptions& options) {
  AERIE_TRY(checkpoint.spec.validate());
  AERIE_TRY(check_expressible(format, checkpoint.spec, options.target));
  std::error_code error;
  if (fs::exists(path, error)) return invalid_argument("{}: is there already, give a name that is not taken", path);
  const bool gguf = format == DraftFormat::kGguf;
  if (gguf != (fs::path(path).extension() == ".gguf")) {
    return invalid_argument("{}: the format {} is written to {}", path, draft_format_name(format),
                            gguf ? "a file whose name ends in .gguf" : "a folder");
  }
  const std::string fresh = fmt::format("{}.new.{}{}", path, ::getpid(), gguf ? ".gguf" : "");
  const auto work = [&]() -> Status {
    AERIE_TRY(write(checkpoint, fresh, format, options));
    AERIE_TRY(verify(checkpoint, fresh));
    fs::rename(fresh, path, error);
    return error ? io_error("{}: cannot be put in place: {}", path, error.message()) : Status();
  };
  const Status status = work();
  if (!status.ok()) fs::remove_all(fresh, error);
  return status;
}

}  // namespace aerie
