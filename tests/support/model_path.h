// Where the tests find the target model.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"

namespace aerie {

/// Path of the SmolLM2 target in the model cache. A missing file is a failure of the calling test, never a skip.
inline std::string target_model_path() {
  const auto env = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::filesystem::path root = env("AERIE_MODELS");
  if (root.empty()) {
    std::filesystem::path cache = env("XDG_CACHE_HOME");
    if (cache.empty()) cache = std::filesystem::path(env("HOME")) / ".cache";
    root = cache / "aerie";
  }
  const std::string path = (root / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").string();
  if (!std::filesystem::exists(path)) ADD_FAILURE() << path << " is missing: run scripts/fetch-model.sh";
  return path;
}

}  // namespace aerie
