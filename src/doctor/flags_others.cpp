// The flags of llama.cpp, and the run configurations of TensorRT-LLM and OpenVINO.
#include <algorithm>
#include <cctype>

#include "doctor/flag_rules.h"
#include "formats/printable.h"

namespace aerie::flag_rules {
namespace {

/// The first of these flags that is given; later ones of the same name win.
const Flag* any_of(const CommandLine& line, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (const Flag* flag = line.find(name)) return flag;
  }
  return nullptr;
}

constexpr std::string_view kLlamaCppKnown[] = {"--spec-type",
                                               "--spec-draft-model",
                                               "--spec-draft-n-max",
                                               "--spec-draft-n-min",
                                               "--spec-draft-p-min",
                                               "--spec-draft-p-split",
                                               "--spec-draft-backend-sampling",
                                               "--spec-draft-ngl",
                                               "--spec-draft-device",
                                               "--spec-draft-type-k",
                                               "--spec-draft-type-v",
                                               "--spec-synth-len",
                                               "--spec-synth-rates"};

/// A count of a flag, or the default; a value that is none is refused.
int count_or(const Flag* flag, int fallback, EngineSetup& setup) {
  if (flag == nullptr) return fallback;
  const std::optional<int> value = to_integer(flag->value.value_or(""));
  if (value && *value >= 0) return *value;
  refuse(setup, "flag-value", fmt::format("{} is {}, expected a number", flag->name, printable(flag->value.value_or(""))),
         "give it a number");
  return fallback;
}

std::string trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front())
    text = text.substr(1, text.size() - 2);
  return std::string(text);
}

/// "name: value" of YAML, "name=value" of properties and "--name value" of a command line, one a line or a word; nesting is not looked at.
std::vector<std::pair<std::string, std::string>> read_pairs(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    line = line.substr(0, line.find('#'));
    const size_t colon = line.find(':');
    const std::string name = trim(line.substr(0, colon));
    if (colon != std::string_view::npos && name.find_first_of(" =") == std::string::npos) {
      out.emplace_back(name, trim(line.substr(colon + 1)));
      continue;
    }
    std::string pending;
    while (!line.empty()) {
      const size_t begin = line.find_first_not_of(" \t\r,");
      if (begin == std::string_view::npos) break;
      line = line.substr(begin);
      const size_t stop = line.find_first_of(" \t\r");
      std::string_view word = line.substr(0, stop);
      line = stop == std::string_view::npos ? std::string_view() : line.substr(stop);
      const bool flag = word.starts_with("--");
      if (flag) word.remove_prefix(2);
      const size_t equals = word.find('=');
      if (equals != std::string_view::npos) {
        out.emplace_back(std::string(word.substr(0, equals)), trim(word.substr(equals + 1)));
        pending.clear();
      } else if (flag) {
        pending = std::string(word);
      } else if (!pending.empty()) {
        out.emplace_back(std::move(pending), trim(word));
        pending.clear();
      }
    }
  }
  for (auto& [name, value] : out) std::replace(name.begin(), name.end(), '-', '_');
  return out;
}

const std::string* lookup(const std::vector<std::pair<std::string, std::string>>& pairs, std::string_view name) {
  const auto it = std::find_if(pairs.rbegin(), pairs.rend(), [&](const auto& pair) { return pair.first == name; });
  return it == pairs.rend() ? nullptr : &it->second;
}

std::optional<int> count(const std::vector<std::pair<std::string, std::string>>& pairs, const char* name, EngineSetup& setup) {
  const std::string* text = lookup(pairs, name);
  if (text == nullptr) return std::nullopt;
  const std::optional<int> value = to_integer(*text);
  if (value && *value >= 1) return value;
  refuse(setup, "flag-value", fmt::format("{} is {}, expected a number of at least 1", name, printable(*text)),
         "give it a positive number");
  return std::nullopt;
}

