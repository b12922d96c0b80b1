// The faults of public reports that a drafter's files show, each made on a small checkpoint: the finding that names it must be there, and
// must not be there without the fault. Rows are those of a list of such reports, in its order: how the drafter's features are captured (1
// to 13), norms and flags (14 to 23), wiring (24 to 27), weights (28 to 35), the vocabulary map (36 to 39), quantisation (40 to 43), RoPE
// and context (44 to 49). What no file shows is listed with the reason.
#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "eagle3/compare.h"
#include "eagle3/dialects/speculators.h"
#include "eagle3/engines/as_served.h"
#include "eagle3/target_fit.h"
#include "eagle3/token_frequencies.h"
#include "flat_parts.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

/// A drafter with what is known beside its files.
struct Case {
  Parts parts;
  std::optional<Parts> source;  // what the drafter was converted from
  OpenOptions options;
  TargetFacts target;        // hidden 0: none is given
  std::vector<float> table;  // of the target's embedding; empty: not known
  std::vector<double> frequencies;
  ServedTarget served;
};

/// V = 160, H = Ht = 32: wide enough to tell a trained table from a random one.
DraftSpec wide_spec() {
  DraftSpec spec = flat_spec();
  spec.vocab = 160;
  spec.target_hidden = spec.hidden = 32;
  spec.own_embedding = true;
  return spec;
}

/// A table with rows of many lengths and a direction in common, as training leaves it.
std::vector<float> trained_table(uint64_t rows, uint64_t cols, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(rows * cols);
  for (size_t i = 0; i < out.size(); ++i) {
    const float length = 0.5f + static_cast<float>(i / cols % 7) * 0.2f;
    out[i] = length * (normal(random) + (i % cols % 5 == 0 ? 1.0f : 0.0f));
  }
  return out;
}

void set_table(Parts& parts, const std::vector<float>& table, uint64_t cols) {
  std::vector<uint8_t> bytes(table.size() * sizeof(float));
  std::memcpy(bytes.data(), table.data(), bytes.size());
  parts.tensors["embed_tokens.weight"] = {DType::kF32, {table.size() / cols, cols}, std::move(bytes)};
}

Case flat_case(const DraftSpec& spec = flat_spec(), const std::string& first_layer = "midlayer.") {
  Case out;
  out.parts = flat_parts(spec, first_layer);
  out.parts.config["tie_word_embeddings"] = false;
  out.options.target_blocks = 12;
  out.target = {
      .hidden = spec.target_hidden, .vocab = spec.vocab, .blocks = 12, .context = spec.max_positions, .rope_theta = spec.rope_theta};
  out.served = {"LlamaForCausalLM", 12};
  out.frequencies.assign(static_cast<size_t>(spec.vocab), 0.0);
  for (const int32_t id : spec.d2t) out.frequencies[static_cast<size_t>(id)] = 10.0;
  return out;
}

Case flat() { return flat_case(); }
/// By the names that ModelOpt and newer engines use.
Case numbered() { return flat_case(flat_spec(), "layers.0."); }
/// Both vocabularies are the same.
Case full_vocabulary() {
  DraftSpec spec = flat_spec();
  spec.draft_vocab = spec.vocab;
  spec.d2t.clear();
  return flat_case(spec);
}
/// With an embedding of its own, which is the target's.
Case wide() {
  Case out = flat_case(wide_spec());
  out.table = trained_table(160, 32, 4);
  set_table(out.parts, out.table, 32);
  return out;
}
Case latent() {
  Case out = flat_case(latent_spec(), "layers.0.");
  out.parts.config.update({{"architectures", {"Eagle3DeepseekV2ForCausalLM"}},
                           {"model_type", "deepseek_v3"},
                           {"q_lora_rank", 12},
                           {"kv_lora_rank", 8},
                           {"qk_nope_head_dim", 8},
                           {"qk_rope_head_dim", 4},
                           {"v_head_dim", 6}});
  return out;
}
/// In the speculators dialect.
Case of_speculators(const DraftSpec& spec) {
  Case out = flat_case(spec);
  TempFolder dir;
  const Status status = speculators::save_checkpoint(dir / "d", spec, random_weights(spec, 1), DType::kF32);
  EXPECT_TRUE(status.ok()) << status.message();
  out.parts = parts_of(dir / "d");
  return out;
}
Case speculators_case() { return of_speculators(flat_spec()); }

