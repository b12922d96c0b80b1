// Runs every committed input of fuzz/corpus, and the goldens that serve as seeds, through the fuzz targets.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "formats/torch_builder.h"
#include "fuzz/targets.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> inputs_of(const fuzz::Target& target) {
  std::vector<fs::path> places = {fs::path(AERIE_SOURCE_DIR) / "fuzz" / "corpus" / target.name};
  for (const char* seed : target.seeds) places.push_back(fs::path(AERIE_SOURCE_DIR) / seed);
  std::vector<fs::path> inputs;
  for (const fs::path& place : places) {
    if (fs::is_regular_file(place)) inputs.push_back(place);
    if (!fs::is_directory(place)) continue;
    for (const auto& entry : fs::directory_iterator(place)) inputs.push_back(entry.path());
  }
  std::sort(inputs.begin(), inputs.end());
  return inputs;
}

class FuzzReplay : public testing::TestWithParam<size_t> {};

TEST_P(FuzzReplay, NoInputCrashesOrTakesMoreMemoryThanItMay) {
  const fuzz::Target& target = fuzz::targets()[GetParam()];
  const std::vector<fs::path> inputs = inputs_of(target);
  ASSERT_GE(inputs.size(), 3u) << target.name << " has too few inputs in fuzz/corpus";
  (void)fuzz::peak_bytes(target, {});  // what is made once per process is not the inputs' affair
  for (const fs::path& path : inputs) {
    const std::string bytes = read_bytes(path.string());
    const std::span<const uint8_t> input(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    EXPECT_LE(fuzz::peak_bytes(target, input), fuzz::allowed_bytes(target, input)) << path;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplay, testing::Range<size_t>(0, fuzz::targets().size()),
                         [](const auto& each) { return std::string(fuzz::targets()[each.param].name); });

// Files of many tiny things take the most memory for their size. The readers' limits on counts keep that small, whatever the size.
TEST(FuzzMemory, OfManyTinyThingsIsBounded) {
  constexpr uint64_t kMost = uint64_t{256} << 20;
  std::string gguf = "GGUF" + little(3, 4) + little(65'536, 8) + little(0, 8);
  for (uint64_t i = 0; i < 65'536; ++i) {
    gguf += little(5, 8) + fmt::format("{:05}", i) + little(1, 4) + little(8, 8) + little(0, 4) + little(32 * i, 8);
  }
  gguf.resize((gguf.size() + 31) / 32 * 32 + 65'536 * 32);
  std::string tensors = "{", index = "{\"weight_map\":{", numbers = "[0";
  for (int i = 0; i < 200'000; ++i) {
    tensors += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i == 0 ? "" : ",", i, i, i + 1);
  }
  for (int i = 0; i < 999'000; ++i) {
    index += fmt::format("{}\"{}\":\"a\"", i == 0 ? "" : ",", i);
    numbers += ",0";
  }
  tensors += "}";
  const std::string safetensors = little(tensors.size(), 8) + tensors + std::string(200'000, '\1');
  std::string pickle = std::string("\x80\x02(", 3);
  for (int i = 0; i < 490'000; ++i) pickle += "])";
  const std::string torch = torch_archive(pickle + "t.").build();
  const std::pair<const char*, std::string> files[] = {{"gguf", gguf},
                                                       {"safetensors", safetensors},
                                                       {"safetensors_index", index + "}}"},
                                                       {"safetensors_index", numbers + "]"},
                                                       {"torch", torch}};
  for (const auto& [name, bytes] : files) {
    for (const fuzz::Target& target : fuzz::targets()) {
      if (std::string_view(target.name) != name) continue;
      const std::span<const uint8_t> input(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      const uint64_t peak = fuzz::peak_bytes(target, input);
      RecordProperty(name, std::to_string(peak));
      EXPECT_LE(peak, 4 * bytes.size() + kMost) << name << " of " << bytes.size() << " bytes";
    }
  }
}

// The measure itself: a target that takes memory must be seen to take it.
TEST(FuzzMemory, IsCounted) {
  const fuzz::Target hog = {
      "hog", [](std::span<const uint8_t> input) { fuzz::touch(std::vector<uint8_t>(5 * input.size() + 1000)); }, 1000, {}};
  const std::vector<uint8_t> input(100'000);
  EXPECT_GE(fuzz::peak_bytes(hog, input), 501'000u);
  EXPECT_LT(fuzz::peak_bytes(hog, input), 520'000u);
  EXPECT_GT(fuzz::peak_bytes(hog, input), fuzz::allowed_bytes(hog, input));
}

}  // namespace
}  // namespace aerie
