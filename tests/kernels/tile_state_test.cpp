// AMX's tile configuration belongs to the thread, and other libraries of the process change it between two of our products.
#include <array>

#include "kernel_fixture.h"

#if defined(__x86_64__)
namespace aerie::kernels {
namespace {

using TileConfig = std::array<uint8_t, 64>;

TileConfig stored() {
  TileConfig config{};
  asm volatile("sttilecfg %0" : "=m"(config));
  return config;
}

void load(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }

/// Palette 1 and one tile of `rows` rows of 64 bytes, which is none of our configurations.
TileConfig foreign(int rows) {
  TileConfig config{};
  config[0] = 1;
  config[16] = 64;
  config[48] = static_cast<uint8_t>(rows);
  return config;
}

TEST(Tiles, ProductsNeitherBelieveNorChangeTheThreadsConfiguration) {
  if (!kernels_for(Isa::kAmx).ok()) GTEST_SKIP() << kernels_for(Isa::kAmx).status().message();
  Random random(31);
  for (const TileFormat format : {TileFormat::kQ4, TileFormat::kQ8}) {
    const PackedMatrix w = random_matrix(random, format, 40, 96);
    for (const int n : {9, 16, 21}) {
      const std::vector<float> x = random.normals(static_cast<size_t>(n) * 96);
      const std::vector<float> expected = product(table(Isa::kScalar), w, x, n);
      for (const TileConfig& before : {TileConfig{}, foreign(3), foreign(16)}) {
        if (before[0] == 0) {
          asm volatile("tilerelease");
        } else {
          load(before);
        }
        const std::vector<float> actual = product(table(Isa::kAmx), w, x, n);
        EXPECT_EQ(stored(), before);
        EXPECT_TRUE(same_bytes(expected.data(), actual.data(), expected.size())) << "n " << n;
      }
    }
  }
  asm volatile("tilerelease");
}

}  // namespace
}  // namespace aerie::kernels
#endif
