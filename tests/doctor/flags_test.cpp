#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "doctor/command_line.h"
#include "doctor/engine_flags.h"

namespace aerie {
namespace {

EngineVersion engine(const std::string& text) {
  auto parsed = parse_engine(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? *parsed : EngineVersion{};
}

EngineSetup setup_of(const std::string& name, const std::string& line, const std::string& arch = "") {
  auto setup = read_engine_flags(engine(name), line, {.target_architecture = arch});
  EXPECT_TRUE(setup.ok()) << setup.status().message();
  return setup.ok() ? *setup : EngineSetup{};
}

bool has(const EngineSetup& setup, const std::string& code) {
  return std::any_of(setup.findings.begin(), setup.findings.end(), [&](const Finding& f) { return f.code == code; });
}

const Finding& finding(const EngineSetup& setup, const std::string& code) {
  static const Finding none;
  const auto it = std::find_if(setup.findings.begin(), setup.findings.end(), [&](const Finding& f) { return f.code == code; });
  EXPECT_NE(it, setup.findings.end()) << code;
  return it == setup.findings.end() ? none : *it;
}

std::string in_force(const EngineSetup& setup, const std::string& name) {
  for (const Setting& s : setup.settings) {
    if (s.name == name) return s.in_force;
  }
  return "(not there)";
}

TEST(CommandLine, SplitsAsAShellWould) {
  auto line = parse_command_line(
      "SGLANG_X=1 docker run -e A_B=\"two words\" img python -m sglang.launch_server --port=30000 \\\n  --speculative_num_steps 3 --flag "
      "--x 'a \"b\"' -md m.gguf --n -1");
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_EQ(*line->variable("SGLANG_X"), "1");
  EXPECT_EQ(*line->variable("A_B"), "two words");
  EXPECT_EQ(line->variable("C"), nullptr);
  EXPECT_EQ(line->find("--port")->value, "30000");
  EXPECT_EQ(line->find("--speculative-num-steps")->value, "3");
  EXPECT_EQ(line->find("--flag")->value, std::nullopt);
  EXPECT_EQ(line->find("--x")->value, "a \"b\"");
  EXPECT_EQ(line->find("-md")->value, "m.gguf");
  EXPECT_EQ(line->find("--n")->value, "-1");
  EXPECT_FALSE(parse_command_line("serve --x 'open").ok());
}

RC_GTEST_PROP(CommandLine, NoTextBreaksAnyReader, (const std::string& text)) {
  for (const char* name : {"sglang", "vllm", "llama.cpp", "tensorrt-llm", "openvino"}) {
    const auto setup = read_engine_flags(*parse_engine(name), text + " --speculative-algorithm EAGLE3 --speculative-config {} " + text);
    RC_ASSERT(setup.ok() || !setup.status().message().empty());
  }
}

TEST(EngineVersion, ParsesNamesReleasesAndRunners) {
  EXPECT_EQ(engine("sglang:0.5.12.post1").text(), "SGLang 0.5.12.post1");
  EXPECT_TRUE(engine("sglang:0.5.12.post1").caveats.empty());
  EXPECT_TRUE(engine("SGLang:v0.5.23").at_least(0, 5, 23));
  EXPECT_FALSE(engine("sglang:0.5.9").at_least(0, 5, 10));
  EXPECT_EQ(engine("vllm:0.28:v1").runner, VllmRunner::kV1);
  EXPECT_EQ(engine("vllm:0.33.0").text(), "vLLM 0.33");
  EXPECT_EQ(engine("sglang").text(), "SGLang 0.5.23");
  // What was not read is said.
  for (const char* unread : {"sglang:0.5.19", "sglang:0.5.24", "sglang:0.4.6", "vllm:0.27", "sglang", "llama.cpp"}) {
    EXPECT_FALSE(engine(unread).caveats.empty()) << unread;
  }
  for (const char* wrong : {"", "sgl", "sglang:x", "sglang:0.5.", "vllm:0.28:v3", "sglang:0.5.23:v1", "vllm:0.28:v1:x", "vllm:0.28b",
                            "sglang:99999999999999"}) {
    EXPECT_FALSE(parse_engine(wrong).ok()) << wrong;
  }
  for (const EngineVersion& known : known_engines()) EXPECT_LT(known.caveats.size(), 3u);
  EXPECT_GE(known_engines().size(), 15u);
}

constexpr const char* kSglang =
    "python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path D ";

TEST(SglangFlags, TopkOneDraftsStepsWhateverWasAsked) {
  for (const char* topk : {"--speculative-eagle-topk 1", ""}) {
    const EngineSetup s =
        setup_of("sglang:0.5.23", std::string(kSglang) + "--speculative-num-steps 1 --speculative-num-draft-tokens 16 " + topk);
    EXPECT_TRUE(s.starts);
    EXPECT_EQ(s.draft_tokens, 1);
    EXPECT_EQ(s.depth, 1);
    EXPECT_EQ(in_force(s, "--speculative-num-draft-tokens"), "2");
    EXPECT_EQ(finding(s, "drafts-fewer-than-asked").severity, Severity::kError);
    EXPECT_NE(finding(s, "drafts-fewer-than-asked")
                  .fix.find("--speculative-num-steps 15 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"),
              std::string::npos);
    EXPECT_EQ(has(s, "topk-unset"), *topk == 0);
  }
  const EngineSetup fits = setup_of(
      "sglang:0.5.23", std::string(kSglang) + "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4");
  EXPECT_EQ(fits.draft_tokens, 3);
  EXPECT_TRUE(fits.findings.empty());
  // SpecForge #310: 24 draft tokens were asked for.
  EXPECT_EQ(setup_of("sglang:0.5.23",
                     std::string(kSglang) + "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 24")
                .draft_tokens,
            5);
  // More than asked.
  const EngineSetup more = setup_of(
      "sglang:0.5.23", std::string(kSglang) + "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4");
  EXPECT_EQ(more.draft_tokens, 5);
  EXPECT_TRUE(has(more, "drafts-more-than-asked"));
}

RC_GTEST_PROP(SglangFlags, WhatItTellsToWriteGivesWhatIsInForce, ()) {
  const int steps = *rc::gen::inRange(1, 20), topk = *rc::gen::inRange(1, 9), tokens = *rc::gen::inRange(2, 65);
  const EngineSetup s = setup_of(
      "sglang:0.5.23",
      std::string(kSglang) + "--page-size 1 " +
          fmt::format("--speculative-num-steps {} --speculative-eagle-topk {} --speculative-num-draft-tokens {}", steps, topk, tokens));
  RC_ASSERT(s.draft_tokens == (topk == 1 ? steps : tokens - 1));
  const EngineSetup again = setup_of("sglang:0.5.23", std::string(kSglang) + fmt::format("{}", fmt::join(s.write_instead, " ")));
  RC_ASSERT(again.draft_tokens == s.draft_tokens);
  RC_ASSERT(again.depth == s.depth);
  RC_ASSERT(!has(again, "drafts-fewer-than-asked"));
}

TEST(SglangFlags, AutomaticShapesByTargetAndRelease) {
  struct Row {
    const char *version, *arch;
    std::optional<int> tokens;
  };
  for (const Row& row : {Row{"0.5.23", "LlamaForCausalLM", 7}, Row{"0.5.23", "Grok1ForCausalLM", 7},
                         Row{"0.5.23", "DeepseekV3ForCausalLM", 3}, Row{"0.5.23", "Qwen3ForCausalLM", 3},
                         Row{"0.5.6", "GptOssForCausalLM", 3}, Row{"0.5.6", "Qwen3ForCausalLM", {}}, Row{"0.5.23", "", {}}}) {
    const EngineSetup s = setup_of(std::string("sglang:") + row.version, kSglang, row.arch);
    EXPECT_EQ(s.draft_tokens, row.tokens) << row.version << " " << row.arch;
    EXPECT_TRUE(has(s, "automatic-shape"));
  }
}

TEST(SglangFlags, RefusesWhatSglangRefuses) {
  struct Row {
    const char *version, *flags, *code;
  };
  for (const Row& row : {
           Row{"0.5.23", "--speculative-eagle-topk 4", "steps-unset"}, Row{"0.5.23", "--speculative-num-draft-tokens 4", "steps-unset"},
           Row{"0.5.23",
               "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8 --page-size 64 --attention-backend "
               "fa4",
               "topk-backend"},
           Row{"0.5.23",
               "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8 --attention-backend trtllm_mha",
               "topk-backend"},
           Row{"0.5.11", "--speculative-draft-window-size 2048", "flag-too-new"},
           Row{"0.5.23", "--speculative-num-steps three", "flag-value"},
           Row{"0.5.23", "--speculative-num-steps 0 --speculative-eagle-topk 1", "flag-value"},
           Row{"0.5.23", "--speculative-nonsense 3", "unknown-flag"},
           Row{"0.5.23", "--speculative-draft 3", "unknown-flag"},  // stands for several
       }) {
    const EngineSetup s = setup_of(std::string("sglang:") + row.version, std::string(kSglang) + row.flags, "LlamaForCausalLM");
    EXPECT_FALSE(s.starts) << row.flags;
    EXPECT_EQ(finding(s, row.code).severity, Severity::kError) << row.flags;
    EXPECT_FALSE(finding(s, row.code).fix.empty());
  }
  // One backend that can.
  EXPECT_TRUE(setup_of("sglang:0.5.23", std::string(kSglang) + "--speculative-num-steps 3 --speculative-eagle-topk 4 "
                                                               "--speculative-num-draft-tokens 8 --page-size 64 --attention-backend fa3")
                  .starts);
  EXPECT_TRUE(setup_of("sglang:0.5.12", std::string(kSglang) + "--speculative-draft-window-size 2048", "LlamaForCausalLM").starts);
}

TEST(SglangFlags, WiringFaultsAreErrors) {
  EXPECT_EQ(finding(setup_of("sglang", "--speculative-algorithm EAGLE --speculative-draft-model-path x/Llama-EAGLE3"), "eagle-not-eagle3")
                .severity,
            Severity::kError);
  EXPECT_EQ(finding(setup_of("sglang", "--speculative-algo NEXTN --speculative-draft-model-path x"), "eagle-not-eagle3").severity,
            Severity::kWarning);
  EXPECT_TRUE(has(setup_of("sglang", "--speculative-algorithm EAGLE3"), "no-drafter"));
  EXPECT_TRUE(has(setup_of("sglang", "--model-path T"), "no-speculation"));
  EXPECT_TRUE(has(setup_of("sglang", std::string(kSglang) + "--speculative-accept-threshold-single 0.5"), "lossy-acceptance"));
  EXPECT_FALSE(has(setup_of("sglang", std::string(kSglang) + "--speculative-accept-threshold-single 1.0"), "lossy-acceptance"));
  EXPECT_TRUE(setup_of("sglang", std::string("SGLANG_SIMULATE_ACC_LEN=3 ") + kSglang).faked_acceptance);
  EXPECT_TRUE(has(setup_of("sglang:0.5.14", std::string("SGLANG_ENABLE_SPEC_V2=1 ") + kSglang), "gone-variable"));
  EXPECT_FALSE(has(setup_of("sglang:0.5.11", std::string("SGLANG_ENABLE_SPEC_V2=1 ") + kSglang), "gone-variable"));
}

TEST(VllmFlags, ReadsTheConfigAndItsDottedForm) {
  for (const char* line :
       {R"(vllm serve T --speculative-config '{"method": "eagle3", "model": "D", "num_speculative_tokens": 3}')",
        R"(vllm serve T --speculative_config='{"method":"eagle3","model":"D","num_speculative_tokens":3}')",
        "vllm serve T --speculative-config.method eagle3 --speculative-config.model D --speculative-config.num_speculative_tokens 3"}) {
    const EngineSetup s = setup_of("vllm:0.33", line, "LlamaForCausalLM");
    EXPECT_TRUE(s.starts) << line;
    EXPECT_EQ(s.draft_tokens, 3);
    EXPECT_EQ(s.algorithm, "eagle3");
    EXPECT_EQ(s.drafter, "D");
    EXPECT_EQ(in_force(s, "model runner"), "V2");
    EXPECT_TRUE(s.findings.empty());
  }
  EXPECT_FALSE(read_engine_flags(engine("vllm"), "vllm serve T --speculative-config '{\"a\": '").ok());
  EXPECT_FALSE(read_engine_flags(engine("vllm"), "vllm serve T --speculative-config 3").ok());
}

EngineSetup vllm(const std::string& version, const std::string& json, const std::string& arch = "LlamaForCausalLM") {
  return setup_of("vllm:" + version, "vllm serve T --speculative-config '" + json + "'", arch);
}

TEST(VllmFlags, KeysComeAndGoWithReleases) {
  const std::string base = R"({"method": "eagle3", "model": "D", "num_speculative_tokens": 2, )";
  struct Row {
    const char *key, *bad, *good, *code;
  };
  for (const Row& row : {Row{R"("speculative_token_tree": "[(0,)]"})", "0.22", "0.20", "key-gone"},
                         Row{R"("draft_sample_method": "greedy"})", "0.20", "0.22", "key-too-new"},
                         Row{R"("num_speculative_tokens_per_batch_size": {"8": 1}})", "0.24", "0.25", "key-too-new"},
                         Row{R"("disable_eagle_block_drop": true})", "0.29", "0.30", "key-too-new"}}) {
    EXPECT_TRUE(has(vllm(row.bad, base + row.key), row.code)) << row.key;
    EXPECT_FALSE(vllm(row.bad, base + row.key).starts);
    EXPECT_TRUE(vllm(row.good, base + row.key).starts) << row.key;
  }
  EXPECT_TRUE(has(vllm("0.33", base + R"("nonsense": 1})"), "unknown-key"));
  EXPECT_TRUE(vllm("0.33", base + R"("rejection_sample_method": "synthetic"})").faked_acceptance);
  EXPECT_TRUE(has(vllm("0.33", base + R"("rejection_sample_method": "fly"})"), "lossy-acceptance"));
}

TEST(VllmFlags, MethodAndTokensThatAreNotGiven) {
  EXPECT_EQ(vllm("0.33", R"({"model": "x/Foo-EAGLE3", "num_speculative_tokens": 2})").algorithm, "eagle3");
  const EngineSetup first = vllm("0.33", R"({"model": "x/eagle-foo", "num_speculative_tokens": 2})");
  EXPECT_EQ(first.algorithm, "eagle");
  EXPECT_TRUE(has(first, "eagle-not-eagle3"));
  EXPECT_TRUE(has(vllm("0.33", R"({"method": "eagle3", "model": "D"})"), "tokens-unset"));
  for (const char* k : {"0", "-1", "\"3\"", "1e30"}) {
    EXPECT_FALSE(vllm("0.33", fmt::format(R"({{"method": "eagle3", "model": "D", "num_speculative_tokens": {}}})", k)).starts) << k;
  }
  EXPECT_TRUE(has(setup_of("vllm:0.33", "vllm serve T"), "no-speculation"));
  EXPECT_FALSE(setup_of("vllm:0.33", "vllm serve T --speculative-model D --num-speculative-tokens 5").starts);
}

TEST(VllmFlags, RunnerByReleaseTargetAndVariable) {
  const std::string line = R"(vllm serve T --speculative-config '{"method": "eagle3", "model": "D", "num_speculative_tokens": 2}')";
  struct Row {
    const char *version, *arch, *runner;
  };
  for (const Row& row :
       {Row{"0.18", "LlamaForCausalLM", "V1"}, Row{"0.20", "Qwen3ForCausalLM", "V1"}, Row{"0.22", "Qwen3ForCausalLM", "V2"},
        Row{"0.22", "LlamaForCausalLM", "V1"}, Row{"0.24", "LlamaForCausalLM", "V2"}, Row{"0.24", "GptOssForCausalLM", "V1"},
        Row{"0.25", "Gemma3ForCausalLM", "V2"}, Row{"0.28", "KimiK25ForConditionalGeneration", "V1"},
        Row{"0.29", "KimiK25ForConditionalGeneration", "V2"}, Row{"0.33", "", "V2"}}) {
    EXPECT_EQ(in_force(setup_of(std::string("vllm:") + row.version, line, row.arch), "model runner"), row.runner)
        << row.version << " " << row.arch;
  }
  EXPECT_EQ(in_force(setup_of("vllm:0.33", "VLLM_USE_V2_MODEL_RUNNER=0 " + line), "model runner"), "V1");
  EXPECT_EQ(in_force(setup_of("vllm:0.18", "VLLM_USE_V2_MODEL_RUNNER=1 " + line), "model runner"), "V2");
  EXPECT_EQ(in_force(setup_of("vllm:0.33:v1", line), "model runner"), "V1");
}

TEST(LlamaCppFlags, DefaultsRemovedFlagsAndThresholds) {
  const EngineSetup plain = setup_of("llama.cpp", "llama-server -m T.gguf -md D.gguf --spec-type draft-eagle3");
  EXPECT_EQ(plain.draft_tokens, 3);
  EXPECT_FALSE(plain.draft_tokens_vary);
  EXPECT_TRUE(plain.findings.empty());
  EXPECT_EQ(setup_of("llama.cpp", "llama-server --spec-draft-model D.gguf --spec-type draft-eagle3 --spec-draft-n-max 8").draft_tokens, 8);
  const EngineSetup old = setup_of("llama.cpp", "llama-server -md D.gguf --spec-type draft-eagle3 --draft-max 16 --draft-min 1");
  EXPECT_FALSE(old.starts);
  EXPECT_EQ(finding(old, "flag-gone").fix, "--spec-draft-n-max");
  const EngineSetup gated = setup_of("llama.cpp", "llama-server -md D.gguf --spec-type draft-eagle3 --spec-draft-p-min 0.75");
  EXPECT_TRUE(gated.draft_tokens_vary);
  EXPECT_TRUE(has(gated, "p-min"));
  EXPECT_TRUE(has(setup_of("llama.cpp", "llama-server -md D.gguf"), "eagle-not-eagle3"));
  EXPECT_TRUE(has(setup_of("llama.cpp", "llama-server -m T.gguf"), "no-speculation"));
  EXPECT_TRUE(has(setup_of("llama.cpp", "llama-server -md D --spec-type draft-eagle3 --spec-foo 1"), "unknown-flag"));
  for (const char* fake : {"--spec-synth-len 3", "--spec-synth-rates 0.8,0.6"}) {
    EXPECT_TRUE(setup_of("llama.cpp", std::string("llama-server -md D.gguf --spec-type draft-eagle3 ") + fake).faked_acceptance) << fake;
  }
}

TEST(RunConfigs, TensorRtLlmAndOpenVino) {
  const EngineSetup chain = setup_of("tensorrt-llm",
                                     "speculative_config:\n  decoding_type: Eagle3\n  max_draft_len: 3  # drafts\n  speculative_model: "
                                     "\"D\"\n  eagle3_one_model: false\n");
  EXPECT_TRUE(chain.starts);
  EXPECT_EQ(chain.draft_tokens, 3);
  EXPECT_EQ(chain.drafter, "D");
  EXPECT_EQ(in_force(chain, "layers captured"), "1, N/2-1, N-4");
  EXPECT_TRUE(has(chain, "layers-unset"));
  EXPECT_EQ(in_force(chain, "eagle3_one_model"), "true");
  EXPECT_FALSE(setup_of("tensorrt-llm", "decoding_type: Eagle3").starts);
  EXPECT_TRUE(has(setup_of("tensorrt-llm", "max_batch_size: 8"), "no-speculation"));
  const EngineSetup tree =
      setup_of("tensorrt-llm", "decoding_type: Eagle3\nmax_draft_len: 4\ndynamic_tree_max_topK: 3\nuse_dynamic_tree: true");
  EXPECT_EQ(tree.draft_tokens, 12);
  EXPECT_EQ(tree.depth, 4);
  EXPECT_TRUE(has(setup_of("tensorrt-llm", "decoding_type: Eagle3\nmax_draft_len: 4\ndynamic_tree_max_topK: 3"), "tree-not-on"));
  const EngineSetup openvino = setup_of("openvino", "num_assistant_tokens=5 hidden_layers_list=2,15,27");
  EXPECT_EQ(openvino.draft_tokens, 5);
  EXPECT_EQ(in_force(openvino, "layers captured"), "2,15,27");
}

}  // namespace
}  // namespace aerie
