#include "eagle3/engines/as_served.h"

#include <algorithm>

#include "eagle3/engines/emulation.h"
#include "eagle3/spec_fields.h"
#include "formats/printable.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxVocab = 1 << 24;
constexpr const char* kIds = "eagle_aux_hidden_state_layer_ids";

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// 2: in the list; 1: but for capital letters; 0: not.
int listed(std::string_view words, std::string_view word) {
  int best = 0;
  while (!words.empty()) {
    const size_t space = words.find(' ');
    const std::string_view one = words.substr(0, space);
    if (one == word) return 2;
    if (same_letters(one, word)) best = 1;
    words = space == std::string_view::npos ? std::string_view() : words.substr(space + 1);
  }
  return best;
}

std::string text_of(const std::vector<int>& taps) { return fmt::format("{}", fmt::join(taps, ",")); }

const Json& object_or_empty(const Json& config, const char* key) {
  static const Json kEmpty = Json::object();
  const auto it = config.find(key);
  return it != config.end() && it->is_object() ? *it : kEmpty;
}

std::string architecture_of(const Json& config) {
  const auto it = config.find("architectures");
  return it != config.end() && it->is_array() && !it->empty() && it->front().is_string() ? it->front().get<std::string>() : std::string();
}

}  // namespace

DrafterFiles drafter_files(const RawCheckpoint& raw) {
  DrafterFiles out;
  out.config = raw.config();
  out.gguf = raw.gguf() != nullptr;
  for (const TensorView& tensor : raw.tensors()) out.tensors[tensor.name] = tensor.shape;
  if (const TensorView* d2t = raw.find("d2t"); d2t != nullptr && d2t->shape.size() == 1) {
    // One of another type is the reader's to refuse.
    if (auto values = to_integers(*d2t); values.ok()) out.d2t = std::move(*values);
  }
  return out;
}

Emulation::Emulation(const DrafterFiles& files, const EngineVersion& version, VllmRunner runner, const ServedTarget& target)
    : files_(files),
      version_(version),
      target_(target),
      family_(find_target_family(target.architecture)),
      rules_(engine_rules(version, runner, target.architecture)),
      engine_(display_name(version.engine)),
      blocks_(target.blocks > 0    ? target.blocks
              : family_ != nullptr ? family_->blocks
                                   : 0),
      config_(files.config) {
  out_.engine = version.text();
  out_.caveats = version.caveats;
  if (version.engine == Engine::kVllm && version.runner == VllmRunner::kByDefault)
    out_.engine += runner == VllmRunner::kV1 ? " (V1 runner)" : " (V2 runner)";
}

ServedReading Emulation::run() {
  if (files_.gguf) {
    out_.unknown =
        version_.engine == Engine::kLlamaCpp
            ? "llama.cpp reads this file itself; what it would make of the folder that the file was converted from is what can be said here"
            : fmt::format("whether {} loads a drafter from a GGUF file was not read", engine_);
    return out_;
  }
  flatten();
  if (!out_.unknown.empty() || out_.refuses()) return out_;
  read_config();
  if (out_.unknown.empty()) account_tensors();
  if (out_.unknown.empty() && spec_.hidden != 0) out_.spec = spec_;
  return out_;
}

