// SGLang's speculative flags, as its argument checks treat them (0.5.3 to 0.5.23).
#include <algorithm>
#include <array>

#include "base/status.h"
#include "doctor/flag_rules.h"
#include "eagle3/engines/target_family.h"
#include "formats/printable.h"

namespace aerie::flag_rules {
namespace {

struct KnownFlag {
  std::string_view name;
  Release since = {};
};

constexpr KnownFlag kKnown[] = {
    {"--speculative-algorithm"},
    {"--speculative-draft-model-path"},
    {"--speculative-draft-model"},
    {"--speculative-draft-model-revision"},
    {"--speculative-draft-load-format"},
    {"--speculative-num-steps"},
    {"--speculative-eagle-topk"},
    {"--speculative-num-draft-tokens"},
    {"--speculative-accept-threshold-single"},
    {"--speculative-accept-threshold-acc"},
    {"--speculative-token-map"},
    {"--speculative-attention-mode"},
    {"--speculative-draft-attention-backend"},
    {"--speculative-draft-model-quantization"},
    {"--speculative-draft-kv-cache-dtype"},
    {"--speculative-moe-runner-backend"},
    {"--speculative-draft-window-size", {{0, 5, 12}}},
    {"--speculative-draft-sink-size"},
    {"--speculative-use-rejection-sampling"},
    {"--speculative-use-block-verification"},
    {"--speculative-adaptive", {{0, 5, 11}}},
    {"--speculative-adaptive-config", {{0, 5, 11}}},
};

/// SGLang's flags, looked up as argparse does: by full name, or by the beginning of one name alone ("--speculative-algo").
class Flags {
 public:
  Flags(const CommandLine& line, EngineSetup& setup) : line_(line), setup_(setup) {
    for (const Flag& flag : line.flags) {
      if (flag.name.starts_with("--speculative-")) take(flag);
    }
  }

  const Flag* find(std::string_view name) const {
    const auto it = std::find_if(taken_.rbegin(), taken_.rend(), [&](const auto& entry) { return entry.first == name; });
    return it == taken_.rend() ? nullptr : it->second;
  }

  std::string text(std::string_view name) const {
    const Flag* flag = find(name);
    return flag == nullptr ? std::string() : flag->value.value_or("");
  }

  /// A number of at least 1; anything else is refused.
  std::optional<int> count(std::string_view name) {
    const Flag* flag = find(name);
    if (flag == nullptr) return std::nullopt;
    const std::optional<int> value = to_integer(flag->value.value_or(""));
    if (value && *value >= 1) return value;
    refuse(setup_, "flag-value", fmt::format("{} is {}, expected a number of at least 1", name, printable(flag->value.value_or(""))),
           fmt::format("give {} a positive number", name));
    return std::nullopt;
  }

 private:
  void take(const Flag& flag) {
    std::vector<const KnownFlag*> candidates;
    for (const KnownFlag& known : kKnown) {
      if (flag.name == known.name) {
        candidates = {&known};
        break;
      }
      if (known.name.starts_with(flag.name)) candidates.push_back(&known);
    }
    if (candidates.size() != 1) {
      refuse(setup_, "unknown-flag",
             candidates.empty() ? fmt::format("{} is no speculative flag of {} that is known", printable(flag.name), setup_.engine.text())
                                : fmt::format("{} may stand for {} flags", printable(flag.name), candidates.size()),
             "look it up in `python -m sglang.launch_server --help` of the same release");
      return;
    }
    const KnownFlag& known = *candidates.front();
    if (setup_.engine.release < known.since) {
      refuse(setup_, "flag-too-new", fmt::format("{} was first seen in SGLang {}", known.name, known.since.text()),
             fmt::format("remove {} or use SGLang {}", known.name, known.since.text()));
    }
    taken_.emplace_back(known.name, &flag);
  }

