#include "eagle3/convert.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

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
constexpr FormatName kFormats[] = {{DraftFormat::kSpeculators, "speculators"}, {DraftFormat::kGguf, "gguf"}};

/// A demand of a format on a spec.
struct Demand {
  const char* field;
  bool met;
  const char* why;
};

/// llama.cpp's graph of the architecture (src/models/eagle3.cpp): what it computes, whatever a file says.
std::vector<Demand> demands_of_gguf(const DraftSpec& s) {
  const RopeScaling& r = s.rope_scaling;
  const bool yarn = r.kind == RopeScalingKind::kYarn, llama3 = r.kind == RopeScalingKind::kLlama3;
  const bool taps = s.taps.size() == 3 && std::all_of(s.taps.begin(), s.taps.end(), [](int tap) { return tap >= 0; });
  return {{"has_fc", s.has_fc, "the graph always has fc"},
          {"taps", taps, "the graph reads exactly three boundaries"},
          {"layers", s.layers == 1, "the graph has one layer"},
          {"attention", s.attention == AttentionKind::kGqa, "the graph has no MLA"},
          {"fc_bias", !s.fc_bias, "there is no tensor for it"},
          {"qkv_bias", !s.qkv_bias, "there is no tensor for it"},
          {"o_bias", !s.o_bias, "there is no tensor for it"},
          {"mlp_bias", !s.mlp_bias, "there is no tensor for it"},
          {"qk_norm", !s.qk_norm, "there is no tensor for it"},
          {"feature_norm", s.feature_norm != FeatureNorm::kPerTap, "the graph norms the whole feature or nothing"},
          {"feature_normed_twice", !s.feature_normed_twice, "the graph norms it once"},
          {"feedback", s.feedback == Feedback::kPreNorm, "the graph feeds the raw state back"},
          {"head_norm", s.head_norm, "the graph's head reads the normed state"},
          {"logit_scale", s.logit_scale == 1.0f, "the graph has none"},
          {"rope_dim", s.rope_dim == s.head_dim, "rows of q and k are stored for the rotation of whole heads"},
          {"rope_interleaved", !s.rope_interleaved, "rows of q and k are stored for the rotation of halves"},
          {"attention_scale", s.attention_scale == 1.0f, "the graph has none"},
          {"sliding_window", s.sliding_window == 0, "the graph ignores windows"},
          {"rope_scaling", !yarn || (r.beta_fast == 32.0f && r.beta_slow == 1.0f && r.truncate), "the graph ignores YaRN's other settings"},
          {"rope_scaling", !llama3 || (r.low_freq_factor == 1.0f && r.high_freq_factor == 4.0f),
           "the file keeps frequencies only, from which other factors than 1 and 4 are not read back"}};
}

/// What speculators' config and this project's writer of it state.
std::vector<Demand> demands_of_speculators(const DraftSpec& s) {
  return {{"has_fc", s.has_fc, "this writer states drafters with taps"},
          {"taps", std::all_of(s.taps.begin(), s.taps.end(), [](int tap) { return tap >= 0; }), "the ids are boundaries"},
          {"layers", s.layers == 1, "this writer states one layer"},
          {"attention", s.attention == AttentionKind::kGqa, "the config has no MLA"},
          {"fc_bias", !s.fc_bias, "the model has none"},
          {"qkv_bias", !s.qkv_bias, "this writer states none"},
          {"o_bias", !s.o_bias, "this writer states none"},
          {"mlp_bias", !s.mlp_bias, "this writer states none"},
          {"qk_norm", !s.qk_norm, "this writer states Llama layers"},
          {"feature_normed_twice", !s.feature_normed_twice, "the model norms it once"},
          {"head_norm", s.head_norm, "the model's head reads the normed state"},
          {"logit_scale", s.logit_scale == 1.0f, "the model has none"},
          {"rope_dim", s.rope_dim == s.head_dim, "this writer states the rotation of whole heads"},
          {"rope_interleaved", !s.rope_interleaved, "the model rotates halves"},
          {"attention_scale", s.attention_scale == 1.0f, "the model has none"},
          {"rope_scaling", s.rope_scaling.kind == RopeScalingKind::kNone, "this writer states no scaling"},
          {"sliding_window", s.sliding_window == 0, "this writer states full attention"}};
}

