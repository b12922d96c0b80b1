// Every writer: what it writes opens as the same drafter, or it names the field that its format cannot hold.
#include "eagle3/convert.h"

#include <rapidcheck.h>

#include <cmath>
#include <numeric>

#include "checkpoint_parts.h"
#include "draft_fixture.h"
#include "eagle3/spec_fields.h"
#include "eagle3/unroll.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

constexpr DraftFormat kFormats[] = {DraftFormat::kSpeculators, DraftFormat::kSpecForge, DraftFormat::kSglang, DraftFormat::kModelOpt,
                                    DraftFormat::kGguf};

int any(int low, int high) { return *rc::gen::inRange(low, high + 1); }
/// True for about one in `n`.
bool one_in(int n) { return any(1, n) == n; }
float one_of(std::initializer_list<float> values) { return *rc::gen::elementOf(std::vector<float>(values)); }

void vary_vocabulary(DraftSpec& spec) {
  spec.vocab = any(2, 12);
  spec.draft_vocab = one_in(3) ? spec.vocab : any(1, spec.vocab);
  std::vector<int32_t> ids(static_cast<size_t>(spec.vocab));
  std::iota(ids.begin(), ids.end(), 0);
  if (!one_in(4)) std::shuffle(ids.begin(), ids.end(), std::mt19937(static_cast<unsigned>(any(0, 1 << 20))));
  ids.resize(static_cast<size_t>(spec.draft_vocab));
  if (!one_in(3)) std::sort(ids.begin(), ids.end());
  spec.d2t = ids;
  if (spec.draft_vocab == spec.vocab && one_in(2)) spec.d2t.clear();
  spec.own_embedding = spec.hidden != spec.target_hidden || one_in(4);
  spec.own_head = spec.hidden != spec.target_hidden || spec.draft_vocab != spec.vocab || !spec.d2t.empty() || !one_in(3);
}

void vary_rope(DraftSpec& spec) {
  RopeScaling& r = spec.rope_scaling;
  r.kind = static_cast<RopeScalingKind>(any(1, 3));
  r.factor = one_of({1.0f, 2.0f, 4.0f, 8.0f, 32.0f, 1.7f});
  if (r.kind == RopeScalingKind::kLinear) return;
  r.original_max_positions = any(1, 8192);
  if (r.kind == RopeScalingKind::kLlama3) {
    r.low_freq_factor = one_of({1.0f, 0.5f});
    r.high_freq_factor = one_of({4.0f, 3.3f});
    return;
  }
  r.beta_fast = one_of({32.0f, 16.5f});
  r.beta_slow = one_of({1.0f, 0.7f});
  r.truncate = !one_in(4);
  const auto grown = static_cast<float>(r.factor > 1.0f ? 0.1 * std::log(static_cast<double>(r.factor)) + 1.0 : 1.0);
  r.magnitude = one_of({grown, 1.0f, 0.8f, 1.3f});
  if (spec.attention == AttentionKind::kMla) spec.attention_scale = one_of({1.0f, grown * grown, 1.5f});
}

