// Equality with the PyPI package `tokenizers`; tools/goldens/make_tokenizer_goldens.py made the expectations.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/target_tokenizer.h"

namespace aerie {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

std::vector<Json> golden_lines() {
  std::ifstream file(AERIE_SOURCE_DIR "/tests/text/data/tokenizer_goldens.jsonl");
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string text_of(const Json& line) {
  if (line.contains("t")) return line["t"];
  if (line.contains("x")) return from_hex(line["x"]);
  std::string text;
  for (int i = 0; i < line["r"][1].get<int>(); ++i) text += line["r"][0].get<std::string>();
  return text;
}

Ids ids_of(const Json& line) {
  if (line.contains("i")) return line["i"].get<Ids>();
  Ids ids;
  for (const Json& run : line["q"]) ids.insert(ids.end(), run[1].get<size_t>(), run[0].get<int32_t>());
  return ids;
}

class TokenizerGoldens : public testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(TokenizerGoldens, EncodesAsTheReferenceLibrary) {
  const auto [pre, at_least] = GetParam();
  const Tokenizer& tokenizer = target_tokenizer_as(pre);
  int compared = 0;
  for (const Json& line : golden_lines()) {
    if (!line.contains("p") || line["p"] != pre) continue;
    ++compared;
    const std::string text = text_of(line);
    const Ids plain = ids_of(line);
    EXPECT_EQ(tokenizer.encode(text).value(), plain) << line.dump();
    if (!line.contains("r")) {
      EXPECT_EQ(tokenizer.encode_with_special(text).value(), line.contains("s") ? line["s"].get<Ids>() : plain) << line.dump();
    }
  }
  EXPECT_GE(compared, at_least);
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGoldens,
                         testing::Values(std::pair("smollm", 2000), std::pair("gpt2", 250), std::pair("llama-bpe", 250),
                                         std::pair("qwen2", 250)),
                         [](const auto& test) { return std::string(test.param.first) == "llama-bpe" ? "llama_bpe" : test.param.first; });

TEST(TokenizerGoldens, DecodesAsTheReferenceLibrary) {
  int compared = 0;
  for (const Json& line : golden_lines()) {
    if (!line.contains("d")) continue;
    ++compared;
    EXPECT_EQ(target_tokenizer().decode(line["d"].get<Ids>()).value(), line["t"].get<std::string>()) << line.dump();
  }
  EXPECT_GE(compared, 100);
}

}  // namespace
}  // namespace aerie