  const CommandLine& line_;
  EngineSetup& setup_;
  std::vector<std::pair<std::string_view, const Flag*>> taken_;
};

constexpr std::array<std::string_view, 8> kAlgorithms = {"eagle", "eagle3", "nextn", "standalone", "ngram", "dflash", "dspark", "uno"};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

void read_algorithm(Flags& flags, EngineSetup& setup) {
  const std::string asked = flags.text("--speculative-algorithm");
  setup.algorithm = lower(asked);
  setup.drafter = flags.find("--speculative-draft-model-path") != nullptr ? flags.text("--speculative-draft-model-path")
                                                                          : flags.text("--speculative-draft-model");
  if (std::find(kAlgorithms.begin(), kAlgorithms.end(), setup.algorithm) == kAlgorithms.end()) {
    find(setup, Severity::kWarning, "unknown-algorithm",
         fmt::format("the algorithm {} is none of SGLang's own; it must have been registered", printable(asked)),
         "an EAGLE-3 drafter needs --speculative-algorithm EAGLE3");
    return;
  }
  std::string why;
  if (setup.algorithm == "nextn") setup.algorithm = "eagle", why = "NEXTN is another word for EAGLE";
  setup.settings.push_back({"algorithm", asked, setup.algorithm, why});
  const bool named_eagle3 =
      lower(setup.drafter).find("eagle3") != std::string::npos || lower(setup.drafter).find("eagle-3") != std::string::npos;
  if (setup.algorithm == "eagle") {
    find(setup, named_eagle3 ? Severity::kError : Severity::kWarning, "eagle-not-eagle3",
         fmt::format("the algorithm EAGLE captures no layers of the target: {} skips fc and has its head overwritten with the target's, so "
                     "that nothing is accepted "
                     "(acceptance length 1.00)",
                     named_eagle3 ? fmt::format("the drafter {}", printable(setup.drafter)) : "an EAGLE-3 drafter"),
         "--speculative-algorithm EAGLE3 for an EAGLE-3 drafter");
  }
  if ((setup.algorithm == "eagle3" || setup.algorithm == "standalone") && setup.drafter.empty()) {
    find(setup, Severity::kError, "no-drafter",
         "no --speculative-draft-model-path is given, so that the target itself is loaded as the drafter",
         "--speculative-draft-model-path DRAFTER");
  }
}

struct Shape {
  std::optional<int> steps, topk, tokens;
};

std::vector<std::string> shape_flags(int steps, int topk, int tokens) {
  return {fmt::format("--speculative-num-steps {}", steps), fmt::format("--speculative-eagle-topk {}", topk),
          fmt::format("--speculative-num-draft-tokens {}", tokens)};
}

std::string joined(const std::vector<std::string>& flags) { return fmt::format("{}", fmt::join(flags, " ")); }

/// Nothing given: SGLang chooses by the target's architecture. Returns nothing where that is not known.
Shape automatic(const FlagContext& context, EngineSetup& setup) {
  const TargetFamily* family = find_target_family(context.target_architecture);
  const bool long_shape = family != nullptr && family->sglang_auto_544;
  const char* code = "automatic-shape";
  // Before 0.5.9 targets that are named nowhere got (5, 4, 8) as well; in which release that changed was not read.
  const bool named_344 = family != nullptr && family->sglang_auto_named;
  if (context.target_architecture.empty() || (!long_shape && !named_344 && !setup.engine.at_least(0, 5, 9))) {
    find(setup, Severity::kWarning, code,
         "no --speculative-num-steps is given, so SGLang chooses (steps, topk, draft tokens) by the target: (5, 4, 8) for Llama and Grok, "
         "(3, 1, 4) for the others from 0.5.9 on",
         "give all three, or name the target's architecture here");
    return {};
  }
  const Shape shape = long_shape ? Shape{5, 4, 8} : Shape{3, 1, 4};
  find(setup, Severity::kNote, code,
       fmt::format("no --speculative-num-steps is given: SGLang takes ({}, {}, {}) for {}", *shape.steps, *shape.topk, *shape.tokens,
                   printable(context.target_architecture)),
       "give all three to be sure: " + joined(shape_flags(*shape.steps, *shape.topk, *shape.tokens)));
  return shape;
}

void chain(const Shape& asked, int steps, EngineSetup& setup) {
  setup.depth = steps, setup.draft_tokens = steps;
  const int tokens = steps + 1;
  setup.settings.push_back({"--speculative-num-draft-tokens", asked_text(asked.tokens), std::to_string(tokens),
                            "topk 1 sets it to steps + 1 (the bonus token is counted)"});
  setup.write_instead = shape_flags(steps, 1, tokens);
  if (!asked.tokens || *asked.tokens == tokens) return;
  const bool fewer = tokens < *asked.tokens;
  find(setup, fewer ? Severity::kError : Severity::kWarning, fewer ? "drafts-fewer-than-asked" : "drafts-more-than-asked",
       fmt::format("--speculative-num-draft-tokens {} is not in force: with topk 1 SGLang sets it to steps + 1 = {}, so that {} token{} "
                   "drafted per step and at "
                   "most {} tokens come out of one",
                   *asked.tokens, tokens, steps, steps == 1 ? " is" : "s are", tokens),
       fmt::format("to draft {} tokens in a chain: {}", *asked.tokens - 1,
                   joined(shape_flags(std::max(*asked.tokens - 1, 1), 1, std::max(*asked.tokens, 2)))));
}

void tree(const Shape& shape, const CommandLine& line, EngineSetup& setup) {
  setup.depth = *shape.steps;
  if (shape.tokens) {
    setup.draft_tokens = *shape.tokens - 1;
    setup.depth = std::min(*shape.steps, *shape.tokens - 1);
    setup.settings.push_back({"--speculative-num-draft-tokens", asked_text(shape.tokens), std::to_string(*shape.tokens),
                              "tree nodes, the root (the bonus token) counted"});
    setup.write_instead = shape_flags(*shape.steps, *shape.topk, *shape.tokens);
    find(setup, Severity::kNote, "tree-rate",
         fmt::format("with topk {} the acceptance rate is accepted drafts over tree nodes ({} of them), not over depth ({})", *shape.topk,
                     *setup.draft_tokens, *setup.depth),
         "compare the acceptance length instead");
  } else {
    find(setup, Severity::kWarning, "draft-tokens-unset",
         "--speculative-num-draft-tokens is not given though topk is above 1; what SGLang does then was not read",
         "give the number of tree nodes, the root counted");
  }
  const Flag* page = line.find("--page-size");
  const int page_size = page == nullptr ? 1 : to_integer(page->value.value_or("")).value_or(1);
  const Flag* backend_flag = line.find("--attention-backend");
  const std::string backend = backend_flag == nullptr ? "" : lower(backend_flag->value.value_or(""));
  if (backend == "trtllm_mha") {
    refuse(setup, "topk-backend", "the attention backend trtllm_mha drafts chains only (topk 1)",
           "--speculative-eagle-topk 1, or another backend");
  } else if (page_size > 1 && backend != "flashinfer" && backend != "fa3" && backend != "triton") {
    const std::string text =
        fmt::format("topk {} with a page size of {} works with the backends flashinfer, fa3 and triton only", *shape.topk, page_size);
    if (backend.empty()) {
      find(setup, Severity::kWarning, "topk-backend", text + "; none is named here",
           "--attention-backend flashinfer, fa3 or triton, or --page-size 1");
    } else {
      refuse(setup, "topk-backend", text + ", not with " + printable(backend), "one of those, or --page-size 1");
    }
  }
}

void read_shape(Flags& flags, const CommandLine& line, const FlagContext& context, EngineSetup& setup) {
  const Shape asked{flags.count("--speculative-num-steps"), flags.count("--speculative-eagle-topk"),
                    flags.count("--speculative-num-draft-tokens")};
  Shape shape = asked;
  if (!setup.starts) return;
  if (flags.find("--speculative-adaptive") != nullptr) {
    setup.draft_tokens_vary = true;
    find(setup, Severity::kNote, "adaptive",
         "the number of steps adapts while serving (topk 1, from the middle candidate on): rates over time are not comparable",
         "judge by the acceptance length at a fixed number of steps");
    setup.settings.push_back({"--speculative-eagle-topk", asked_text(asked.topk), "1", "adaptive steps draft chains"});
    return;
  }
  if (!shape.steps) {
    if (shape.topk || shape.tokens) {
      refuse(setup, "steps-unset",
             "--speculative-num-steps is not given though topk or the number of draft tokens is: SGLang stops at a bare assertion",
             "give all three, or none");
      return;
    }
    shape = automatic(context, setup);
    if (!shape.steps) return;
  } else if (!shape.topk) {
    find(setup, Severity::kError, "topk-unset",
         "--speculative-eagle-topk is not given though --speculative-num-steps is: it has no default, and the source compares it with a "
         "number later "
         "(a TypeError; read, not run). What follows supposes 1",
         "--speculative-eagle-topk 1");
    shape.topk = 1;
  }
  setup.settings.push_back(
      {"--speculative-num-steps", asked_text(asked.steps), std::to_string(*shape.steps), asked.steps ? "" : "chosen by the target"});
  setup.settings.push_back({"--speculative-eagle-topk", asked_text(asked.topk), std::to_string(*shape.topk),
                            asked.topk    ? ""
                            : asked.steps ? "supposed"
                                          : "chosen by the target"});
  if (*shape.topk == 1) {
    chain(asked, *shape.steps, setup);
  } else {
    tree(shape, line, setup);
  }
}

void read_rest(Flags& flags, const CommandLine& line, EngineSetup& setup) {
  if (const std::string* faked = line.variable("SGLANG_SIMULATE_ACC_LEN"); faked != nullptr)
    fake(setup, "SGLANG_SIMULATE_ACC_LEN=" + *faked);
  if (line.variable("SGLANG_ENABLE_SPEC_V2") != nullptr && setup.engine.at_least(0, 5, 14)) {
    find(setup, Severity::kNote, "gone-variable", "SGLANG_ENABLE_SPEC_V2 does nothing any more: v2 is the only way from 0.5.14 on",
         "remove it");
  }
  if (line.variable("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN") != nullptr) {
    find(setup, Severity::kWarning, "context-overwritten",
         "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN lets the target's context overwrite the drafter's: beyond what the drafter was trained "
         "for its acceptance may fall",
         "look at acceptance by position");
  }
  for (const char* name : {"--speculative-accept-threshold-single", "--speculative-accept-threshold-acc"}) {
    const Flag* flag = flags.find(name);
    if (flag == nullptr) continue;
    const std::optional<double> value = to_number(flag->value.value_or(""));
    if (!value) {
      refuse(setup, "flag-value", fmt::format("{} is {}, expected a number", name, printable(flag->value.value_or(""))),
             "give it a number up to 1");
    } else if (*value < 1.0) {
      setup.settings.push_back(
          {name, flag->value.value_or(""), flag->value.value_or(""), "below 1 drafts are accepted that the target would not have sampled"});
      find(setup, Severity::kWarning, "lossy-acceptance",
           fmt::format("{} {} accepts more than the target's distribution allows: the acceptance is not comparable", name, *value),
           fmt::format("{} 1.0", name));
    }
  }
  if (const Flag* window = flags.find("--speculative-draft-window-size"); window != nullptr) {
    setup.settings.push_back({"draft window", window->value.value_or(""), window->value.value_or(""),
                              "Llama-type drafters only; an MLA drafter ignores it. The drafter's config cannot set one"});
  }
  if (flags.find("--speculative-draft-sink-size") != nullptr) {
    find(setup, Severity::kNote, "flag-without-effect", "--speculative-draft-sink-size does nothing for a Llama-type EAGLE-3 drafter", "");
  }
  if (flags.find("--speculative-use-rejection-sampling") != nullptr && setup.draft_tokens && setup.depth &&
      *setup.draft_tokens != *setup.depth) {
    refuse(setup, "rejection-sampling",
           "--speculative-use-rejection-sampling needs topk 1 (and a draft vocabulary as large as the target's)",
           "--speculative-eagle-topk 1");
  }
  if (setup.speculates && line.find("--max-running-requests") == nullptr) {
    setup.settings.push_back({"--max-running-requests", "", "48", "the default with speculation"});
  }
}

}  // namespace

void read_sglang(const CommandLine& line, const FlagContext& context, EngineSetup& setup) {
  Flags flags(line, setup);
  setup.speculates = flags.find("--speculative-algorithm") != nullptr;
  if (!setup.speculates) {
    find(setup, Severity::kError, "no-speculation", "there is no --speculative-algorithm: SGLang does not speculate",
         "--speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFTER");
    return;
  }
  read_algorithm(flags, setup);
  if (setup.algorithm == "eagle" || setup.algorithm == "eagle3" || setup.algorithm == "standalone") read_shape(flags, line, context, setup);
  read_rest(flags, line, setup);
}

}  // namespace aerie::flag_rules
