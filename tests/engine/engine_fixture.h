// The real target and the shipped drafter, loaded once for the tests of this folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "engine/prompts.h"
#include "engine/runtime.h"
#include "gtest/gtest.h"
#include "support/model_path.h"

namespace aerie {

inline std::string shipped_drafter() { return AERIE_SOURCE_DIR "/models/smollm2-135m-eagle3"; }
inline std::string eval_prompts(const std::string& name) { return AERIE_SOURCE_DIR "/data/eval/" + name + ".jsonl"; }

inline std::unique_ptr<Runtime> load_runtime(int threads, const std::string& isa = "", int context = 0) {
  RuntimeOptions options;
  options.target = target_model_path();
  options.drafter = shipped_drafter();
  options.threads = threads;
  options.isa = isa;
  options.context = context;
  auto runtime = Runtime::load(options);
  if (!runtime.ok()) {
    ADD_FAILURE() << runtime.status().message();
    return nullptr;
  }
  return std::move(runtime).value();
}

/// Two threads, the best kernels of this machine.
inline Runtime& shared_runtime() {
  static const std::unique_ptr<Runtime> runtime = load_runtime(2);
  if (runtime == nullptr) throw std::runtime_error("the models could not be loaded");
  return *runtime;
}

inline std::vector<int32_t> prompt_tokens(const Runtime& runtime, const std::string& text) {
  auto rendered = runtime.chat_template()->render({{"user", text}}, true);
  return *runtime.tokenizer().encode(*rendered);
}

inline GenerateResult run(Runtime& runtime, const std::vector<int32_t>& prompt, int max_new, int k, int chunk = 512) {
  GenerateOptions options;
  options.max_new_tokens = max_new;
  options.draft_tokens = k;
  options.prompt_chunk = chunk;
  auto result = generate(runtime, prompt, options);
  if (!result.ok()) {
    ADD_FAILURE() << result.status().message();
    return {};
  }
  return std::move(result).value();
}

/// First user messages of the evaluation sets, `count` of them, taken in turn from each set.
inline std::vector<std::string> some_prompts(size_t count) {
  std::vector<std::vector<Prompt>> sets;
  for (const char* name : {"mt_bench", "humaneval", "gsm8k"}) sets.push_back(*read_prompts(eval_prompts(name)));
  std::vector<std::string> texts;
  for (size_t i = 0; texts.size() < count; ++i) {
    for (const auto& set : sets) {
      if (texts.size() < count) texts.push_back(set[i % set.size()].messages.front().content);
    }
  }
  return texts;
}

}  // namespace aerie