void Emulation::flatten() {
  if (!config_.is_object()) {
    out_.unknown = "config.json is no object";
    return;
  }
  if (!config_.contains("speculators_model_type")) return;
  if (!rules_.speculators) {
    if (version_.engine == Engine::kSglang) {
      refuse("speculators-config", "SGLang has no reader for a config of the speculators dialect",
             "write the drafter in the SpecForge dialect");
    } else {
      out_.unknown = fmt::format("what {} makes of a config of the speculators dialect was not read", engine_);
    }
    return;
  }
  Json flat = object_or_empty(config_, "transformer_layer_config");
  const bool is_vllm = version_.engine == Engine::kVllm;
  const auto copy = [&](const char* key, bool known) {
    if (!config_.contains(key)) return;
    if (known) flat[key] = config_[key];
    if (!known && config_[key] == true) misread_flag(key);
  };
  for (const char* key : {"draft_vocab_size", "target_hidden_size", "norm_before_residual", kIds}) copy(key, true);
  copy("norm_before_fc", !is_vllm || version_.at_least(0, 20));
  copy("fc_norm", is_vllm && version_.at_least(0, 25));
  copy("norm_output", is_vllm && version_.at_least(0, 25));
  if (!flat.contains("norm_before_residual") && !rules_.speculators_raw_default) {
    flat["norm_before_residual"] = true;
    misread(Severity::kWarning, "residual-flag-supposed",
            "the config does not state norm_before_residual, for which vLLM then takes true (speculators' own config class: false)",
            "state norm_before_residual in config.json");
  }
  if (is_vllm) {
    const std::string type = flat.value("model_type", Json("llama")).is_string() ? flat.value("model_type", std::string("llama")) : "";
    if (version_.at_least(0, 24) && type != "llama" && type != "qwen3") {
      refuse("model-type", fmt::format("transformer_layer_config.model_type is {}: vLLM reads llama and qwen3 only", printable(type)));
      return;
    }
    flat["architectures"] =
        Json::array({type == "qwen3" && version_.at_least(0, 24) ? "Eagle3Qwen3ForCausalLM" : "Eagle3LlamaForCausalLM"});
  }
  config_ = std::move(flat);
}

bool Emulation::choose_class(const Json& config) {
  const std::string architecture = architecture_of(config);
  const bool latent = config.contains("kv_lora_rank") && !config["kv_lora_rank"].is_null();
  if (rules_.llama_classes.empty() && rules_.mla_classes.empty()) {
    class_ = latent ? DrafterClass::kMla : DrafterClass::kLlama;
    if (latent && !rules_.mla) refuse("no-class", fmt::format("{} has no drafter with MLA attention", engine_));
    return out_.refusals.empty();
  }
  int spelled = 0;
  for (const auto& [words, kind] : {std::pair{rules_.llama_classes, DrafterClass::kLlama},
                                    {rules_.qwen3_classes, DrafterClass::kQwen3},
                                    {rules_.mla_classes, DrafterClass::kMla}}) {
    const int found = listed(words, architecture);
    if (found > spelled) class_ = kind, spelled = found;
  }
  if (spelled == 1)
    out_.caveats.push_back(
        fmt::format("the architecture {} is spelled with other capital letters than {} does", printable(architecture), engine_));
  if (spelled != 0) return true;
  refuse("no-class", fmt::format("{} has no class for the architecture {}", out_.engine,
                                 architecture.empty() ? "that the config does not name" : printable(architecture)));
  return false;
}

bool Emulation::read_flag(FlagPlace place, const char* key, ConfigReader& top, ConfigReader& nested) {
  const auto at_top = top.boolean(key), inside = nested.boolean(key);
  switch (place) {
    case FlagPlace::kNowhere: return false;
    case FlagPlace::kTop: return at_top.value_or(false);
    case FlagPlace::kNested: return inside.value_or(false);
    case FlagPlace::kNestedThenTop: return inside ? *inside : at_top.value_or(false);
  }
  return false;
}

void Emulation::read_config() {
  if (!choose_class(config_)) return;
  ConfigReader top(config_, ""), nested(object_or_empty(config_, "eagle_config"), "eagle_config.");
  read_shapes(top);
  read_vocabulary(top);
  read_norms(top, nested);
  read_layers(top, nested);
  read_window(top);
  read_rope();
  read_taps(top, nested);
  for (const ConfigReader* reader : {&top, &nested}) {
    if (!reader->status().ok()) out_.unknown = reader->status().message();
  }
}

