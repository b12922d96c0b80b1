#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "doctor/acceptance_signs.h"
#include "doctor/engine_metrics.h"
#include "doctor/prometheus_text.h"

namespace aerie {
namespace {

MetricsReading read(const std::string& name, const std::string& text, std::optional<int> k = {}) {
  const auto engine = parse_engine(name);
  EXPECT_TRUE(engine.ok());
  auto reading = read_engine_metrics(*engine, text, k);
  EXPECT_TRUE(reading.ok()) << reading.status().message();
  return reading.ok() ? *reading : MetricsReading{};
}

bool has(const std::vector<Finding>& findings, const std::string& code) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return f.code == code; });
}

TEST(Acceptance, ConvertsBetweenDefinitions) {
  using enum RateDefinition;
  // SGLang with 4 draft tokens: the old rate of a length is not the new one.
  EXPECT_NEAR(length_from_rate(0.60, 3, kAcceptedOverDrafted), 2.80, 1e-9);
  EXPECT_NEAR(rate_from_length(2.80, 3, kAcceptedOverDrafted), 0.60, 1e-9);
  EXPECT_NEAR(rate_from_length(3.575, 3, kAcceptedOverDrafted), 0.858, 5e-4);
  EXPECT_NEAR(length_from_rate(0.858, 3, kAcceptedOverDrafted), 3.575, 2e-3);
  EXPECT_NEAR(rate_from_length(2.80, 3, kLengthOverTokens), 0.70, 1e-9);
  EXPECT_NEAR(rate_from_length(1.0, 3, kLengthOverTokens), 0.25, 1e-9);
  // vLLM's regression figures: three heads, 1 + the sum of unconditional acceptances.
  EXPECT_NEAR(length_from_unconditional({0.730, 0.521, 0.355}), 2.60, 0.01);
  EXPECT_NEAR(length_from_unconditional({0.654, 0.399, 0.202}), 2.26, 0.01);
  EXPECT_NEAR(length_from_unconditional({0.717, 0.512, 0.334}), 2.56, 0.01);
}

RC_GTEST_PROP(Acceptance, ConversionsUndoEachOther, ()) {
  const int k = *rc::gen::inRange(1, 17);
  const double length = 1.0 + *rc::gen::inRange(0, 1001) * 0.001 * k;
  for (const auto definition : {RateDefinition::kAcceptedOverDrafted, RateDefinition::kLengthOverTokens}) {
    RC_ASSERT(std::abs(length_from_rate(rate_from_length(length, k, definition), k, definition) - length) < 1e-9);
  }
  std::vector<double> a;
  for (int i = 0; i < k; ++i) a.push_back(*rc::gen::inRange(1, 1001) * 0.001);
  const std::vector<double> p = unconditional_from_conditional(a), back = conditional_from_unconditional(p);
  for (int i = 0; i < k; ++i) RC_ASSERT(std::abs(back[static_cast<size_t>(i)] - a[static_cast<size_t>(i)]) < 1e-9);
}

RC_GTEST_PROP(Acceptance, AHistogramSaysEverything, ()) {
  Acceptance a;
  const int k = *rc::gen::inRange(1, 9);
  uint64_t verifies = 0, accepted = 0;
  for (int i = 0; i <= k; ++i) {
    a.histogram.push_back(*rc::gen::inRange<uint64_t>(0, 50));
    verifies += a.histogram.back(), accepted += a.histogram.back() * static_cast<uint64_t>(i);
  }
  RC_PRE(verifies > 0u);
  a.complete();
  RC_ASSERT(a.verifies == verifies);
  RC_ASSERT(a.accepted == accepted);
  RC_ASSERT(std::abs(*a.length - length_from_unconditional(a.unconditional)) < 1e-9);
  // The bound for an unknown distribution is one.
  Acceptance bounded;
  bounded.verifies = verifies, bounded.accepted = accepted, bounded.k = k;
  bounded.complete();
  RC_ASSERT(*a.length_error() <= *bounded.length_error() + 1e-9);
}

constexpr const char* kSglangLine =
    "[2026-10-30 10:00:00] Decode batch, #running-req: 4, #token: 2048, token usage: 0.02, accept len: 2.80, accept rate: 0.60, cuda "
    "graph: True, gen throughput "
    "(token/s): 812.40, #queue-req: 0\n";