std::set<std::string> codes(const std::vector<Finding>& findings) {
  std::set<std::string> out;
  for (const Finding& finding : findings) out.insert(finding.code);
  return out;
}

/// All that is said of a case: "refused: TEXT" or "read: CODE", and "target: ", "text: ", "source: ", "ENGINE: CODE", "ENGINE: differs
/// FIELD". The texts after "refused" are whole sentences; a row names a part of one.
std::vector<std::string> said(const Case& c, const std::set<std::string>& engines) {
  TempFolder dir;
  c.parts.write(dir / "d");
  std::vector<std::string> out;
  const auto add = [&out](const std::string& by, const std::set<std::string>& words) {
    for (const std::string& word : words) out.push_back(by + ": " + word);
  };
  const auto read = read_drafter(dir / "d", c.options);
  const auto raw = RawCheckpoint::open(dir / "d");
  EXPECT_TRUE(raw.ok()) << raw.status().message();
  for (const std::string& name : engines) {
    const auto engine = parse_engine(name);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    for (const ServedReading& reading : read_as_served(drafter_files(*raw), *engine, c.served, read.ok() ? &read->spec : nullptr)) {
      EXPECT_EQ(reading.unknown, "");
      add(name, codes(reading.refusals));
      add(name, codes(reading.misreadings));
      for (const ServedDifference& difference : reading.differences) add(name, {"differs " + difference.field});
    }
  }
  if (!read.ok()) {
    add("refused", {read.status().message()});
    return out;
  }
  add("read", codes(read->findings));
  if (c.target.hidden != 0) {
    TargetFacts target = c.target;
    const TensorView table = {"token_embd.weight",
                              DType::kF32,
                              {static_cast<uint64_t>(target.vocab), static_cast<uint64_t>(target.hidden)},
                              {reinterpret_cast<const uint8_t*>(c.table.data()), c.table.size() * sizeof(float)}};
    if (!c.table.empty()) target.embedding = &table;
    const auto findings = target_findings(*read, target);
    EXPECT_TRUE(findings.ok()) << findings.status().message();
    add("target", codes(*findings));
  }
  if (c.frequencies.size() == static_cast<size_t>(read->spec.vocab)) {
    add("text", codes(coverage_findings(read->spec, vocabulary_coverage(read->spec, c.frequencies))));
  }
  if (c.source) {
    c.source->write(dir / "s");
    const auto source = read_drafter(dir / "s", c.options);
    EXPECT_TRUE(source.ok()) << source.status().message();
    const auto findings = source_findings(*read, *source);
    EXPECT_TRUE(findings.ok()) << findings.status().message();
    add("source", codes(*findings));
  }
  return out;
}

bool has(const std::vector<std::string>& all, const std::string& wanted) {
  const bool part = wanted.rfind("refused: ", 0) == 0;
  return std::any_of(all.begin(), all.end(), [&](const std::string& one) {
    return part ? one.rfind("refused: ", 0) == 0 && one.find(wanted.substr(9)) != std::string::npos : one == wanted;
  });
}

struct Row {
  int row;
  const char* report;
  const char* fault;
  std::function<Case()> healthy;
  std::function<void(Case&)> damage;
  std::vector<const char*> expected;
};

Json& ids_of(Case& c) { return c.parts.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]; }
Json& layer_of(Case& c) { return c.parts.layer(); }
void add_norm(Case& c, const std::string& name, uint64_t width) { c.parts.set_zeros(name, {width}, DType::kF32); }
const Json kYarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};