void Emulation::read_shapes(ConfigReader& top) {
  // What the config leaves out is Llama's default in transformers 5.
  spec_.hidden = top.integer("hidden_size", 1, kMaxWidth).value_or(4096);
  spec_.target_hidden = top.integer("target_hidden_size", 1, kMaxWidth).value_or(spec_.hidden);
  spec_.intermediate = top.integer("intermediate_size", 1, kMaxWidth).value_or(11008);
  spec_.layers = top.integer("num_hidden_layers", 0, 10000).value_or(32);
  spec_.heads = top.integer("num_attention_heads", 1, kMaxWidth).value_or(32);
  spec_.kv_heads = top.integer("num_key_value_heads", 1, kMaxWidth).value_or(spec_.heads);
  spec_.head_dim = top.integer("head_dim", 1, kMaxWidth).value_or(std::max(spec_.hidden / spec_.heads, 1));
  spec_.rms_eps = static_cast<float>(top.number("rms_norm_eps").value_or(1e-6));
  spec_.max_positions = top.integer("max_position_embeddings", 1, INT32_MAX).value_or(2048);
  if (mla()) {
    spec_.attention = AttentionKind::kMla;
    spec_.q_rank = top.integer("q_lora_rank", 0, kMaxWidth).value_or(0);
    spec_.kv_rank = top.integer("kv_lora_rank", 1, kMaxWidth).value_or(1);
    spec_.nope_dim = top.integer("qk_nope_head_dim", 1, kMaxWidth).value_or(128);
    spec_.rope_dim = top.integer("qk_rope_head_dim", 1, kMaxWidth).value_or(64);
    spec_.v_dim = top.integer("v_head_dim", 1, kMaxWidth).value_or(128);
    spec_.head_dim = spec_.nope_dim + spec_.rope_dim;
    spec_.kv_heads = spec_.heads;
    if (version_.engine == Engine::kSglang && spec_.q_rank == 0) refuse("no-q-rank", "SGLang's MLA drafter needs q_lora_rank");
  }
  const auto activation = top.text("hidden_act");
  if (version_.engine == Engine::kSglang && activation && *activation != "silu")
    refuse("activation", fmt::format("hidden_act is {}: SGLang takes silu only", printable(*activation)));
  if (rules_.one_layer && spec_.layers != 1) {
    refuse("layers", fmt::format("num_hidden_layers is {}: {} takes a drafter of one layer", spec_.layers, out_.engine),
           "write 1 if one layer is stored");
    spec_.layers = 1;
  }
  if (version_.engine == Engine::kSglang && mla() && spec_.layers != 1)
    refuse("layers", fmt::format("num_hidden_layers is {}: SGLang's MLA drafter has one layer", spec_.layers));
}

void Emulation::read_vocabulary(ConfigReader& top) {
  spec_.vocab = top.integer("vocab_size", 1, kMaxVocab).value_or(32000);
  const bool stated = config_.contains("draft_vocab_size"), null = stated && config_["draft_vocab_size"].is_null();
  spec_.draft_vocab = top.integer("draft_vocab_size", 1, kMaxVocab).value_or(spec_.vocab);
  const bool tied = top.boolean("tie_word_embeddings").value_or(false);
  if (!stated && rules_.draft_vocab_required && !mla()) {
    if (version_.engine == Engine::kTensorRtLlm) {
      misread(Severity::kWarning, "draft-vocab-absent",
              "draft_vocab_size is absent: TensorRT-LLM takes the whole vocabulary with a warning", "state draft_vocab_size");
    } else {
      refuse("draft-vocab-absent",
             version_.engine == Engine::kSglang ? "draft_vocab_size is absent from the config: SGLang stops with an AttributeError"
                                                : "draft_vocab_size is absent: llama.cpp's converter does not recognise a drafter",
             "state draft_vocab_size");
    }
  }
  if (version_.engine == Engine::kSglang) {
    if (null) {
      head_of_target_ = true;
      misread(Severity::kWarning, "head-of-target",
              "draft_vocab_size is null: SGLang takes the target's head and embedding, whatever is stored", "state draft_vocab_size");
    } else if (tied) {
      head_of_target_ = true;
      misread(Severity::kWarning, "head-tied",
              "tie_word_embeddings is true: the head is the drafter's embedding, which SGLang then replaces by the target's",
              "state tie_word_embeddings: false");
    }
  }
}

