// Which tensors an engine finds in a drafter's files, and what becomes of the others.
#include <algorithm>

#include "eagle3/engines/emulation.h"
#include "formats/printable.h"

namespace aerie {
namespace {

bool is_norm(const std::string& name) { return name.find("norm") != std::string::npos; }

bool starts(const std::string& text, std::string_view beginning) { return text.rfind(beginning, 0) == 0; }

/// At most `most` names, and how many there are besides.
std::string some_of(const std::set<std::string>& names, size_t most = 4) {
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    if (shown.size() == most) break;
    shown.push_back(printable(name));
  }
  std::string out = fmt::format("{}", fmt::join(shown, ", "));
  if (names.size() > most) out += fmt::format(" and {} more", names.size() - most);
  return out;
}

}  // namespace

std::string Emulation::engine_name(const std::string& stored_name) const {
  std::string name = stored_name;
  const bool prefixed = starts(name, "model.");
  if (prefixed) {
    if (!(mla() ? rules_.model_prefix_mla : rules_.model_prefix)) return "";
    name = name.substr(6);
  }
  if (name.find("d2t") != std::string::npos) return "d2t";
  if (name.find("t2d") != std::string::npos) return "t2d";
  if (starts(name, "midlayer.")) return rules_.midlayer_names ? "layers.0." + name.substr(9) : "";
  if (starts(name, "layers.") && !rules_.numbered_names) return "";
  if (rules_.aux_norm_names) {
    for (const auto& [word, i] : {std::pair{"aux_norm_low", 0}, {"aux_norm_mid", 1}, {"aux_norm_high", 2}}) {
      if (starts(name, word)) return fmt::format("fc_norm.{}.weight", i);
    }
  }
  return name;
}

std::set<std::string> Emulation::needed_names() const {
  std::set<std::string> out;
  const auto add = [&out](const std::string& name) { out.insert(name); };
  for (int j = 0; j < spec_.layers; ++j) {
    const std::string p = fmt::format("layers.{}.", j), attention = p + "self_attn.";
    if (spec_.attention == AttentionKind::kMla) {
      for (const char* part : {"kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"}) add(attention + part + ".weight");
      for (const char* part : {"q_a_proj", "q_a_layernorm", "q_b_proj"}) {
        if (spec_.q_rank > 0) add(attention + part + ".weight");
      }
      if (spec_.q_rank == 0) add(attention + "q_proj.weight");
    } else {
      for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
        add(attention + part + ".weight");
        if (spec_.qkv_bias) add(attention + part + ".bias");
      }
    }
    add(attention + "o_proj.weight");
    for (const char* part : {"q_norm", "k_norm"}) {
      if (spec_.qk_norm) add(attention + part + ".weight");
    }
    const bool first = j == 0 || spec_.layout == LayerLayout::kConcat;
    if (first || spec_.layout == LayerLayout::kInputNorm) add(p + "input_layernorm.weight");
    if (first || spec_.layout == LayerLayout::kHiddenNorm) add(p + "hidden_norm.weight");
    add(p + "post_attention_layernorm.weight");
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) add(p + "mlp." + part + ".weight");
  }
  if (spec_.has_fc) add("fc.weight");
  if (spec_.has_fc && spec_.fc_bias) add("fc.bias");
  if (spec_.feature_norm == FeatureNorm::kConcat || input_norm_too_) add("input_norm.weight");
  if (spec_.feature_norm == FeatureNorm::kPerTap) {
    for (int i = 0; i < aux_; ++i) add(fmt::format("fc_norm.{}.weight", i));
  }
  add("norm.weight");
  return out;
}

bool Emulation::tolerated(const std::string& name) const {
  if (name == "d2t" || name == "t2d" || name == "lm_head.weight" || name == "embed_tokens.weight") return true;
  if (name.find("rotary_emb") != std::string::npos) return true;
  // Built in every layer and, where the layout does not use it, loaded all the same.
  if (starts(name, "layers.") && (name.ends_with(".input_layernorm.weight") || name.ends_with(".hidden_norm.weight"))) return true;
  if (version_.engine != Engine::kVllm) return name.ends_with("o_proj.bias") && spec_.o_bias;
  return name == "mask_hidden" || name == "fc.weight" || name.ends_with(".bias");
}