// clang-format off
const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {1, "sglang #25454", "boundaries of a DeepSeek-like target are taken for block outputs before 0.5.13",
       [] {
         Case c = latent();
         c.served = {"KimiK25", 61};
         c.options.target_architecture = "KimiK25";
         c.options.target_blocks = c.target.blocks = 61;
         ids_of(c) = {1, 29, 57};
         return c;
       },
       [](Case& c) { ids_of(c) = {2, 30, 58}; }, {"sglang:0.5.12: differs taps"}},
      {2, "sglang #32226", "the last id is the state after the last block, which is not captured", flat,
       [](Case& c) {
         c.served = {"GptOssForCausalLM", 12};
         ids_of(c) = {1, 5, 11};
       },
       {"sglang:0.5.16: last-boundary"}},
      {2, "sglang #32334", "input_norm is stored, and the release does not know it", flat,
       [](Case& c) {
         c.parts.config["norm_before_fc"] = true;
         add_norm(c, "input_norm.weight", 48);
       },
       {"sglang:0.5.16: tensors-dropped", "sglang:0.5.16: differs feature_norm"}},
      {3, "vLLM #43671", "ids in SGLang's convention are read as boundaries",
       [] {
         Case c = flat();
         c.parts.config["layer_id_convention"] = "boundary";
         return c;
       },
       [](Case& c) { c.parts.config["layer_id_convention"] = "block-output"; }, {"vllm:0.33:v1: differs taps"}},
      {4, "tokenspeed #526", "an engine captures its own layers, whatever the config names",
       [] {
         Case c = flat();
         c.parts.config.erase("eagle_config");
         c.options.taps = {3, 7, 10};
         return c;
       },
       [](Case& c) {
         c.options.taps.clear();
         ids_of(c) = {1, 4, 7};
       },
       {"openvino: layer-ids-ignored", "openvino: differs taps"}},
      {5, "llama.cpp #27040", "the ids stand in eagle_config, where the converter does not look", speculators_case,
       [](Case& c) {
         const Case nested = flat();
         c.parts = nested.parts;
         ids_of(c) = {1, 4, 7};
       },
       {"llama.cpp: layer-ids-ignored", "llama.cpp: differs taps"}},
      {6, "llama.cpp #25794", "the converter wrote its own ids instead of the file's",
       [] {
         Case c = speculators_case();
         c.source = c.parts;
         return c;
       },
       [](Case& c) { c.parts.config["eagle_aux_hidden_state_layer_ids"] = {2, 6, 8}; }, {"source: differs-from-source"}},
      {7, "llama.cpp #24541", "the target hands out no layers", flat, [](Case& c) { c.served = {"Glm4MoeForCausalLM", 12}; }, {"llama.cpp: no-taps"}},
      {8, "SpecForge #240", "the middle id is one lower in what is served than in what was trained",
       [] {
         Case c = flat();
         c.source = c.parts;
         return c;
       },
       [](Case& c) { ids_of(c) = {1, 4, 8}; }, {"source: differs-from-source"}},
      {13, "sglang #14920", "an EAGLE-1 drafter is given for an EAGLE-3 one", flat,
       [](Case& c) {
         c.parts.tensors.erase("midlayer.hidden_norm.weight");
         c.parts.set_zeros("fc.weight", {16, 32});
         c.parts.set_zeros("midlayer.self_attn.q_proj.weight", {32, 16});
       },
       {"refused: an EAGLE-1 or EAGLE-2 drafter"}},

      {14, "SpecForge #879", "norm_output, which the trainer and the engines mean differently", flat,
       [](Case& c) { c.parts.config["norm_output"] = true; }, {"read: norm-output-meaning"}},
      {15, "vLLM #38111", "input_norm is stored and norm_before_fc is not there",
       speculators_case, [](Case& c) { add_norm(c, "input_norm.weight", 48); },
       {"refused: 'input_norm.weight' is there, but norm_before_fc is not true", "vllm:0.33:v1: tensors-dropped"}},
      {15, "vLLM #38111", "norm_before_fc is true and input_norm is not stored", speculators_case,
       [](Case& c) { c.parts.config["norm_before_fc"] = true; },
       {"refused: input_norm.weight [48] is missing, though the config says"}},
      {15, "vLLM #38111", "norm_before_fc of a speculators config is lost before 0.20", speculators_case,
       [](Case& c) {
         c.parts.config["norm_before_fc"] = true;
         add_norm(c, "input_norm.weight", 48);
       },
       {"vllm:0.18: flag-ignored", "vllm:0.18: tensors-dropped", "vllm:0.18: differs feature_norm"}},
      {15, "vLLM #38111", "fc_norm is stored and its flag is not there", flat, [](Case& c) { add_norm(c, "fc_norm.0.weight", 16); },
       {"refused: 'fc_norm.0.weight' is there, but fc_norm is not true"}},
      {15, "vLLM #38111", "fc_norm is true and its tensors are not stored", flat, [](Case& c) { c.parts.config["fc_norm"] = true; },
       {"refused: fc_norm.0.weight [16] is missing, though the config says"}},
      {16, "vLLM #42143", "norm_before_fc stands in eagle_config, where llama.cpp's converter does not look", flat,
       [](Case& c) {
         c.parts.config["eagle_config"]["norm_before_fc"] = true;
         add_norm(c, "input_norm.weight", 48);
       },
       {"llama.cpp: flag-ignored", "llama.cpp: differs feature_norm"}},
      {16, "vLLM #42143", "norm_before_fc is stated twice, and differs", flat,
       [](Case& c) {
         c.parts.config["eagle_config"]["norm_before_fc"] = false;
         c.parts.config["norm_before_fc"] = true;
       },
       {"refused: norm_before_fc is true but eagle_config.norm_before_fc is false"}},
      {17, "vLLM #46488", "norm_output of a speculators config is lost before 0.25", speculators_case,
       [](Case& c) { c.parts.config["norm_output"] = true; }, {"vllm:0.24:v1: flag-ignored", "vllm:0.24:v1: differs feedback"}},
      {18, "vLLM #43482", "an MLA drafter's fc_norm is not read", latent,
       [](Case& c) {
         c.parts.config["fc_norm"] = true;
         for (int i = 0; i < 3; ++i) add_norm(c, fmt::format("fc_norm.{}.weight", i), 16);
       },
       {"sglang:0.5.12: flag-ignored", "sglang:0.5.12: tensors-dropped", "sglang:0.5.12: differs feature_norm", "vllm:0.20:v1: unknown-tensors"}},
      {21, "speculators #52", "norm_before_residual is not stated, and the defaults of trainer and engine differ", speculators_case,
       [](Case& c) { c.parts.config.erase("norm_before_residual"); },
       {"read: norm-before-residual-defaulted", "vllm:0.33:v1: residual-flag-supposed", "vllm:0.33:v1: differs norm_before_residual"}},
      {22, "vLLM #43132", "a Qwen3-shaped drafter is loaded as a Llama", flat,
       [](Case& c) {
         for (const char* norm : {"q_norm", "k_norm"}) add_norm(c, fmt::format("midlayer.self_attn.{}.weight", norm), 8);
       },
       {"read: qk-norm-unannounced", "vllm:0.22:v1: unknown-tensors", "sglang:0.5.23: tensors-dropped", "sglang:0.5.23: differs qk_norm"}},

      {28, "sglang #27908", "lm_head is not stored and the target's cannot stand in", flat, [](Case& c) { c.parts.tensors.erase("lm_head.weight"); },
       {"refused: lm_head.weight is missing, and the target's head [10, 16] cannot stand in for one of [6, 16]", "vllm:0.33:v1: head-shape"}},
      {28, "sglang #27908", "lm_head is not stored, and SGLang leaves its own uninitialised", full_vocabulary,
       [](Case& c) { c.parts.tensors.erase("lm_head.weight"); },
       {"read: target-head", "sglang:0.5.23: tensors-uninitialised", "sglang:0.5.23: differs own_head"}},
      {29, "vLLM #28549", "the drafter's embedding is not the target's, and an engine puts that in its place", wide,
       [](Case& c) { set_table(c.parts, trained_table(160, 32, 9), 32); }, {"target: embedding-not-the-targets"}},
      {29, "vLLM #27737", "the drafter's embedding is replaced", [] { return flat_case(); },
       [](Case& c) { set_table(c.parts, trained_table(10, 16, 9), 16); }, {"sglang:0.5.23: embedding-of-target"}},
      {30, "vLLM #18906", "the target is wider than the drafter, and the embedding is not stored", flat,
       [](Case& c) {
         c.parts.config["target_hidden_size"] = 12;
         c.parts.set_zeros("fc.weight", {16, 36});
       },
       {"refused: own_embedding is false, but the target's table of width 12", "sglang:0.5.23: tensors-uninitialised"}},
      {31, "TorchSpec #38", "the exported embedding is random", wide,
       [](Case& c) {
         std::mt19937 random(1);
         std::normal_distribution<float> normal(0.0f, 0.02f);
         std::vector<float> drawn(160 * 32);
         for (float& value : drawn) value = normal(random);
         set_table(c.parts, drawn, 32);
       },
       {"read: embedding-random", "target: embedding-not-the-targets"}},
      {32, "vllm-ascend #7038", "the target's embedding is rotated, the drafter's is not", wide,
       [](Case& c) {
         for (size_t i = 0; i < c.table.size(); i += 32) std::rotate(&c.table[i], &c.table[i] + 13, &c.table[i] + 32);
       },
       {"target: embedding-not-the-targets"}},
      {33, "vLLM #50158", "draft_vocab_size is not what the tensors have", flat, [](Case& c) { c.parts.config["draft_vocab_size"] = 7; },
       {"refused: d2t has the shape [6], expected [7] (draft_vocab_size)"}},
      {33, "vLLM #50158", "draft_vocab_size is not what lm_head has", flat,
       [](Case& c) {
         c.parts.config["draft_vocab_size"] = 5;
         c.parts.set_i64("d2t", {0, 1, 1, 2, 3});
         c.parts.tensors.erase("t2d");
       },
       {"refused: lm_head.weight has the shape [6, 16], expected [5, 16]"}},
      {33, "vLLM #50158", "vocab_size is not what the tensors have", flat, [](Case& c) { c.parts.config["vocab_size"] = 12; },
       {"refused: t2d has the shape [10], expected [12] (vocab_size)"}},
      {33, "vLLM #50158", "vocab_size is not what the embedding has", wide, [](Case& c) { c.parts.config["vocab_size"] = 161; c.parts.tensors.erase("t2d"); },
       {"refused: embed_tokens.weight has the shape [160, 32], expected [161, 32]"}},
      {34, "vLLM #54526", "a speculators config with layers of a kind that the engine does not read", speculators_case,
       [](Case& c) { layer_of(c)["model_type"] = "mistral"; }, {"vllm:0.24:v1: model-type"}},
      {35, "sglang #9074", "the layer's tensors have names that the release does not look for", flat,
       [](Case& c) { c.parts.tensors = numbered().parts.tensors; }, {"sglang:0.5.11: layers-uninitialised", "sglang:0.5.11: tensors-dropped"}},

      {36, "verl-SpeCo #67", "d2t holds target ids instead of offsets, and leaves the vocabulary when they are added", flat,
       [](Case& c) { c.parts.set_i64("d2t", {0, 2, 3, 5, 7, 9}); },
       {"refused: the values look like target ids, but this dialect stores offsets", "sglang:0.5.23: d2t-range"}},
      {36, "verl-SpeCo #67", "the same where every sum stays inside, and t2d says so", flat,
       [](Case& c) {
         c.parts.config["vocab_size"] = 20;
         std::vector<uint8_t> known(20, 0);
         for (const int id : {0, 2, 3, 5, 7, 9}) known[static_cast<size_t>(id)] = 1;
         c.parts.set_i64("d2t", {0, 2, 3, 5, 7, 9});
         c.parts.tensors["t2d"] = {DType::kBool, {20}, known};
       },
       {"refused: with d2t read as target ids the two agree"}},
      {36, "verl-SpeCo #67", "the same without t2d", flat,
       [](Case& c) {
         c.parts.config["vocab_size"] = 20;
         c.parts.set_i64("d2t", {0, 2, 3, 5, 7, 9});
         c.parts.tensors.erase("t2d");
       },
       {"read: d2t-looks-absolute"}},
      {36, "verl-SpeCo #66", "the map is the target's first ids", flat,
       [](Case& c) {
         c.parts.set_i64("d2t", {0, 0, 0, 0, 0, 0});
         c.parts.tensors["t2d"] = {DType::kBool, {10}, {1, 1, 1, 1, 1, 1, 0, 0, 0, 0}};
       },
       {"read: d2t-identity", "text: coverage-low"}},
      {36, "verl-SpeCo #67", "two draft tokens are the same target token", flat, [](Case& c) { c.parts.set_i64("d2t", {0, -1, 1, 2, 3, 4}); },
       {"refused: d2t maps the draft tokens 0 and 1 to the same target token 0"}},
      {36, "verl-SpeCo #67", "t2d and d2t disagree", flat,
       [](Case& c) { std::swap(c.parts.tensors["t2d"].data[0], c.parts.tensors["t2d"].data[1]); }, {"refused: t2d says that target token 0 is outside the draft vocabulary, d2t says the opposite"}},
      {37, "Automodel #2447", "d2t is not stored", flat, [](Case& c) { c.parts.tensors.erase("d2t"); },
       {"refused: d2t is missing, but the draft vocabulary of 6 is smaller than the target's of 10", "vllm:0.33:v1: identity-d2t"}},
      {38, "SpecForge #76", "d2t is all zeros though the vocabularies differ", flat,
       [](Case& c) {
         c.parts.set_i64("d2t", {0, 0, 0, 0, 0, 0});
         c.parts.tensors.erase("t2d");
       },
       {"refused: d2t is all zeros, so that the 6 draft tokens would be the first of the target's 10"}},
      {39, "vLLM #43369", "the drafter is another target's: its vocabulary", flat, [](Case& c) { c.target.vocab = 12; }, {"target: another-target"}},
      {39, "vLLM #34583", "the drafter is another target's: its width", flat, [](Case& c) { c.target.hidden = 24; }, {"target: another-target"}},
      {39, "vLLM #43369", "d2t leaves the target's vocabulary", flat, [](Case& c) { c.parts.set_i64("d2t", {0, 1, 1, 2, 3, 40}); },
       {"refused: outside the target's vocabulary of 10", "vllm:0.33:v1: d2t-range", "llama.cpp: d2t-range"}},
      {39, "vLLM #43369", "the text's tokens are hardly in the draft vocabulary", flat,
       [](Case& c) { c.frequencies = {1, 100, 1, 1, 100, 1, 100, 1, 100, 1}; }, {"text: coverage-low"}},

      {41, "vLLM #25882", "the drafter carries the target's quantisation config", flat,
       [](Case& c) { c.parts.config["quantization_config"] = {{"quant_method", "fp8"}}; }, {"refused: quantised (quantization_config: 'fp8')"}},

      {44, "speculators #574", "the converter dropped rope_scaling",
       [] {
         Case c = flat();
         c.parts.config["rope_scaling"] = kYarn;
         c.source = c.parts;
         return c;
       },
       [](Case& c) { c.parts.config.erase("rope_scaling"); }, {"source: differs-from-source"}},
      {45, "speculators #684", "the drafter has a window, and the engine attends to all", flat,
       [](Case& c) {
         c.parts.config["layer_types"] = {"sliding_attention"};
         c.parts.config["sliding_window"] = 64;
       },
       {"read: sliding-window", "sglang:0.5.23: window-ignored", "sglang:0.5.23: differs sliding_window", "llama.cpp: window-ignored"}},
      {46, "sglang #6783", "the drafter was trained for fewer positions than the target has", flat, [](Case& c) { c.target.context = 8192; },
       {"target: context-longer-than-trained"}},
      {47, "ModelOpt hf_spec_export.py", "rope_theta is the class's default, the target's is another", flat, [](Case& c) { c.target.rope_theta = 1e6f; },
       {"target: rope-theta-not-the-targets"}},
      {47, "ModelOpt hf_spec_export.py", "rope_parameters and rope_theta contradict each other", flat,
       [](Case& c) { c.parts.config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}}; },
       {"refused: rope_theta is 10000 but rope_parameters.rope_theta says 1000000: remove the wrong one"}},
      {47, "ModelOpt hf_spec_export.py", "no rope_theta is stated", flat, [](Case& c) { c.parts.config.erase("rope_theta"); }, {"read: rope-theta-defaulted"}},
      {47, "ModelOpt hf_spec_export.py", "the exporter added YaRN",
       [] {
         Case c = numbered();
         c.parts.config["eagle_config"]["use_last_layernorm"] = true;
         return c;
       },
       [](Case& c) { c.parts.config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32.0}, {"original_max_position_embeddings", 2048}}; },
       {"read: yarn-added-at-export"}},
      {48, "SpecForge #742", "RoPE is stated for transformers 5 only", flat,
       [](Case& c) {
         c.parts.config.erase("rope_theta");
         c.parts.config["rope_parameters"] = kYarn;
         c.parts.config["rope_parameters"]["rope_theta"] = 500000.0;
       },
       {"read: rope-theta-v5-only", "read: rope-scaling-v5-only", "sglang:0.5.9: rope-theta-unseen", "sglang:0.5.9: differs rope_theta",
        "sglang:0.5.9: differs rope_scaling"}},
      {48, "SpecForge #742", "the two schemas state different scalings", flat,
       [](Case& c) {
         c.parts.config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
         c.parts.config["rope_parameters"] = kYarn;
       },
       {"refused: rope_parameters and rope_scaling state different scalings of RoPE"}},
  };
  return table;
}
// clang-format on