TEST(SglangMetrics, LogLinesByVersion) {
  const MetricsReading now = read("sglang:0.5.23", std::string(kSglangLine) + kSglangLine);
  EXPECT_NEAR(*now.acceptance.length, 2.80, 1e-9);
  EXPECT_EQ(now.acceptance.k, 3);
  EXPECT_NEAR(*now.acceptance.rate, 0.60, 1e-9);
  EXPECT_TRUE(now.findings.empty());
  EXPECT_EQ(now.windows.size(), 2u);
  EXPECT_EQ(now.windows[0].running, 4);
  // The old definition: 2.80 of 4 is 0.70.
  const std::string old = "Decode batch, #running-req: 1, accept len: 2.80, accept rate: 0.70, gen throughput (token/s): 80\n";
  const MetricsReading before = read("sglang:0.5.10", old);
  EXPECT_EQ(before.acceptance.k, 3);
  EXPECT_NEAR(*before.acceptance.rate, 0.60, 1e-9);
  EXPECT_TRUE(before.findings.empty());
  EXPECT_NE(before.definition, now.definition);
  // The line of one version under the name of another is noticed, and read as what it is.
  const MetricsReading mixed = read("sglang:0.5.10", kSglangLine);
  EXPECT_TRUE(has(mixed.findings, "definition-contradicts-version"));
  EXPECT_EQ(mixed.acceptance.k, 3);
  EXPECT_TRUE(has(read("sglang:0.5.23", old).findings, "definition-contradicts-version"));
  // 0.5.3 prints no rate.
  const MetricsReading bare = read("sglang:0.5.3", "Decode batch, #running-req: 2, accept len: 1.90, gen throughput (token/s): 50\n", 3);
  EXPECT_NEAR(*bare.acceptance.length, 1.90, 1e-9);
  EXPECT_NEAR(*bare.acceptance.rate, 0.30, 1e-9);
  // Optional fields stand after the rate.
  const MetricsReading capped =
      read("sglang:0.5.23",
           "Decode batch, #running-req: 1, accept len: 3.575, accept rate: 0.858, cap len: 3.0, block accept len: 3.1, cuda graph: True\n");
  EXPECT_EQ(capped.acceptance.k, 3);
  // Windows weigh by the sequences in them.
  const MetricsReading weighed = read("sglang:0.5.23",
                                      "Decode batch, #running-req: 3, accept len: 3.00, accept rate: 0.67\nDecode batch, #running-req: 1, "
                                      "accept len: 2.00, accept rate: 0.33\n");
  EXPECT_NEAR(*weighed.acceptance.length, 2.75, 1e-9);
  EXPECT_EQ(weighed.acceptance.k, 3);
}

TEST(SglangMetrics, FlagsAndLogMustAgree) {
  EXPECT_TRUE(has(read("sglang:0.5.23", kSglangLine, 15).findings, "k-contradicts-flags"));
  EXPECT_FALSE(has(read("sglang:0.5.23", kSglangLine, 3).findings, "k-contradicts-flags"));
}

TEST(SglangMetrics, GaugesAndRequests) {
  const MetricsReading page =
      read("sglang:0.5.23",
           "# HELP sglang:spec_accept_length x\n# TYPE sglang:spec_accept_length gauge\n"
           "sglang:spec_accept_length{engine_type=\"unified\",model_name=\"a \\\"b\\\", c\"} 2.8\nsglang:spec_accept_rate{m=\"x\"} 0.6\n"
           "sglang:spec_num_steps{m=\"x\"} 3.0\nsglang:spec_num_draft_tokens{m=\"x\"} 4.0\nsglang:spec_verify_calls_total{m=\"x\"} 1000.0 "
           "1700000000\n");
  EXPECT_EQ(page.acceptance.k, 3);
  EXPECT_NEAR(*page.acceptance.length, 2.8, 1e-9);
  EXPECT_EQ(page.acceptance.verifies, 1000u);
  EXPECT_EQ(page.source, "metrics page");

  // 41 tokens, one of them of the prefill, in 20 verifies: the engine prints 2.05, it is 2.00.
  const std::string common = R"("completion_tokens": 41, "spec_verify_ct": 20, "spec_accept_length": 2.05, )";
  for (const char* names :
       {R"("spec_accept_token_num": 20, "spec_draft_token_num": 60)", R"("spec_accepted_drafts": 20, "spec_proposed_drafts": 60)",
        R"("spec_num_correct_drafts": 20, "spec_num_proposed_drafts": 60, "spec_correct_drafts_histogram": [8, 6, 4, 2])",
        R"("spec_accept_histogram": [8, 6, 4, 2])"}) {
    const MetricsReading reading = read("sglang:0.5.23", "{\"text\": \"hi\", \"meta_info\": {" + common + names + "}}", 3);
    EXPECT_NEAR(*reading.acceptance.length, 2.0, 1e-9) << names;
    EXPECT_EQ(reading.acceptance.k, 3);
    EXPECT_NEAR(*reading.acceptance.rate, 1.0 / 3.0, 1e-9);
    if (std::string(names).find("histogram") != std::string::npos) {
      EXPECT_NEAR(reading.acceptance.unconditional[0], 0.6, 1e-9);
      EXPECT_NEAR(reading.acceptance.conditional[1], 0.5, 1e-9);
    }
  }
  EXPECT_NEAR(*read("sglang", R"({"internal_states": [{"avg_spec_accept_length": 3.1}]})").acceptance.length, 3.1, 1e-9);
}

