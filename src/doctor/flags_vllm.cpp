// vLLM's --speculative-config (0.18 to 0.33).
#include <algorithm>

#include "doctor/flag_rules.h"
#include "eagle3/engines/target_family.h"
#include "formats/json_text.h"
#include "formats/printable.h"

namespace aerie::flag_rules {
namespace {

using Json = nlohmann::json;

struct KnownKey {
  const char* name;
  Release since = {};
  Release gone = {{1000}};
};

constexpr KnownKey kKeys[] = {
    {"method"},
    {"model"},
    {"num_speculative_tokens"},
    {"draft_tensor_parallel_size"},
    {"max_model_len"},
    {"quantization"},
    {"revision"},
    {"parallel_drafting"},
    {"attention_backend"},
    {"kv_cache_dtype"},
    {"disable_padded_drafter_batch"},
    {"speculative_token_tree", {}, {{0, 22}}},
    {"draft_sample_method", {{0, 22}}},
    {"rejection_sample_method"},
    {"num_speculative_tokens_per_batch_size", {{0, 25}}},
    {"disable_eagle_block_drop", {{0, 30}}},
    {"draft_lm_head_quantization"},
};

bool is_key(std::string_view word) { return word.starts_with("--speculative-config"); }

/// The JSON of --speculative-config and its dotted forms (--speculative-config.method eagle3), laid over each other in order.
Expected<Json> read_config(const CommandLine& line) {
  Json config;
  for (const Flag& flag : line.flags) {
    if (!is_key(flag.name)) continue;
    const std::string text = flag.value.value_or("");
    const size_t dot = flag.name.find('.');
    if (dot == std::string::npos) {
      auto parsed = parse_json(text);
      if (!parsed.ok()) return parsed.status().with_context("--speculative-config is no JSON");
      if (!parsed->is_object())
        return invalid_argument("--speculative-config: expected a JSON object like {{\"method\": \"eagle3\", ...}}");
      config = *std::move(parsed);
    } else {
      if (config.is_null()) config = Json::object();
      std::string key = flag.name.substr(dot + 1);
      std::replace(key.begin(), key.end(), '-', '_');
      auto parsed = parse_json(text);
      config[key] = parsed.ok() ? *std::move(parsed) : Json(text);
    }
  }
  return config;
}

std::string word(const Json& config, const char* key) {
  const auto it = config.find(key);
  return it != config.end() && it->is_string() ? it->get<std::string>() : std::string();
}

void check_keys(const Json& config, EngineSetup& setup) {
  for (const auto& [key, value] : config.items()) {
    const auto known = std::find_if(std::begin(kKeys), std::end(kKeys), [&key](const KnownKey& k) { return key == k.name; });
    if (known == std::end(kKeys)) {
      find(setup, Severity::kWarning, "unknown-key",
           fmt::format("speculative_config.{} is not known for {}", printable(key), setup.engine.text()),
           "look it up in the SpeculativeConfig of the same release");
    } else if (setup.engine.release < known->since) {
      refuse(setup, "key-too-new", fmt::format("speculative_config.{} was first seen in vLLM {}", key, known->since.text()),
             fmt::format("remove {}", key));
    } else if (setup.engine.release >= known->gone) {
      refuse(setup, "key-gone", fmt::format("speculative_config.{} is gone since vLLM {}: drafts are a chain", key, known->gone.text()),
             fmt::format("remove {}", key));
    }
  }
}

void read_method(const Json& config, EngineSetup& setup) {
  setup.algorithm = word(config, "method");
  setup.drafter = word(config, "model");
  std::string why;
  const std::string asked = setup.algorithm;
  if (setup.algorithm.empty()) {
    std::string path = setup.drafter;
    std::transform(path.begin(), path.end(), path.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    setup.algorithm = path.find("eagle3") != std::string::npos ? "eagle3" : path.find("eagle-") != std::string::npos ? "eagle" : "";
    why = setup.algorithm.empty()
              ? "a speculators config names it; otherwise vLLM takes the drafter for a small model of its own"
              : fmt::format("no method is given and the path contains \"{}\"", setup.algorithm == "eagle3" ? "eagle3" : "eagle-");
  }
  setup.settings.push_back({"method", asked, setup.algorithm.empty() ? "from the drafter's config" : setup.algorithm, why});
  if (setup.algorithm == "eagle") {
    find(setup, Severity::kWarning, "eagle-not-eagle3",
         "the method is eagle (the first EAGLE): an EAGLE-3 drafter gets one layer of the target only",
         "\"method\": \"eagle3\" for an EAGLE-3 drafter");
  }
  if (setup.drafter.empty()) {
    find(setup, Severity::kNote, "no-drafter",
         "no drafter is named: vLLM serves one only if the served model is itself a speculators repository", "\"model\": \"DRAFTER\"");
  }
}

void read_tokens(const Json& config, EngineSetup& setup) {
  const auto tokens = config.find("num_speculative_tokens");
  if (tokens == config.end() || tokens->is_null()) {
    find(setup, Severity::kWarning, "tokens-unset",
         "num_speculative_tokens is not given: vLLM takes it from a speculators config (proposal_methods[0].speculative_tokens) or refuses",
         "\"num_speculative_tokens\": 3");
  } else if (!tokens->is_number_integer() || tokens->get<int64_t>() < 1 || tokens->get<int64_t>() > 1000) {
    refuse(setup, "flag-value", fmt::format("num_speculative_tokens is {}, expected a number of at least 1", printable(tokens->dump())),
           "give it a positive number");
  } else {
    const int k = tokens->get<int>();
    setup.draft_tokens = k, setup.depth = k;
    setup.settings.push_back(
        {"num_speculative_tokens", std::to_string(k), std::to_string(k),
         fmt::format("the bonus token is not counted: the same as --speculative-num-draft-tokens {} of SGLang", k + 1)});
  }
  if (config.contains("num_speculative_tokens_per_batch_size")) {
    setup.draft_tokens_vary = true;
    find(setup, Severity::kNote, "dynamic-k",
         "the number of drafts falls with the batch: acceptance per position (over all drafts) dips where it was not drafted", "");
  }
}

void read_sampling(const Json& config, EngineSetup& setup) {
  const std::string rejection = word(config, "rejection_sample_method");
  if (rejection == "synthetic") fake(setup, "\"rejection_sample_method\": \"synthetic\"");
  if (rejection == "fly") {
    find(setup, Severity::kWarning, "lossy-acceptance",
         "the rejection method fly is lossy: it accepts more than the target's distribution allows",
         "\"rejection_sample_method\": \"standard\"");
  }
  const auto parallel = config.find("draft_tensor_parallel_size");
  if (parallel != config.end() && parallel->is_number_integer() && parallel->get<int64_t>() != 1) {
    find(setup, Severity::kNote, "draft-parallel", "draft_tensor_parallel_size must be 1 or the target's own", "");
  }
}

}  // namespace

Status read_vllm(const CommandLine& line, const FlagContext& context, EngineSetup& setup) {
  AERIE_ASSIGN(const Json config, read_config(line));
  for (const Flag& flag : line.flags) {
    const bool old = flag.name == "--num-speculative-tokens" || (flag.name.starts_with("--speculative-") && !is_key(flag.name));
    if (old)
      refuse(setup, "unknown-flag", fmt::format("{} is no flag of {}", printable(flag.name), setup.engine.text()),
             "say it in --speculative-config");
  }
  setup.speculates = config.is_object();
  if (!setup.speculates) {
    find(setup, Severity::kWarning, "no-speculation",
         "there is no --speculative-config: vLLM speculates only if the served model is a speculators repository",
         R"(--speculative-config '{"method": "eagle3", "model": "DRAFTER", "num_speculative_tokens": 3}')");
    return {};
  }
  if (const std::string* variable = line.variable("VLLM_USE_V2_MODEL_RUNNER");
      variable != nullptr && setup.engine.runner == VllmRunner::kByDefault) {
    setup.engine.runner = *variable == "0" ? VllmRunner::kV1 : VllmRunner::kV2;
  }
  check_keys(config, setup);
  read_method(config, setup);
  read_tokens(config, setup);
  read_sampling(config, setup);
  const RunnerChoice choice = vllm_runner(setup.engine, find_target_family(context.target_architecture));
  setup.settings.push_back(
      {"model runner", "", choice.runner == VllmRunner::kV1 ? "V1" : "V2", choice.why + (choice.certain ? "" : " (not certain)")});
  if (setup.draft_tokens && setup.starts) {
    setup.write_instead = {fmt::format(R"(--speculative-config '{{"method": "{}", "model": "{}", "num_speculative_tokens": {}}}')",
                                       setup.algorithm.empty() ? "eagle3" : setup.algorithm,
                                       setup.drafter.empty() ? "DRAFTER" : setup.drafter, *setup.draft_tokens)};
  }
  return {};
}

}  // namespace aerie::flag_rules