/// A valid spec of tiny widths. Fields leave their usual values seldom enough that every format can hold some specs.
DraftSpec any_spec() {
  DraftSpec spec;
  spec.hidden = any(1, 3) * 4;
  spec.target_hidden = one_in(4) ? any(1, 3) * 4 : spec.hidden;
  spec.taps.resize(one_in(3) ? static_cast<size_t>(any(1, 5)) : 3);
  for (int& tap : spec.taps) tap = one_in(12) ? kFinalNormed : any(0, 40);
  if (!one_in(4)) {
    std::sort(spec.taps.begin(), spec.taps.end());
    std::rotate(spec.taps.begin(), std::upper_bound(spec.taps.begin(), spec.taps.end(), kFinalNormed), spec.taps.end());
  }
  spec.kv_heads = any(1, 2);
  spec.heads = spec.kv_heads * any(1, 2);
  spec.head_dim = any(1, 3) * 4;
  spec.rope_dim = one_in(6) ? any(1, spec.head_dim / 2) * 2 : spec.head_dim;
  spec.intermediate = any(1, 6) * 2;
  if (one_in(4)) {
    spec.attention = AttentionKind::kMla;
    spec.kv_heads = spec.heads;
    spec.q_rank = one_in(3) ? 0 : any(1, 4) * 2;
    spec.kv_rank = any(1, 4) * 2;
    spec.nope_dim = any(1, 6);
    spec.rope_dim = any(1, 4) * 2;
    spec.v_dim = any(1, 6);
    spec.head_dim = spec.nope_dim + spec.rope_dim;
    if (one_in(12)) spec.latent_eps = 1e-5f;
  } else {
    spec.qk_norm = one_in(6);
    spec.qkv_bias = one_in(8);
  }
  spec.rope_interleaved = spec.attention == AttentionKind::kMla ? !one_in(4) : one_in(20);
  spec.layers = one_in(4) ? any(1, 3) : 1;
  if (spec.layers > 1) spec.layout = static_cast<LayerLayout>(any(0, 2));
  spec.o_bias = one_in(2) ? spec.qkv_bias : one_in(8);
  spec.mlp_bias = one_in(12);
  spec.fc_bias = one_in(12);
  if (one_in(12)) {
    spec.has_fc = spec.fc_bias = false;
    spec.taps = {one_in(4) ? 3 : kFinalNormed};
    spec.target_hidden = spec.hidden;
  }
  spec.feature_norm = one_in(3) ? static_cast<FeatureNorm>(any(0, 2)) : FeatureNorm::kNone;
  spec.norm_before_residual = one_in(4);
  spec.feature_normed_twice = one_in(6);
  spec.feedback = one_in(4) ? Feedback::kPostNorm : Feedback::kPreNorm;
  spec.head_norm = !one_in(12);
  spec.logit_scale = one_in(12) ? 0.3f : 1.0f;
  spec.rope_theta = one_of({10000.0f, 500000.0f, 1e6f, 12345.678f});
  if (one_in(3)) vary_rope(spec);
  if (one_in(40)) spec.attention_scale = 1.1f;
  spec.sliding_window = one_in(8) ? any(1, 8) : 0;
  spec.rms_eps = one_of({1e-5f, 1e-6f, 3.3e-7f});
  spec.max_positions = any(1, 1 << 20);
  vary_vocabulary(spec);
  return spec;
}

TargetTables tables_of(const DraftSpec& spec) {
  TargetTables out{spec.target_hidden, spec.vocab, kMaxTap, nullptr, nullptr};
  const int hidden = spec.hidden, vocab = spec.vocab;
  out.embed = [hidden](int32_t token, float* to) {
    for (int c = 0; c < hidden; ++c) to[c] = std::sin(0.7f * static_cast<float>(token * hidden + c));
  };
  out.head = [hidden, vocab](const float* x, int n, float* logits) {
    for (int i = 0; i < n * vocab; ++i) logits[i] = x[(i / vocab) * hidden + (i % vocab) % hidden];
  };
  return out;
}

/// Three steps of five rows in float32; nothing where this program has no kernels for the widths.
std::vector<float> forward_of(const DraftCheckpoint& checkpoint) {
  const DraftSpec& spec = checkpoint.spec;
  auto drafter = Drafter::create(checkpoint, tables_of(spec), DraftPrecision::kFloat32);
  if (drafter.status().code() == StatusCode::kUnsupported) return {};
  RC_ASSERT(drafter.ok());
  ThreadPool pool(1);
  CpuOps ops(table(kernels::Isa::kScalar), pool);
  constexpr int kRows = 5, kSteps = 3;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> features(static_cast<size_t>(kRows * spec.feature_width()));
  for (float& value : features) value = bf16_to_f32(f32_to_bf16(normal(random)));
  std::vector<int32_t> tokens(kRows);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<unsigned>(spec.vocab));
  const auto vocab = static_cast<size_t>(spec.draft_vocab);
  std::vector<float> out(kSteps * kRows * vocab, NAN);
  const Status status =
      unroll_logits(*drafter, ops, features, tokens, {.steps = kSteps}, [&](int step, int first, int rows, const float* logits) {
        std::copy_n(logits, static_cast<size_t>(rows) * vocab, out.data() + static_cast<size_t>(step * kRows + first) * vocab);
      });
  RC_ASSERT(status.ok());
  return out;
}

bool names_a_field(const std::string& message, const DraftSpec& spec) {
  std::vector<std::string> names = {"d2t", "layout", "latent_eps"};
  for (const SpecField& field : spec_fields(spec)) names.push_back(field.name);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return message.find("cannot hold " + name + " ") != std::string::npos || message.find("cannot hold " + name + ":") != std::string::npos;
  });
}

struct Target {
  const char* architecture;
  int blocks;
};
const Target kTargets[] = {{"", 0},         {"llama", 40},  {"deepseek2", 61},
                           {"gpt-oss", 36}, {"gpt-oss", 0}, {"MiniMaxM3VLForConditionalGeneration", 40}};

