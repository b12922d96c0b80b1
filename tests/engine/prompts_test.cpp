#include "engine/prompts.h"

#include <zlib.h>

#include <filesystem>

#include "gtest/gtest.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

Expected<std::vector<Prompt>> read(const std::string& content) {
  const TempFolder folder;
  return read_prompts(folder.write("prompts.jsonl", content));
}

TEST(Prompts, ReadsTheThreeShapesOfLine) {
  const auto prompts = read(
      "{\"id\": \"a\", \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"U\"}]}\n"
      "\n{\"id\": 7, \"turns\": [\"one\", \"two\"]}\n{\"prompt\": \"p\"}");
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  ASSERT_EQ(prompts->size(), 3u);
  EXPECT_EQ((*prompts)[0].messages[0].role, "system");
  EXPECT_EQ((*prompts)[1].id, "7");
  ASSERT_EQ((*prompts)[1].messages.size(), 2u);
  EXPECT_EQ((*prompts)[1].messages[1].content, "two");
  EXPECT_EQ((*prompts)[2].messages[0].content, "p");
}

TEST(Prompts, NamesTheLineThatIsWrong) {
  for (const char* bad : {"{", "[]", "{}", "{\"turns\": [1]}", "{\"turns\": []}", "{\"messages\": []}",
                          "{\"messages\": [{\"role\": \"user\"}]}", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}",
                          "{\"messages\": [{\"role\": \"system\", \"content\": \"x\"}]}"}) {
    const auto prompts = read(std::string("{\"prompt\": \"fine\"}\n") + bad + "\n");
    ASSERT_FALSE(prompts.ok()) << bad;
    EXPECT_NE(prompts.status().message().find("line 2"), std::string::npos) << prompts.status().message();
  }
  EXPECT_FALSE(read("\n \n").ok());
  EXPECT_EQ(read_prompts("/nonexistent/prompts").status().code(), StatusCode::kNotFound);
}

TEST(Prompts, ReadsGzipAndRefusesADamagedOne) {
  const TempFolder folder;
  const std::string path = folder / "prompts.jsonl.gz";
  gzFile file = gzopen(path.c_str(), "wb");
  for (int i = 0; i < 5000; ++i) gzprintf(file, "{\"prompt\": \"number %d\"}\n", i * 7919);
  gzclose(file);
  ASSERT_EQ(read_prompts(path)->size(), 5000u);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const auto damaged = read_prompts(path);
  ASSERT_FALSE(damaged.ok());
  EXPECT_NE(damaged.status().message().find("unpacked"), std::string::npos) << damaged.status().message();
}

TEST(Prompts, ShippedSetsAreReadable) {
  EXPECT_EQ(read_prompts(AERIE_SOURCE_DIR "/data/eval/mt_bench.jsonl")->size(), 80u);
  EXPECT_EQ(read_prompts(AERIE_SOURCE_DIR "/data/train_prompts.jsonl.gz")->size(), 42573u);
}

}  // namespace
}  // namespace aerie
