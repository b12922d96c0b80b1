// Runs every committed input of fuzz/corpus, and the goldens that serve as seeds, through the fuzz targets.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "formats/temp_folder.h"
#include "fuzz/targets.h"

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

// The measure itself: a target that takes memory must be seen to take it.
TEST(FuzzMemory, IsCounted) {
  const fuzz::Target hog = {"hog", [](std::span<const uint8_t> input) { fuzz::touch(std::vector<uint8_t>(5 * input.size() + 1000)); }, 1000, {}};
  const std::vector<uint8_t> input(100'000);
  EXPECT_GE(fuzz::peak_bytes(hog, input), 501'000u);
  EXPECT_LT(fuzz::peak_bytes(hog, input), 520'000u);
  EXPECT_GT(fuzz::peak_bytes(hog, input), fuzz::allowed_bytes(hog, input));
}

}  // namespace
}  // namespace aerie