Expected<std::map<std::string, std::vector<float>>> all_floats(const DraftCheckpoint& checkpoint) {
  std::map<std::string, std::vector<float>> out;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    AERIE_ASSIGN(out[name], to_float(tensor));
  }
  return out;
}

Status write(const DraftCheckpoint& checkpoint, const std::string& path, DraftFormat format, const ConvertOptions& options) {
  if (format == DraftFormat::kGguf) {
    gguf_eagle3::SaveOptions save;
    save.float32 = options.float32;
    save.tokenizer = options.tokenizer;
    save.name = options.target_name.empty() ? "EAGLE-3 drafter" : options.target_name + " EAGLE-3 drafter";
    return gguf_eagle3::save_checkpoint(path, checkpoint, save);
  }
  speculators::SaveOptions save;
  const bool all_bf16 = std::all_of(checkpoint.tensors.begin(), checkpoint.tensors.end(), [](const auto& t) { return t.second.type == DType::kBF16; });
  save.type = all_bf16 && !options.float32 ? DType::kBF16 : DType::kF32;  // nothing may be rounded
  save.verifier = options.target_name;
  AERIE_ASSIGN(const auto weights, all_floats(checkpoint));
  return speculators::save_checkpoint(path, checkpoint.spec, weights, save);
}

Status same_weights(const DraftCheckpoint& given, const DraftCheckpoint& found) {
  for (const auto& [name, tensor] : given.tensors) {
    const auto other = found.tensors.find(name);
    if (other == found.tensors.end()) return internal_error("the weight {} was not written", name);
    AERIE_ASSIGN(const std::vector<float> a, to_float(tensor));
    AERIE_ASSIGN(const std::vector<float> b, to_float(other->second));
    // Bytes, so that -0 and NaN are compared too.
    if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) {
      return internal_error("the weight {} reads back differently", name);
    }
  }
  return found.tensors.size() == given.tensors.size() ? Status() : internal_error("more weights were written than were given");
}

/// Two steps of some rows, in float32 on the scalar kernels.
Expected<std::vector<float>> forward_of(const DraftCheckpoint& checkpoint, ThreadPool& pool) {
  const DraftSpec& spec = checkpoint.spec;
  // A target's tables: functions of the ids, so that both drafters borrow the same.
  TargetTables tables;
  tables.hidden = spec.target_hidden;
  tables.vocab = spec.vocab;
  tables.blocks = 1 << 14;
  tables.embed = [&spec](int32_t token, float* out) {
    for (int c = 0; c < spec.hidden; ++c) out[c] = std::sin(static_cast<float>(token) * 0.37f + static_cast<float>(c));
  };
  tables.head = [&spec](const float* x, int n, float* logits) {
    for (int r = 0; r < n; ++r) {
      for (int t = 0; t < spec.vocab; ++t) logits[static_cast<ptrdiff_t>(r) * spec.vocab + t] = x[static_cast<ptrdiff_t>(r) * spec.hidden + t % spec.hidden];
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
  for (int r = 0; r < kRows; ++r) rows[static_cast<size_t>(r)] = {static_cast<int32_t>(random() % static_cast<unsigned>(spec.vocab)), r, &kv};
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
  AERIE_TRY(same_weights(given, found));
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
  return invalid_argument("the format is {}, expected speculators or gguf", printable(text));
}

Status check_expressible(DraftFormat format, const DraftSpec& spec) {
  for (const Demand& demand : format == DraftFormat::kGguf ? demands_of_gguf(spec) : demands_of_speculators(spec)) {
    if (demand.met) continue;
    std::string value = "?";
    for (const SpecField& field : spec_fields(spec)) value = field.name == demand.field ? field.text() : value;
    return unsupported("the format {} cannot hold {} {}: {}", draft_format_name(format), demand.field, value, demand.why);
  }
  return {};
}

Status convert_drafter(const DraftCheckpoint& checkpoint, const std::string& path, DraftFormat format, const ConvertOptions& options) {
  AERIE_TRY(checkpoint.spec.validate());
  AERIE_TRY(check_expressible(format, checkpoint.spec));
  std::error_code error;
  if (fs::exists(path, error)) return invalid_argument("{}: is there already, give a name that is not taken", path);
  const bool gguf = format == DraftFormat::kGguf;
  if (gguf != (fs::path(path).extension() == ".gguf")) {
    return invalid_argument("{}: the format {} is written to {}", path, draft_format_name(format), gguf ? "a file whose name ends in .gguf" : "a folder");
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
