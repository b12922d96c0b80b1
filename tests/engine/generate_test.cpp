// The law of the engine: greedy output is the same bytes for every draft length, thread count and prompt chunk.
#include <algorithm>
#include <random>

#include "engine_fixture.h"

namespace aerie {
namespace {

TEST(SameBytes, ForEveryDraftLengthThreadCountAndPromptChunk) {
  Runtime& two = shared_runtime();
  const std::unique_ptr<Runtime> one = load_runtime(1), three = load_runtime(3);
  ASSERT_TRUE(one != nullptr && three != nullptr);
  Runtime* runtimes[] = {&two, one.get(), three.get()};
  std::mt19937 random(20);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int64_t accepted = 0;
  const std::vector<std::string> texts = some_prompts(204);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<int32_t> prompt = prompt_tokens(two, texts[i]);
    const int tokens = pick(1, 20), k = static_cast<int>(i) % (kMaxDraftTokens + 1), chunk = pick(1, 80);
    const GenerateResult plain = run(two, prompt, tokens, 0);
    Runtime& other = *runtimes[i % 3];
    const GenerateResult drafted = run(other, prompt, tokens, k, chunk);
    ASSERT_EQ(plain.tokens, drafted.tokens) << "k " << k << " threads " << other.pool().size() << " chunk " << chunk
                                            << " prompt: " << texts[i];
    ASSERT_EQ(plain.finish_reason, drafted.finish_reason);
    accepted += drafted.draft.accepted;
  }
  // Without accepted drafts the equality would say nothing about verification and rollback.
  EXPECT_GT(accepted, 200);
}

TEST(SameBytes, OnEveryInstructionSet) {
  // Instruction sets may differ from each other; within one, drafts change nothing. The scalar one is too slow for many tokens.
  for (const kernels::Isa isa : kernels::available_isas()) {
    const auto& table = **kernels::kernels_for(isa);
    const std::unique_ptr<Runtime> runtime = load_runtime(2, table.name);
    ASSERT_NE(runtime, nullptr);
    const int tokens = isa == kernels::Isa::kScalar ? 3 : 24;
    const std::vector<int32_t> prompt = isa == kernels::Isa::kScalar ? *runtime->tokenizer().encode("One two three four")
                                                                     : prompt_tokens(*runtime, "Count from one to ten.");
    const GenerateResult plain = run(*runtime, prompt, tokens, 0);
    for (const int k : {1, 4}) EXPECT_EQ(run(*runtime, prompt, tokens, k, 7).tokens, plain.tokens) << table.name << " k " << k;
  }
}

TEST(Generate, CountsWhatItEmits) {
  Runtime& runtime = shared_runtime();
  const std::vector<int32_t> prompt = prompt_tokens(runtime, "How do I boil an egg?");
  std::vector<int32_t> streamed;
  GenerateOptions options;
  options.max_new_tokens = 60;
  options.draft_tokens = 4;
  options.on_token = [&](int32_t token) {
    streamed.push_back(token);
    return true;
  };
  const auto result = generate(runtime, prompt, options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(streamed, result->tokens);
  const DraftStats& d = result->draft;
  EXPECT_EQ(d.cycles, static_cast<int64_t>(d.accepted_per_cycle.size()));
  // The first token comes from the prompt's own forward; every cycle adds its accepted drafts and one more.
  EXPECT_EQ(static_cast<int64_t>(result->tokens.size()), 1 + d.cycles + d.accepted);
  int64_t by_position = 0, by_cycle = 0;
  for (const int64_t count : d.accepted_per_position) by_position += count;
  for (const int count : d.accepted_per_cycle) by_cycle += count;
  EXPECT_EQ(by_position, d.accepted);
  EXPECT_EQ(by_cycle, d.accepted);
  EXPECT_LE(d.accepted, d.drafted);
}

TEST(Generate, StopsWhereTheCallerStops) {
  Runtime& runtime = shared_runtime();
  const std::vector<int32_t> prompt = prompt_tokens(runtime, "Tell me a long story.");
  const GenerateResult whole = run(runtime, prompt, 40, 0);
  for (const int k : {0, 5}) {
    GenerateOptions options;
    options.max_new_tokens = 40;
    options.draft_tokens = k;
    int left = 7;
    options.on_token = [&](int32_t) { return --left > 0; };
    const auto result = generate(runtime, prompt, options);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->finish_reason, "cancelled");
    EXPECT_EQ(result->tokens, std::vector<int32_t>(whole.tokens.begin(), whole.tokens.begin() + 7));
  }
}

TEST(Generate, RefusesWhatHasNoMeaning) {
  Runtime& runtime = shared_runtime();
  const std::vector<int32_t> prompt = prompt_tokens(runtime, "Hi");
  GenerateOptions options;
  EXPECT_FALSE(generate(runtime, {}, options).ok());
  options.draft_tokens = kMaxDraftTokens + 1;
  EXPECT_FALSE(generate(runtime, prompt, options).ok());
  options.draft_tokens = 0;
  options.max_new_tokens = 0;
  EXPECT_FALSE(generate(runtime, prompt, options).ok());
  options.max_new_tokens = 8;
  const std::vector<int32_t> too_long(static_cast<size_t>(runtime.target().config().context), 5);
  const auto refused = generate(runtime, too_long, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("8192"), std::string::npos) << refused.status().message();
  const std::vector<int32_t> outside = {runtime.target().config().vocab};
  EXPECT_FALSE(generate(runtime, outside, options).ok());
}

TEST(Generate, EndsAtTheContextsLastPosition) {
  constexpr int kContext = 300;
  const std::unique_ptr<Runtime> limited = load_runtime(2, "", kContext);
  ASSERT_NE(limited, nullptr);
  Runtime& runtime = *limited;
  std::vector<int32_t> prompt(kContext - 3);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = 1000 + static_cast<int32_t>(i * 7 % 40000);
  GenerateOptions options;
  options.max_new_tokens = 50;
  options.ignore_end = true;
  std::vector<int32_t> plain;
  for (const int k : {0, 6}) {
    options.draft_tokens = k;
    const auto result = generate(runtime, prompt, options);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->finish_reason, "length");
    EXPECT_EQ(result->tokens.size(), 3u);
    if (k == 0) plain = result->tokens;
    EXPECT_EQ(result->tokens, plain);
  }
}

}  // namespace
}  // namespace aerie