void Emulation::read_norms(ConfigReader& top, ConfigReader& nested) {
  const auto per_tap_flag = top.boolean("fc_norm"), old_word = top.boolean("use_aux_norm"), output = top.boolean("norm_output"),
             nested_output = nested.boolean("return_hidden_post_norm"), residual = top.boolean("norm_before_residual");
  const bool concat = read_flag(mla() ? rules_.norm_before_fc_mla : rules_.norm_before_fc, "norm_before_fc", top, nested);
  const bool per_tap =
      (mla() ? rules_.fc_norm_mla : rules_.fc_norm) && (per_tap_flag.value_or(false) || (rules_.use_aux_norm && old_word.value_or(false)));
  spec_.feature_norm = per_tap ? FeatureNorm::kPerTap : concat ? FeatureNorm::kConcat : FeatureNorm::kNone;
  input_norm_too_ = per_tap && concat && !rules_.fc_norm_wins;
  if (input_norm_too_)
    misread(Severity::kWarning, "two-feature-norms",
            fmt::format("both input_norm and fc_norm are asked for: {} runs both, in that order", engine_));
  const bool post = (mla() ? rules_.norm_output_mla : rules_.norm_output) &&
                    (output.value_or(false) || (rules_.post_norm_nested && nested_output.value_or(false)));
  spec_.feedback = post ? Feedback::kPostNorm : Feedback::kPreNorm;
  spec_.norm_before_residual = rules_.norm_before_residual && residual.value_or(false);
  const auto ignored = [this](bool stated, bool honoured, const char* key) {
    if (stated && !honoured) misread_flag(key);
  };
  ignored(residual.value_or(false), rules_.norm_before_residual, "norm_before_residual");
  ignored(per_tap_flag.value_or(false), per_tap, "fc_norm");
  ignored(output.value_or(false), post, "norm_output");
  const bool concat_stated = top.boolean("norm_before_fc").value_or(false) || nested.boolean("norm_before_fc").value_or(false);
  ignored(concat_stated, concat, "norm_before_fc");
}

void Emulation::read_layers(ConfigReader& top, ConfigReader& nested) {
  spec_.layout = rules_.layout;
  if (rules_.layout_flag && !nested.boolean("next_layer_regular").value_or(true)) spec_.layout = LayerLayout::kConcat;
  const bool attention_bias = top.boolean("attention_bias").value_or(false), bias = top.boolean("bias").value_or(false);
  spec_.fc_bias = rules_.fc_bias && bias;
  spec_.qkv_bias = rules_.qkv_bias && attention_bias;
  spec_.o_bias = rules_.o_bias && (attention_bias || bias);
  spec_.mlp_bias = rules_.mlp_bias && top.boolean("mlp_bias").value_or(false);
  spec_.qk_norm = class_ == DrafterClass::kQwen3;
  const auto scale = top.number("logit_scale");
  if (rules_.logit_scale) spec_.logit_scale = static_cast<float>(scale.value_or(1.0));
  if (attention_bias && !rules_.qkv_bias) {
    misread(Severity::kError, "flag-ignored",
            fmt::format("attention_bias is true, but {} gives q, k and v no bias{}", engine_, rules_.o_bias ? " (only o)" : ""));
  }
}

void Emulation::read_window(ConfigReader& top) {
  const auto window = top.integer("sliding_window", 0, INT32_MAX);
  const auto types = top.texts("layer_types");
  const bool windowed = types && std::find(types->begin(), types->end(), "sliding_attention") != types->end() && window.value_or(0) > 0;
  if (windowed && rules_.window) spec_.sliding_window = *window;
  if (windowed && !rules_.window) {
    misread(Severity::kError, "window-ignored", fmt::format("the config asks for a window of {} rows; {} attends to all", *window, engine_),
            version_.engine == Engine::kSglang && version_.at_least(0, 5, 12) && !mla()
                ? fmt::format("--speculative-draft-window-size {}", *window)
                : "");
  }
}