void read_tensorrt(const std::vector<std::pair<std::string, std::string>>& pairs, EngineSetup& setup) {
  const std::string* type = lookup(pairs, "decoding_type");
  setup.speculates = type != nullptr;
  if (!setup.speculates) {
    find(setup, Severity::kError, "no-speculation", "there is no speculative_config with a decoding_type: TensorRT-LLM does not speculate",
         "speculative_config: {decoding_type: Eagle3, max_draft_len: 3, speculative_model: DRAFTER}");
    return;
  }
  setup.algorithm = *type;
  std::transform(setup.algorithm.begin(), setup.algorithm.end(), setup.algorithm.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* name : {"speculative_model", "speculative_model_dir"}) {
    if (const std::string* path = lookup(pairs, name)) setup.drafter = *path;
  }
  const std::optional<int> length = count(pairs, "max_draft_len", setup);
  if (!length) {
    if (setup.starts) refuse(setup, "tokens-unset", "max_draft_len is required and not given", "max_draft_len: 3");
    return;
  }
  const std::optional<int> topk = count(pairs, "dynamic_tree_max_topK", setup), total = count(pairs, "max_total_draft_tokens", setup);
  const std::string* tree = lookup(pairs, "use_dynamic_tree");
  const bool dynamic = tree != nullptr && (*tree == "true" || *tree == "True");
  setup.depth = *length, setup.draft_tokens = *length;
  setup.settings.push_back({"max_draft_len", std::to_string(*length), std::to_string(*length), ""});
  if (dynamic) {
    if (total || topk) setup.draft_tokens = total ? *total : *topk * *length;
    setup.settings.push_back({"max_total_draft_tokens", asked_text(total), total || topk ? std::to_string(*setup.draft_tokens) : "?",
                              total ? "" : "the default is dynamic_tree_max_topK x max_draft_len"});
    if (!total && !topk) setup.draft_tokens.reset();
  } else if (topk || total) {
    find(setup, Severity::kWarning, "tree-not-on", "a tree's size is given but use_dynamic_tree is not: the drafts are a chain",
         "use_dynamic_tree: true");
  }
  if (lookup(pairs, "eagle_choices") != nullptr)
    find(setup, Severity::kWarning, "deprecated", "eagle_choices is deprecated", "use_dynamic_tree: true");
  if (const std::string* one = lookup(pairs, "eagle3_one_model")) {
    setup.settings.push_back({"eagle3_one_model", *one, "true", "the one-model mode is the only one"});
    if (*one == "false" || *one == "False")
      find(setup, Severity::kNote, "flag-without-effect", "eagle3_one_model: false is ignored", "remove it");
  }
  const std::string* layers = lookup(pairs, "eagle3_layers_to_capture");
  setup.settings.push_back({"layers captured", layers == nullptr ? "" : *layers, layers == nullptr ? "1, N/2-1, N-4" : *layers,
                            "as outputs of those blocks, sorted; ids in the drafter's config are never read"});
  if (layers == nullptr) {
    find(setup, Severity::kNote, "layers-unset",
         "eagle3_layers_to_capture is not given: TensorRT-LLM takes the outputs of blocks 1, N/2-1 and N-4 whatever the drafter's config "
         "says",
         "give the drafter's own boundaries, each less 1");
  }
  if (lookup(pairs, "acceptance_rate_threshold") != nullptr) {
    setup.draft_tokens_vary = true;
    find(setup, Severity::kNote, "auto-disable", "acceptance_rate_threshold switches speculation off below accepted/drafted of that value",
         "");
  }
}

void read_openvino(const std::vector<std::pair<std::string, std::string>>& pairs, EngineSetup& setup) {
  const std::optional<int> tokens = count(pairs, "num_assistant_tokens", setup), branching = count(pairs, "branching_factor", setup),
                           depth = count(pairs, "tree_depth", setup);
  if (!setup.starts) return;
  setup.speculates = true;
  setup.algorithm = "eagle3";
  for (const auto& [name, value] : {std::pair{"num_assistant_tokens", tokens}, {"branching_factor", branching}, {"tree_depth", depth}}) {
    if (value) setup.settings.push_back({name, std::to_string(*value), std::to_string(*value), ""});
  }
  if (tokens) setup.draft_tokens = *tokens;
  if (tokens && (!branching || *branching == 1)) setup.depth = *tokens;
  if (depth) setup.depth = *depth;
  setup.draft_tokens_vary = true;
  find(setup, Severity::kNote, "adaptive", "OpenVINO's stateful backend adapts the number of drafts", "");
  const std::string* layers = lookup(pairs, "hidden_layers_list");
  setup.settings.push_back({"layers captured", layers == nullptr ? "" : *layers, layers == nullptr ? "2, N/2, N-3" : *layers,
                            "as outputs of those blocks (boundaries are one more); ids in the drafter's config are never read"});
}

}  // namespace