constexpr const char* kVllmLine =
    "INFO 11-01 10:00:00 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 2.60, Accepted throughput: 96.10 tokens/s, Drafted "
    "throughput: 180.20 tokens/s, "
    "Accepted: 961 tokens, Drafted: 1802 tokens, Per-position acceptance rate: 0.730, 0.521, 0.355, Avg Draft acceptance rate: 53.3%\n";

TEST(VllmMetrics, LogLine) {
  const MetricsReading reading = read("vllm:0.33", kVllmLine);
  EXPECT_NEAR(*reading.acceptance.length, 2.60, 1e-9);
  EXPECT_EQ(reading.acceptance.k, 3);
  EXPECT_EQ(reading.acceptance.accepted, 961u);
  EXPECT_EQ(reading.acceptance.drafted, 1802u);
  EXPECT_NEAR(*reading.acceptance.rate, 0.533, 1e-3);
  ASSERT_EQ(reading.acceptance.unconditional.size(), 3u);
  EXPECT_NEAR(reading.acceptance.conditional[1], 0.521 / 0.730, 1e-9);
  EXPECT_TRUE(judge_acceptance(reading).empty());
}

TEST(VllmMetrics, CountersRequestsAndLayers) {
  for (const char* suffix : {"_total", ""}) {
    std::string page;
    for (const auto& [name, value] : {std::pair{"num_drafts", "600.0"}, {"num_draft_tokens", "1800.0"}, {"num_accepted_tokens", "960.0"}}) {
      page += fmt::format("vllm:spec_decode_{}{}{{engine=\"0\",model_name=\"m\"}} {}\n", name, suffix, value);
    }
    for (const auto& [position, value] : {std::pair{0, 438}, {1, 312}, {2, 210}}) {
      page += fmt::format("vllm:spec_decode_num_accepted_tokens_per_pos{}{{engine=\"0\",model_name=\"m\",position=\"{}\"}} {}\n", suffix,
                          position, value);
    }
    const MetricsReading reading = read("vllm:0.33", page);
    EXPECT_NEAR(*reading.acceptance.length, 2.6, 1e-9);
    EXPECT_EQ(reading.acceptance.k, 3);
    EXPECT_NEAR(reading.acceptance.unconditional[2], 0.35, 1e-9);
  }
  const MetricsReading request = read(
      "vllm:0.29", R"({"choices": [], "metrics": {"speculative_decoding": {"mean_acceptance_length": 2.0, "draft_acceptance_rate": 0.333,
      "acceptance_histogram": [8, 6, 4, 2], "num_spec_steps": 20, "num_accepted_draft_tokens": 20, "num_draft_tokens": 60, "num_spec_tokens": 3}}})");
  EXPECT_NEAR(*request.acceptance.length, 2.0, 1e-9);
  EXPECT_EQ(request.acceptance.k, 3);
  const MetricsReading by_default = read("vllm:0.33", std::string("Using Eagle3 auxiliary layers from model: (2, 16, 29)\n") + kVllmLine);
  EXPECT_EQ(by_default.captured_layers, (std::vector<int>{2, 16, 29}));
  EXPECT_TRUE(has(by_default.findings, "default-layers"));
  EXPECT_TRUE(has(read("vllm:0.33", std::string("Using Eagle3 auxiliary layers from config: (1, 15, 28)\n") + kVllmLine).findings,
                  "configured-layers"));
}