void Emulation::read_taps(ConfigReader& top, ConfigReader& nested) {
  const auto at_top = top.integers(kIds, -1, kMaxTap), inside = nested.integers(kIds, -1, kMaxTap),
             shorter = nested.integers("layer_ids", -1, kMaxTap);
  const auto usable = [this](const std::optional<std::vector<int>>& ids) { return ids && !(ids->empty() && rules_.empty_list_is_absent); };
  std::optional<std::vector<int>> ids;
  const bool reads_top = rules_.ids != IdSource::kNowhere && rules_.ids != IdSource::kNested;
  if (reads_top && usable(at_top)) ids = at_top;
  if (!ids && (rules_.ids == IdSource::kNested || rules_.ids == IdSource::kTopThenNested) && usable(inside)) ids = inside;
  if (!ids && rules_.ids == IdSource::kTopThenShortNested && usable(shorter)) ids = shorter;

  const auto count = [](const auto& list) { return list && !list->empty() ? static_cast<int>(list->size()) : 0; };
  const int number = top.integer("num_aux_hidden_states", 1, 64).value_or(0), layers = top.integer("num_aux_layers", 1, 64).value_or(0);
  const AuxCount how = class_ == DrafterClass::kMla ? rules_.aux_mla : class_ == DrafterClass::kQwen3 ? rules_.aux_qwen3 : rules_.aux;
  const auto first = [](std::initializer_list<int> counts) {
    for (const int n : counts) {
      if (n > 0) return n;
    }
    return 3;
  };
  switch (how) {
    case AuxCount::kThree: aux_ = 3; break;
    case AuxCount::kNumberThenNested: aux_ = first({number, count(inside)}); break;
    case AuxCount::kNestedThenTop: aux_ = first({count(inside), count(at_top)}); break;
    case AuxCount::kNumbersThenTopThenNested: aux_ = first({layers, number, count(at_top), count(inside)}); break;
  }
  const bool captures = nested.boolean("use_aux_hidden_state").value_or(true) || (mla() && version_.engine == Engine::kVllm);
  if (!captures && (version_.engine == Engine::kSglang || version_.engine == Engine::kVllm)) {
    spec_.has_fc = false;
    spec_.taps = {kFinalNormed};
    out_.taps = "the last state alone, without fc (use_aux_hidden_state is false)";
    return;
  }
  if (ids) {
    check_taps(*ids, false);
  } else {
    for (const auto& [list, where] : {std::pair{&at_top, "at the top level"}, {&inside, "in eagle_config"}}) {
      if (*list && !(*list)->empty()) {
        misread(Severity::kWarning, "layer-ids-ignored",
                fmt::format("the layer ids {} {} are not read by {}: it captures its default", text_of(**list), where, out_.engine),
                version_.engine == Engine::kSglang ? "state them in eagle_config"
                : rules_.ids == IdSource::kNowhere ? "give the layers in the run's configuration"
                                                   : "state them at the top level");
      }
    }
    check_taps({}, true);
  }
}

