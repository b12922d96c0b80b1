// What the fuzzers run, and what tests/fuzz runs again on the committed inputs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace aerie::fuzz {

struct Target {
  const char* name;
  void (*run)(std::span<const uint8_t> input);
  uint64_t allowance;              // bytes that it may allocate beyond four times the input
  std::vector<const char*> seeds;  // files and folders of the repository that are inputs too
};

const std::vector<Target>& targets();

/// Runs `target` and returns the most heap bytes that were in use at one time, above those at the start. Only what goes through
/// operator new is counted. One run at a time.
uint64_t peak_bytes(const Target& target, std::span<const uint8_t> input);

/// The most that peak_bytes() may return for an input.
uint64_t allowed_bytes(const Target& target, std::span<const uint8_t> input);

/// Keeps the compiler from leaving out the reading of `bytes`.
void touch(std::span<const uint8_t> bytes);

inline std::string text_of(std::span<const uint8_t> input) { return {reinterpret_cast<const char*>(input.data()), input.size()}; }

// The targets, one file each.
void gguf(std::span<const uint8_t> input);
void safetensors(std::span<const uint8_t> input);
void safetensors_index(std::span<const uint8_t> input);
void torch(std::span<const uint8_t> input);
void trace(std::span<const uint8_t> input);
void engine_trace(std::span<const uint8_t> input);
void arrow(std::span<const uint8_t> input);
void drafter(std::span<const uint8_t> input);
void chat_template(std::span<const uint8_t> input);
void tokenizer(std::span<const uint8_t> input);

}  // namespace aerie::fuzz