TEST(Convert, WhatAnyWriterWritesIsTheSameDrafterOrAFieldIsNamed) {
  std::map<DraftFormat, int> written, refused;
  EXPECT_TRUE(rc::check([&] {
    const DraftSpec spec = any_spec();
    RC_ASSERT(spec.validate().message() == "");
    const Made made(spec, *rc::gen::element(DType::kF32, DType::kBF16));
    const Target& target = *rc::gen::elementOf(std::vector<Target>(std::begin(kTargets), std::end(kTargets)));
    for (const DraftFormat format : kFormats) {
      ConvertOptions options;
      options.target = {target.architecture, target.blocks};
      options.float32 = one_in(4);
      TempFolder dir;
      const std::string out = dir / (format == DraftFormat::kGguf ? "d.gguf" : "d");
      const Status status = convert_drafter(made.checkpoint, out, format, options);
      if (!status.ok()) {
        ++refused[format];
        RC_LOG() << draft_format_name(format) << ": " << status.message() << "\n";
        RC_ASSERT(status.code() == StatusCode::kUnsupported);
        RC_ASSERT(names_a_field(status.message(), spec));
        RC_ASSERT(!std::filesystem::exists(out));
        continue;
      }
      ++written[format];
      const auto read = open_drafter(out);
      RC_ASSERT(read.ok());
      RC_ASSERT(differing_fields(spec, read->spec) == std::vector<std::string>());
      RC_ASSERT(read->tensors.size() == made.weights.size());
      for (const auto& [name, values] : made.weights) RC_ASSERT(to_float(read->tensors.at(name)).value() == values);
      RC_ASSERT(forward_of(*read) == forward_of(made.checkpoint));
      if (format != DraftFormat::kSglang) continue;
      const auto raw = RawCheckpoint::open(out);
      for (const ServedReading& reading : read_as_served(drafter_files(*raw), *parse_engine("sglang"), options.target, &spec)) {
        RC_ASSERT(!reading.refuses());
        RC_ASSERT(reading.differences.empty());
        RC_ASSERT(reading.spec->taps == spec.taps);
      }
    }
  }));
  for (const DraftFormat format : kFormats) {
    EXPECT_GT(written[format], 0) << draft_format_name(format);
    EXPECT_GT(refused[format], 0) << draft_format_name(format);
  }
}

/// A drafter that each of the formats can hold.
DraftSpec plain_spec() {
  DraftSpec spec = tiny_spec();
  spec.taps = {2, 15, 27};
  spec.target_hidden = spec.hidden;
  spec.feature_norm = FeatureNorm::kNone;
  spec.norm_before_residual = spec.own_embedding = false;
  spec.feedback = Feedback::kPreNorm;
  return spec;
}

/// The config.json that is written, or the refusal.
Json written_config(const DraftSpec& spec, DraftFormat format, const ServedTarget& target = {}) {
  TempFolder dir;
  ConvertOptions options;
  options.target = target;
  const Status status = convert_drafter(Made(spec).checkpoint, dir / "d", format, options);
  return status.ok() ? parts_of(dir / "d").config : Json(status.message());
}

TEST(Convert, WritesTheLayerIdsThatSglangReadsAsTheTapsOfThisTarget) {
  struct Row {
    const char* architecture;
    int blocks;
    std::vector<int> taps;
    const char* expected;  // the ids, or a part of the refusal
  };
  const std::vector<Row> rows = {{"llama", 30, {2, 15, 27}, "[1,14,26]"},
                                 {"", 0, {2, 15, 27}, "[1,14,26]"},
                                 {"", 0, {3, 16, 28}, "name the target with -m"},
                                 {"llama", 30, {3, 16, 28}, "[2,15,27]"},
                                 {"llama", 30, {0, 2, 27}, "[-1,1,26]"},
                                 {"llama", 30, {2, 15, 30}, "boundary 30 (after the last block) is not captured"},
                                 {"llama", 30, {15, 2, 27}, "has 2,15,27"},
                                 {"deepseek2", 61, {2, 30, 58}, "[1,29,57]"},
                                 {"KimiK25ForConditionalGeneration", 61, {3, 31, 59}, "[3,31,59]"},
                                 {"deepseek2", 61, {1, 30, 58}, "no list of layer ids is read as the boundaries 1,30,58"},
                                 {"gpt-oss", 36, {25, 31, 36}, "[24,30,35]"},
                                 {"gpt-oss", 0, {25, 31, 36}, "depends on the target's number of blocks"},
                                 {"MiniMaxM3VLForConditionalGeneration", 60, {2, 30, 57}, "[1,29,56]"}};
  for (const Row& row : rows) {
    DraftSpec spec = plain_spec();
    spec.taps = row.taps;
    const Json config = written_config(spec, DraftFormat::kSglang, {row.architecture, row.blocks});
    const std::string found = config.is_object() ? config["eagle_config"]["eagle_aux_hidden_state_layer_ids"].dump() : config.dump();
    EXPECT_NE(found.find(row.expected), std::string::npos) << row.architecture << ": " << row.expected << " against " << found;
  }
}