void read_llama_cpp(const CommandLine& line, EngineSetup& setup) {
  const Flag* drafter = any_of(line, {"--spec-draft-model", "-md", "--model-draft"});
  const Flag* type = line.find("--spec-type");
  setup.speculates = drafter != nullptr || type != nullptr;
  for (const Flag& flag : line.flags) {
    if (flag.name == "--draft-max" || flag.name == "--draft-min" || flag.name == "--draft") {
      refuse(setup, "flag-gone", fmt::format("{} was removed", flag.name),
             flag.name == "--draft-min" ? "--spec-draft-n-min" : "--spec-draft-n-max");
    } else if (flag.name.starts_with("--spec-") && !flag.name.starts_with("--spec-ngram") &&
               std::find(std::begin(kLlamaCppKnown), std::end(kLlamaCppKnown), flag.name) == std::end(kLlamaCppKnown)) {
      find(setup, Severity::kWarning, "unknown-flag", fmt::format("{} is no speculative flag that is known", printable(flag.name)),
           "look it up in llama-server --help");
    }
  }
  if (!setup.speculates) {
    find(setup, Severity::kError, "no-speculation", "there is neither --spec-type nor a draft model: llama.cpp does not speculate",
         "--spec-type draft-eagle3 --spec-draft-model DRAFTER.gguf");
    return;
  }
  setup.algorithm = type == nullptr ? "" : type->value.value_or("");
  if (drafter != nullptr) setup.drafter = drafter->value.value_or("");
  setup.settings.push_back({"--spec-type", setup.algorithm, setup.algorithm.empty() ? "not read" : setup.algorithm, ""});
  if (setup.algorithm != "draft-eagle3") {
    find(setup, Severity::kWarning, "eagle-not-eagle3",
         setup.algorithm.empty() ? "no --spec-type is given" : "the type is not draft-eagle3",
         "--spec-type draft-eagle3 for an EAGLE-3 drafter");
  }
  const Flag* max = any_of(line, {"--spec-draft-n-max"});
  const Flag* min = any_of(line, {"--spec-draft-n-min"});
  const int k = count_or(max, 3, setup), least = count_or(min, 0, setup);
  setup.draft_tokens = k, setup.depth = k;
  setup.settings.push_back({"--spec-draft-n-max", max == nullptr ? "" : max->value.value_or(""), std::to_string(k),
                            max == nullptr ? "the default (it was 16 as --draft-max)" : ""});
  const Flag* p_min = line.find("--spec-draft-p-min");
  const std::optional<double> threshold = p_min == nullptr ? std::optional<double>(0.0) : to_number(p_min->value.value_or(""));
  if (!threshold) {
    refuse(setup, "flag-value", fmt::format("--spec-draft-p-min is {}, expected a number", printable(p_min->value.value_or(""))),
           "give it a number from 0 to 1");
  } else if (*threshold > 0) {
    setup.draft_tokens_vary = true;
    setup.settings.push_back(
        {"--spec-draft-p-min", p_min->value.value_or(""), p_min->value.value_or(""), "a draft less probable ends the chain"});
    find(setup, Severity::kNote, "p-min",
         "with p-min above 0 only confident drafts are made: the acceptance rate is not comparable with that of another p-min",
         "compare tokens per verify, or set --spec-draft-p-min 0");
  }
  if (least > 0) {
    setup.draft_tokens_vary = true;
    find(setup, Severity::kNote, "n-min", fmt::format("chains shorter than {} are thrown away", least), "");
  }
  for (const char* name : {"--spec-synth-len", "--spec-synth-rates"}) {
    if (line.find(name) != nullptr) fake(setup, name);
  }
  if (setup.starts) {
    setup.write_instead = {"--spec-type draft-eagle3",
                           fmt::format("--spec-draft-model {}", setup.drafter.empty() ? "DRAFTER.gguf" : setup.drafter),
                           fmt::format("--spec-draft-n-max {}", k)};
  }
}

void read_run_config(std::string_view text, EngineSetup& setup) {
  const auto pairs = read_pairs(text);
  if (setup.engine.engine == Engine::kTensorRtLlm) {
    read_tensorrt(pairs, setup);
  } else {
    read_openvino(pairs, setup);
  }
}

}  // namespace aerie::flag_rules

namespace aerie {

Expected<EngineSetup> read_engine_flags(const EngineVersion& engine, std::string_view command_line, const FlagContext& context) {
  EngineSetup setup;
  setup.engine = engine;
  if (engine.engine == Engine::kTensorRtLlm || engine.engine == Engine::kOpenVino) {
    flag_rules::read_run_config(command_line, setup);
    return setup;
  }
  AERIE_ASSIGN(const CommandLine line, parse_command_line(command_line));
  switch (engine.engine) {
    case Engine::kSglang: flag_rules::read_sglang(line, context, setup); break;
    case Engine::kVllm: AERIE_TRY(flag_rules::read_vllm(line, context, setup)); break;
    default: flag_rules::read_llama_cpp(line, setup); break;
  }
  return setup;
}

}  // namespace aerie