void Emulation::account_tensors() {
  if (out_.refuses() && spec_.hidden == 0) return;
  std::set<std::string> dropped;
  for (const auto& [name, shape] : files_.tensors) {
    const std::string known = engine_name(name);
    if (known.empty()) {
      dropped.insert(name);
    } else {
      stored_.insert(known);
    }
  }
  const std::set<std::string> needed = needed_names();
  for (const std::string& name : stored_) {
    if (needed.count(name) == 0 && !tolerated(name)) dropped.insert(name);
  }
  check_unknown(dropped);
  check_missing(needed);
  check_fc();
  read_d2t();
  if (rules_.chunk_edge_bug) {
    misread(
        Severity::kWarning, "chunk-edge",
        fmt::format("{} pairs the last row of each prefill chunk but the final one with a sampled token: the drafter's KV is wrong there",
                    out_.engine),
        "SGLang 0.5.13 or later, or a chunk as long as the prompts");
  }
}

void Emulation::check_unknown(const std::set<std::string>& dropped_names) {
  std::set<std::string> dropped = dropped_names;
  if (version_.engine == Engine::kVllm && dropped.erase("input_norm.weight") != 0) {
    misread(Severity::kError, "tensors-dropped", "input_norm.weight is stored and its flag is off: vLLM passes over it",
            "state norm_before_fc");
  }
  if (dropped.empty()) return;
  if (rules_.unknown == UnknownTensors::kRefused) {
    refuse("unknown-tensors", fmt::format("{} has no place for {}", out_.engine, some_of(dropped)));
  } else {
    misread(Severity::kError, "tensors-dropped", fmt::format("{} drops {} without an error", out_.engine, some_of(dropped)));
  }
}

void Emulation::check_missing(const std::set<std::string>& needed) {
  std::set<std::string> norms, linears, empty_layers;
  for (int j = 0; j < spec_.layers; ++j) {
    const std::string p = fmt::format("layers.{}.", j);
    const auto at = stored_.lower_bound(p);
    if (at == stored_.end() || !starts(*at, p)) empty_layers.insert(p);
  }
  bool fc_missing = false;
  for (const std::string& name : needed) {
    if (stored(name)) continue;
    const size_t dot = name.find('.', 7);
    if (starts(name, "layers.") && dot != std::string::npos && empty_layers.count(name.substr(0, dot + 1)) != 0) continue;
    if (name == "fc.weight") {
      fc_missing = true;
    } else if (is_norm(name)) {
      norms.insert(name);
    } else if (!(name.ends_with("o_proj.bias"))) {
      linears.insert(name);
    }
  }
  const bool head_needed = rules_.head == OwnTensor::kAlways && !head_of_target_;
  if (head_needed && !stored("lm_head.weight")) linears.insert("lm_head.weight");
  spec_.own_head = head_needed || (rules_.head == OwnTensor::kIfStored && stored("lm_head.weight"));
  if (!spec_.own_head && !head_of_target_ && spec_.draft_vocab < spec_.vocab && version_.engine == Engine::kVllm) {
    refuse("head-shape", "there is no lm_head and the draft vocabulary is smaller than the target's: the target's head does not fit",
           "store lm_head");
  }
  const bool widths_differ = config_.contains("target_hidden_size") && spec_.target_hidden != spec_.hidden;
  spec_.own_embedding = rules_.embedding == OwnTensor::kIfWidthsDiffer
                            ? widths_differ
                            : rules_.embedding == OwnTensor::kIfStored && stored("embed_tokens.weight");
  if (spec_.own_embedding && !stored("embed_tokens.weight")) linears.insert("embed_tokens.weight");
  if (!spec_.own_embedding && stored("embed_tokens.weight")) {
    misread(Severity::kNote, "embedding-of-target",
            fmt::format("{} replaces the stored embedding by the target's; that is the same only if they are equal", engine_));
  }
  if (rules_.missing == MissingTensors::kRefused) {
    std::set<std::string> all = linears;
    all.insert(norms.begin(), norms.end());
    all.insert(empty_layers.begin(), empty_layers.end());
    if (fc_missing) all.insert("fc.weight");
    if (!all.empty()) refuse("missing-tensors", fmt::format("{} finds no {}", out_.engine, some_of(all)));
    return;
  }
  const char* left = version_.engine == Engine::kTensorRtLlm
                         ? "linear weights that are missing depend on the module, plain parameters stop it"
                         : "they are uninitialised memory";
  if (!empty_layers.empty()) {
    misread(Severity::kError, "layers-uninitialised",
            fmt::format("{} layer{} of {} found no tensors ({}): {}", empty_layers.size(), empty_layers.size() == 1 ? "" : "s",
                        spec_.layers, some_of(empty_layers, 2), left),
            spec_.layers > 1 ? "state the true num_hidden_layers" : "rename the tensors, or use a release that knows the names");
  }
  if (fc_missing) misread(Severity::kError, "fc-random", fmt::format("{} finds no fc.weight: it stays random", out_.engine));
  if (!norms.empty())
    misread(Severity::kWarning, "norms-one", fmt::format("{} finds no {}: norms that are missing stay 1.0", out_.engine, some_of(norms)));
  if (!linears.empty()) {
    misread(Severity::kError, "tensors-uninitialised", fmt::format("{} finds no {}: {}", out_.engine, some_of(linears), left),
            stored("lm_head.weight") ? "" : "store lm_head, or copy the target's");
  }
}