TEST(LlamaCppMetrics, LinesOfThreeForms) {
  const MetricsReading now = read("llama.cpp",
                                  "slot print_timing: draft acceptance = 0.64479 (  167 accepted /   259 generated), mean len =  2.92\nacc "
                                  "per pos = (0.805, 0.632, 0.483)\n");
  EXPECT_NEAR(*now.acceptance.length, 2.92, 1e-9);
  EXPECT_NEAR(*now.acceptance.rate, 0.64479, 1e-5);
  EXPECT_EQ(now.acceptance.verifies, 87u);
  EXPECT_NEAR(now.acceptance.conditional[1], 0.632 / 0.805, 1e-9);
  EXPECT_NEAR(length_from_unconditional(now.acceptance.unconditional), 2.92, 1e-9);
  const MetricsReading older = read("llama.cpp", "draft acceptance rate = 0.57576 (   57 accepted /    99 generated)\n");
  EXPECT_NEAR(*older.acceptance.rate, 0.57576, 1e-5);
  EXPECT_FALSE(older.acceptance.length.has_value());
  EXPECT_NEAR(*read("llama.cpp", "draft acceptance rate = 0.5 (   50 accepted /   100 generated), mean acceptance length = 2.00\n")
                   .acceptance.length,
              2.0, 1e-9);
  EXPECT_NEAR(*read("llama.cpp", R"({"content": "x", "timings": {"draft_n": 100, "draft_n_accepted": 64}})").acceptance.rate, 0.64, 1e-9);
  const MetricsReading page = read("llama.cpp",
                                   "llamacpp:spec_decode_num_draft_tokens_total 300\nllamacpp:spec_decode_num_accepted_tokens_total "
                                   "180\nllamacpp:spec_decode_num_drafts_total 100\n");
  EXPECT_NEAR(*page.acceptance.length, 2.8, 1e-9);
}

TEST(Metrics, WhatIsNotThereIsAnError) {
  for (const char* name : {"sglang", "vllm", "llama.cpp", "tensorrt-llm", "openvino"}) {
    EXPECT_FALSE(read_engine_metrics(*parse_engine(name), "nothing\n").ok());
    EXPECT_FALSE(read_engine_metrics(*parse_engine(name), "{\"meta_info\": ").ok());
  }
  // Another engine's line is not taken for one's own.
  EXPECT_FALSE(read_engine_metrics(*parse_engine("vllm"), kSglangLine).ok());
}

RC_GTEST_PROP(Metrics, NoTextBreaksTheReaders, ()) {
  const std::string noise = *rc::gen::arbitrary<std::string>();
  std::string text =
      *rc::gen::element(std::string(kSglangLine), std::string(kVllmLine), std::string("sglang:spec_accept_length{a=\"b\"} 2.5\n"),
                        std::string("draft acceptance = 0.6 ( 1 accepted / 2 generated), mean len = 2\n"),
                        std::string(R"({"meta_info": {"spec_verify_ct": 1e300}})"));
  text.insert(*rc::gen::inRange<size_t>(0, text.size() + 1), noise);
  if (*rc::gen::arbitrary<bool>()) text.resize(*rc::gen::inRange<size_t>(0, text.size() + 1));
  for (const char* name : {"sglang:0.5.23", "sglang:0.5.6", "vllm", "llama.cpp", "openvino"}) {
    const auto reading = read_engine_metrics(*parse_engine(name), text);
    if (reading.ok()) judge_acceptance(*reading);
  }
}

std::string sglang_log(double length, int k, int lines, int running = 1) {
  std::string out;
  for (int i = 0; i < lines; ++i) {
    // A little unrest, as real windows have.
    const double l = length == 1.0 ? 1.0 : std::min(length + 0.02 * ((i * 7) % 5 - 2), 1.0 + k);
    out +=
        fmt::format("Decode batch, #running-req: {}, accept len: {:.2f}, accept rate: {:.2f}, cuda graph: True\n", running, l, (l - 1) / k);
  }
  return out;
}

TEST(Signs, OfPublicReports) {
  EXPECT_TRUE(has(judge_acceptance(read("sglang", sglang_log(1.0, 3, 10))), "nothing-accepted"));
  // The old rate of nothing is exactly 1/n.
  EXPECT_TRUE(has(judge_acceptance(read("sglang:0.5.9",
                                        "Decode batch, accept len: 1.00, accept rate: 0.25\nDecode batch, accept len: 1.00, accept rate: "
                                        "0.25\nDecode batch, accept len: 1.00, accept rate: 0.25\n")),
                  "nothing-accepted"));
  EXPECT_TRUE(has(judge_acceptance(read("sglang", sglang_log(3.98, 3, 10))), "nearly-all-accepted"));
  EXPECT_TRUE(has(judge_acceptance(read("sglang", sglang_log(1.10, 3, 10))), "first-draft-poor"));
  EXPECT_TRUE(has(judge_acceptance(read("sglang",
                                        "Decode batch, accept len: 3.00, accept rate: 0.67\nDecode batch, accept len: 3.00, accept rate: "
                                        "0.67\nDecode batch, accept len: 3.00, accept rate: 0.67\n")),
                  "constant-length"));
  const auto vllm_with = [](const char* positions, double length) {
    return read("vllm", fmt::format("SpecDecoding metrics: Mean acceptance length: {}, Accepted: 500 tokens, Drafted: 1800 tokens, "
                                    "Per-position acceptance rate: {}, Avg\n",
                                    length, positions));
  };
  EXPECT_TRUE(has(judge_acceptance(vllm_with("0.100, 0.020, 0.000", 1.12)), "first-draft-poor"));
  EXPECT_TRUE(has(judge_acceptance(vllm_with("0.740, 0.200, 0.050", 1.99)), "cliff-after-first"));
  EXPECT_TRUE(has(judge_acceptance(read("sglang", sglang_log(2.8, 3, 12) + sglang_log(1.9, 3, 12))), "decays-with-time"));
  EXPECT_TRUE(has(judge_acceptance(read("sglang", sglang_log(2.8, 3, 6, 1) + sglang_log(2.0, 3, 6, 8))), "falls-with-batch"));
  EXPECT_TRUE(has(judge_acceptance(read("sglang", sglang_log(2.8, 3, 1))), "too-little"));
}