struct NotInFiles {
  int row;
  const char* report;
  const char* why;
};
constexpr NotInFiles kNotInFiles[] = {
    {9, "vLLM #40727", "DFlash, which is refused by its name"},
    {10, "EAGLE #239, #261, #308",
     "the target's code hands out other states than its layers': only stored states show that (doctor, replay)"},
    {11, "openvino.genai #4390", "the cost of verifying, not acceptance (doctor, economics)"},
    {12, "vLLM #42764", "the engine was not configured to capture: its log shows it"},
    {19, "vLLM #14464", "the engine's forward was wrong, whatever the files said"},
    {20, "speculators #337", "the sizes of the target's states, which are not in the drafter's files"},
    {23, "speculators #610", "a gain of the deeper drafts: figures by depth"},
    {24, "sglang #21272", "a flag of the engine (doctor, flags: eagle-not-eagle3)"},
    {25, "sglang #36528", "a flag of the engine (doctor, flags: no-drafter)"},
    {26, "SpecForge #310", "flags that override each other (doctor, flags: drafts-fewer-than-asked)"},
    {27, "sglang #3762", "the engine's behaviour at one step"},
    {40, "vLLM #9534", "the kernels of the target"},
    {42, "sglang #28196", "the target's quantisation: the states must be compared"},
    {43, "TRT-LLM #8910", "the types of the engine's caches"},
    {49, "vLLM #40898", "DFlash, which is refused by its name"},
};