void Emulation::check_fc() {
  for (const auto& [name, shape] : files_.tensors) {
    if (engine_name(name) != "fc.weight" || shape.size() != 2 || !spec_.has_fc) continue;
    const uint64_t expected = static_cast<uint64_t>(aux_) * static_cast<uint64_t>(spec_.target_hidden);
    if (shape[1] != expected) {
      refuse("fc-width",
             fmt::format("fc.weight reads {} values; {} builds it for {} states of {}: {}", shape[1], engine_, aux_, spec_.target_hidden,
                         expected),
             rules_.aux == AuxCount::kNumberThenNested ? "state num_aux_hidden_states" : "");
    }
  }
}

void Emulation::read_d2t() {
  const bool has = stored("d2t");
  if (has && rules_.d2t_at_full_vocab_refused && spec_.draft_vocab == spec_.vocab) {
    refuse("d2t-at-full-vocabulary", fmt::format("d2t is stored though the vocabularies are equal: {} has no place for it", out_.engine),
           "remove d2t");
  }
  if (!has && spec_.draft_vocab < spec_.vocab) {
    if (version_.engine == Engine::kVllm) {
      misread(
          Severity::kError, "identity-d2t",
          fmt::format("there is no d2t: vLLM takes draft token i for target token i, the first {} of {}", spec_.draft_vocab, spec_.vocab),
          "store d2t");
    } else {
      misread(Severity::kWarning, "no-d2t",
              fmt::format("there is no d2t though the draft vocabulary is smaller; what {} does then was not read", engine_), "store d2t");
    }
  }
  for (size_t i = 0; i < files_.d2t.size() && has; ++i) {
    const int64_t target = files_.d2t[i] + static_cast<int64_t>(i);
    if (target < 0 || target >= spec_.vocab) {
      const std::string text = fmt::format("d2t sends draft token {} to {}, outside the vocabulary of {}", i, target, spec_.vocab);
      if (version_.engine == Engine::kLlamaCpp) {
        refuse("d2t-range", text + ": llama.cpp's converter checks it", "store offsets");
      } else {
        misread(Severity::kError, "d2t-range", text, "store offsets: target id - draft id");
      }
      spec_.d2t.clear();
      return;
    }
    spec_.d2t.push_back(static_cast<int32_t>(target));
  }
}

std::string reported_cost(const std::string& field) {
  struct Row {
    const char *field, *cost;
  };
  static constexpr Row kRows[] = {
      {"taps",
       "one layer off: about 0.1 of acceptance length for Kimi-K2.5 (sglang #25454), first drafts at 10 % rather than 45 % for MiniMax "
       "(vLLM #43671); all wrong: 1.00 against 2.39 (tokenspeed #526)"},
      {"has_fc", "acceptance length exactly 1.00 (sglang #21272)"},
      {"own_head", "a head left uninitialised: acceptance length 1.00 (sglang #27908)"},
      {"own_embedding", "1.07 against 3.09 where the target's embedding is rotated (vllm-ascend #7038)"},
      {"feedback", "mostly the deeper drafts: the fifth gains 13.7 % from what it was trained for (speculators #610)"},
      {"feature_norm", "gpt-oss without its norm: acceptance length 1.1, with it (and the right boundaries) 2.68 (sglang #32334)"},
      {"sliding_window",
       "acceptance length 2.30 at 2k tokens, 1.40 at 10k, 1.09 from 16k on without a window; flat 1.55 with it (speculators #684)"},
      {"feature_normed_twice", "no effect only if input_layernorm's weights are all equal"},
  };
  const auto it = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& row) { return field == row.field; });
  return it == std::end(kRows) ? "" : it->cost;
}

}  // namespace aerie