TEST(Convert, RefusesWhatSglangWouldServeOtherwise) {
  const struct {
    const char* expected;
    void (*change)(DraftSpec&);
  } rows[] = {{"norm_before_residual true: SGLang 0.5.23 has false", [](DraftSpec& s) { s.norm_before_residual = true; }},
              {"own_embedding true: SGLang puts the target's", [](DraftSpec& s) { s.own_embedding = true; }},
              {"sliding_window 64", [](DraftSpec& s) { s.sliding_window = 64; }},
              {"qk_norm true", [](DraftSpec& s) { s.qk_norm = true; }},
              {"layout input-norm: SGLang 0.5.23 has hidden-norm", [](DraftSpec& s) { s.layers = 2; }},
              {"qkv_bias true", [](DraftSpec& s) { s.qkv_bias = s.o_bias = true; }},
              {"logit_scale 0.5", [](DraftSpec& s) { s.logit_scale = 0.5f; }},
              {"has_fc true: SGLang 0.5.23 has false", [](DraftSpec& s) { s.taps = {2}; }}};
  for (const auto& row : rows) {
    DraftSpec spec = plain_spec();
    row.change(spec);
    const Json found = written_config(spec, DraftFormat::kSglang, {"llama", 30});
    ASSERT_TRUE(found.is_string()) << row.expected;
    EXPECT_NE(found.get<std::string>().find(std::string("cannot hold ") + row.expected), std::string::npos) << found;
  }
  // A head of the target's is asked for by null; stated and not stored it would stay uninitialised.
  DraftSpec spec = plain_spec();
  spec.own_head = false;
  spec.draft_vocab = spec.vocab;
  spec.d2t.clear();
  const Json config = written_config(spec, DraftFormat::kSglang, {"llama", 30});
  ASSERT_TRUE(config.is_object()) << config;
  EXPECT_TRUE(config.at("draft_vocab_size").is_null());
}

TEST(Convert, EachMakersFilesAreRecognisedAsTheirs) {
  for (const auto& [format, dialect, first] : {std::tuple(DraftFormat::kSpeculators, "speculators", "layers.0."),
                                               {DraftFormat::kSpecForge, "specforge", "midlayer."},
                                               {DraftFormat::kSglang, "specforge", "midlayer."},
                                               {DraftFormat::kModelOpt, "modelopt", "layers.0."}}) {
    TempFolder dir;
    const Status status = convert_drafter(Made(plain_spec(), DType::kBF16).checkpoint, dir / "d", format, {});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(open_drafter(dir / "d")->spec.dialect, dialect);
    const Parts parts = parts_of(dir / "d");
    EXPECT_EQ(parts.tensors.count(std::string(first) + "self_attn.q_proj.weight"), 1u) << dialect;
    EXPECT_EQ(parts.tensors.count("t2d"), format == DraftFormat::kModelOpt ? 0u : 1u) << dialect;
    EXPECT_EQ(parts.config["torch_dtype"], "bfloat16") << dialect;
  }
}

// DeepSeek's YaRN as Kimi-K2's drafters state it: both mscales 1, so that the softmax's scale grows and cos and sin do not.
TEST(Convert, StatesTheMscalesOfDeepseek) {
  DraftSpec spec = plain_spec();
  spec.attention = AttentionKind::kMla;
  spec.q_rank = spec.kv_rank = 8;
  spec.nope_dim = spec.v_dim = 6;
  spec.rope_dim = 4;
  spec.head_dim = 10;
  spec.kv_heads = spec.heads;
  spec.rope_interleaved = true;
  const double grown = 0.1 * std::log(64.0) + 1.0;
  spec.rope_scaling = {.kind = RopeScalingKind::kYarn, .factor = 64, .original_max_positions = 4096, .magnitude = 1.0f};
  spec.attention_scale = static_cast<float>(grown * grown);
  const Json config = written_config(spec, DraftFormat::kSglang, {"deepseek2", 61});
  ASSERT_TRUE(config.is_object()) << config;
  EXPECT_EQ(config["rope_scaling"]["mscale"], 1.0);
  EXPECT_EQ(config["rope_scaling"]["mscale_all_dim"], 1.0);
  spec.rope_scaling = {.kind = RopeScalingKind::kLinear, .factor = 4};
  spec.attention_scale = 1.0f;
  EXPECT_NE(written_config(spec, DraftFormat::kSglang).dump().find("cannot hold rope_scaling linear x4"), std::string::npos);
}

}  // namespace
}  // namespace aerie
