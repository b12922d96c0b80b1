// A drafter's files before any dialect: which file holds the weights, and what is refused.
#include "eagle3/raw_checkpoint.h"

#include "checkpoint_parts.h"
#include "draft_fixture.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

Parts small_parts() {
  Parts parts;
  parts.config = {{"hidden_size", 4}};
  parts.set_zeros("fc.weight", {2, 3});
  parts.set_i64("d2t", {1, 2});
  return parts;
}

TEST(RawCheckpoint, HandsOutWhatAFolderHolds) {
  TempFolder dir;
  small_parts().write(dir / "d");
  std::ofstream(dir / "d/README.md") << "card";
  auto raw = RawCheckpoint::open(dir / "d");
  ASSERT_TRUE(raw.ok()) << raw.status().message();
  EXPECT_EQ(raw->config()["hidden_size"], 4);
  EXPECT_EQ(raw->gguf(), nullptr);
  ASSERT_TRUE(raw->has("fc.weight"));
  EXPECT_EQ(raw->find("fc.weight")->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(raw->find("fc"), nullptr);
  // A copy stays valid when the original is gone.
  const RawCheckpoint copy = *raw;
  raw = not_found("gone");
  EXPECT_EQ(copy.tensors().size(), 2u);
  EXPECT_EQ(copy.find("d2t")->data[0], 1);
}

TEST(RawCheckpoint, TakesTheOnlyFileOfWeightsAndNeverGuessesBetweenTwo) {
  TempFolder dir;
  small_parts().write(dir / "d");
  fs::rename(dir / "d/model.safetensors", dir / "d/eagle3.safetensors");
  auto raw = RawCheckpoint::open(dir / "d");
  ASSERT_TRUE(raw.ok()) << raw.status().message();
  EXPECT_TRUE(raw->has("fc.weight"));
  const auto refused = [&](const char* part) {
    const Status status = RawCheckpoint::open(dir / "d").status();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_EQ(status.message().rfind(dir / "d", 0), 0u) << status.message();
  };
  fs::copy(dir / "d/eagle3.safetensors", dir / "d/other.safetensors");
  refused("2 *.safetensors files are there ('eagle3.safetensors', ...)");
  fs::remove(dir / "d/eagle3.safetensors");
  fs::remove(dir / "d/other.safetensors");
  refused("neither model.safetensors nor");
  std::ofstream(dir / "d/pytorch_model.bin") << "pickle";  // reached, and no file of torch.save
  refused("pytorch_model.bin");
  fs::remove(dir / "d/pytorch_model.bin");
  std::ofstream(dir / "d/model.safetensors") << "x";
  std::ofstream(dir / "d/model.safetensors.index.json") << "x";
  refused("remove the one that is not the drafter");
}

}  // namespace
}  // namespace aerie