void Emulation::check_taps(const std::vector<int>& listed_ids, bool by_default) {
  if (by_default) {
    const bool later = rules_.id_rule == LayerIdRule::kShiftedDefault;
    out_.taps = fmt::format("its default {}", later ? "3, N/2+1, N-2" : "2, N/2, N-3");
    if (blocks_ >= 6) spec_.taps = default_taps(rules_.id_rule, blocks_);
  } else {
    auto boundaries = to_boundaries(rules_.id_rule, listed_ids, blocks_);
    if (!boundaries.ok()) {
      refuse("layer-ids", fmt::format("the layer ids {}: {}", text_of(listed_ids), boundaries.status().message()));
      return;
    }
    spec_.taps = *std::move(boundaries);
    if (!rules_.file_order) {
      const std::vector<int> before = spec_.taps;
      std::sort(spec_.taps.begin(), spec_.taps.end());
      spec_.taps.erase(std::unique(spec_.taps.begin(), spec_.taps.end()), spec_.taps.end());
      if (spec_.taps != before) {
        misread(Severity::kError, "taps-reordered",
                fmt::format("the boundaries {} are captured in layer order, each once: {}", text_of(before), text_of(spec_.taps)),
                "list them ascending, and train so");
      }
    }
    out_.taps = fmt::format("the listed ids {} as boundaries {}", text_of(listed_ids), text_of(spec_.taps));
    if (static_cast<int>(spec_.taps.size()) != aux_) {
      refuse("feature-width", fmt::format("{} boundaries are captured, but fc is built for {}", spec_.taps.size(), aux_),
             version_.engine == Engine::kVllm ? "state num_aux_hidden_states" : "");
    }
  }
  if (spec_.taps.empty()) return;
  const int highest = *std::max_element(spec_.taps.begin(), spec_.taps.end());
  if (blocks_ > 0 && highest > blocks_)
    refuse("layer-ids", fmt::format("boundary {} lies beyond the target's {} blocks", highest, blocks_));
  const bool sglang = version_.engine == Engine::kSglang;
  if (sglang && blocks_ > 0 && highest == blocks_ &&
      (family_ == nullptr || !family_->sglang_captures_last ||
       (rules_.id_rule == LayerIdRule::kBlockOutput && std::string_view(family_->name) == "GPT-OSS"))) {
    refuse("last-boundary",
           fmt::format("boundary {} (after the last block) is not captured by {} for this target: the feature is too narrow for fc",
                       highest, out_.engine));
  }
  if (spec_.taps.front() == 0 && !rules_.embedding_tap)
    refuse("embedding-tap", fmt::format("the embedding (id -1) cannot be captured by {}", out_.engine), "SGLang 0.5.22 or later");
  if (version_.engine == Engine::kOpenVino && blocks_ > 0 && blocks_ < 10)
    refuse("few-blocks", fmt::format("the target has {} blocks; OpenVINO needs 10", blocks_));
  // One tap of H's own width: norms and fc are skipped without a word.
  if (rules_.width_gate && static_cast<int>(spec_.taps.size()) * spec_.target_hidden == spec_.hidden) {
    spec_.has_fc = false;
    spec_.feature_norm = FeatureNorm::kNone;
    misread(Severity::kError, "fc-skipped", "the feature is as wide as the embedding: norms before fc and fc itself are skipped", "");
  }
}

std::vector<ServedReading> read_as_served(const DrafterFiles& files, const EngineVersion& engine, const ServedTarget& target,
                                          const DraftSpec* trained) {
  std::vector<VllmRunner> runners = {VllmRunner::kByDefault};
  if (engine.engine == Engine::kVllm) {
    const RunnerChoice choice = vllm_runner(engine, find_target_family(target.architecture));
    runners = choice.certain ? std::vector{choice.runner}
                             : std::vector{choice.runner, choice.runner == VllmRunner::kV1 ? VllmRunner::kV2 : VllmRunner::kV1};
  }
  std::vector<ServedReading> out;
  for (const VllmRunner runner : runners) {
    ServedReading reading = Emulation(files, engine, runner, target).run();
    if (runners.size() > 1)
      reading.caveats.push_back("which model runner serves is not certain: " +
                                vllm_runner(engine, find_target_family(target.architecture)).why);
    if (engine.engine == Engine::kLlamaCpp) {
      const TargetFamily* family = find_target_family(target.architecture);
      if (family != nullptr && !family->llama_cpp_taps) {
        reading.refusals.push_back(
            {Severity::kError, "no-taps", fmt::format("llama.cpp cannot hand out the layers of a {} target", family->name), ""});
      }
    }
    if (reading.spec && trained != nullptr) {
      for (const FieldDifference& d : compare_fields(*trained, *reading.spec)) {
        // A field that only one kind of attention has goes with the kind; positions beyond the trained ones are another finding.
        if (d.a.empty() || d.b.empty() || d.field == "max_positions") continue;
        // The target's embedding in place of a stored one is the same forward if both are equal, as they mostly are; a note says it.
        if (d.field == "own_embedding" && trained->own_embedding) continue;
        // Taps that nobody knows cannot differ.
        if (d.field == "taps" && (trained->taps.empty() || reading.spec->taps.empty() || trained->taps.front() == kUnknownTap)) continue;
        reading.differences.push_back({d.field, d.a, d.b, reported_cost(d.field)});
      }
      if (!reading.spec->d2t.empty() && reading.spec->d2t.size() == trained->d2t.size() && reading.spec->d2t != trained->d2t) {
        reading.differences.push_back(
            {"d2t", "the map of the files", "another one: the stored values are taken as offsets", reported_cost("d2t")});
      }
    }
    out.push_back(std::move(reading));
  }
  return out;
}

}  // namespace aerie