TEST(Taxonomy, EachFaultIsNamedAndOnlyWhereItIs) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(fmt::format("row {}, {}: {}", row.row, row.report, row.fault));
    std::set<std::string> engines;
    for (const std::string expected : row.expected) {
      const std::string by = expected.substr(0, expected.find(": "));
      if (by.find_first_of(".:-") != std::string::npos || by == "openvino") engines.insert(by);
    }
    const Case healthy = row.healthy();
    Case damaged = healthy;
    row.damage(damaged);
    const std::vector<std::string> before = said(healthy, engines), after = said(damaged, engines);
    EXPECT_FALSE(row.expected.empty());
    EXPECT_FALSE(has(before, "refused: ")) << fmt::format("{}", fmt::join(before, "\n"));
    for (const char* expected : row.expected) {
      EXPECT_FALSE(has(before, expected)) << expected << " is said of the healthy drafter too";
      EXPECT_TRUE(has(after, expected)) << expected << " is not among\n" << fmt::format("{}", fmt::join(after, "\n"));
    }
  }
}

TEST(Taxonomy, EveryRowIsMadeOrItsReasonIsGiven) {
  std::set<int> made, listed, all;
  for (const Row& row : rows()) made.insert(row.row);
  for (const NotInFiles& row : kNotInFiles) EXPECT_TRUE(listed.insert(row.row).second) << row.row;
  for (int row = 1; row <= 49; ++row) {
    EXPECT_EQ(made.count(row) + listed.count(row), 1u) << row;
    all.insert(row);
  }
  EXPECT_TRUE(std::includes(all.begin(), all.end(), made.begin(), made.end()));
}

}  // namespace
}  // namespace aerie