TEST(Signs, HealthyFiguresGiveNothing) {
  for (const double length : {1.9, 2.35, 2.8, 3.4, 3.8})
    EXPECT_TRUE(judge_acceptance(read("sglang", sglang_log(length, 3, 30))).empty()) << length;
  for (const auto& [length, positions] :
       {std::pair{2.60, "0.730, 0.521, 0.355"}, {2.26, "0.654, 0.399, 0.202"}, {2.56, "0.717, 0.512, 0.334"}}) {
    EXPECT_TRUE(judge_acceptance(read("vllm", fmt::format("SpecDecoding metrics: Mean acceptance length: {}, Accepted: 961 tokens, "
                                                          "Drafted: 1802 tokens, Per-position acceptance rate: {}, Avg\n",
                                                          length, positions)))
                    .empty())
        << positions;
  }
}

TEST(Signs, ConditionsAreCompared) {
  using Kind = LabelledReading::Kind;
  const auto labelled = [](Kind kind, int value, double length) {
    return LabelledReading{kind, value, read("sglang", sglang_log(length, 3, 12))};
  };
  EXPECT_TRUE(has(compare_conditions({labelled(Kind::kCold, 0, 2.8), labelled(Kind::kWarm, 0, 1.9)}), "worse-when-warm"));
  EXPECT_TRUE(compare_conditions({labelled(Kind::kCold, 0, 2.8), labelled(Kind::kWarm, 0, 2.78)}).empty());
  EXPECT_TRUE(has(compare_conditions({labelled(Kind::kBatch, 8, 1.8), labelled(Kind::kBatch, 1, 2.8)}), "falls-with-batch"));
  EXPECT_TRUE(
      has(compare_conditions({labelled(Kind::kContext, 16384, 1.09), labelled(Kind::kContext, 2048, 2.295)}), "decays-with-position"));
  EXPECT_TRUE(
      has(compare_conditions({{Kind::kCold, 0, read("sglang", sglang_log(2.8, 3, 1))}, labelled(Kind::kWarm, 0, 1.9)}), "too-little"));
  EXPECT_EQ(parse_condition("batch:8")->second, 8);
  EXPECT_EQ(parse_condition("context:4096")->first, Kind::kContext);
  for (const char* wrong : {"", "hot", "batch:", "batch:0", "batch:x", "context:-1"}) EXPECT_FALSE(parse_condition(wrong).ok()) << wrong;
}

TEST(Metrics, FakedAcceptanceIsNoticed) {
  EXPECT_TRUE(has(read("sglang", std::string("env SGLANG_SIMULATE_ACC_LEN=3\n") + kSglangLine).findings, "faked-acceptance"));
  EXPECT_TRUE(has(read("vllm", std::string("args: SpeculativeConfig(rejection_sample_method='synthetic')\n") + kVllmLine).findings,
                  "faked-acceptance"));
}

TEST(Prometheus, LinesAndWhatIsNone) {
  const auto sample = parse_metric_line("a:b_total{x=\"1\",y=\"q\\\"\\\\\"} 12.5 1700");
  ASSERT_TRUE(sample.has_value());
  EXPECT_EQ(sample->name, "a:b_total");
  EXPECT_EQ(sample->label("y"), "q\"\\");
  EXPECT_EQ(sample->label("z"), "");
  EXPECT_EQ(sample->value, 12.5);
  for (const char* none : {"", "# TYPE a gauge", "a", "a{x=\"1} 2", "a{x=1} 2", "a NaN", "a +Inf", "a 1x", "{} 1", "a{x=\"1\" 2"})
    EXPECT_FALSE(parse_metric_line(none)) << none;
}

}  // namespace
}  // namespace aerie
