#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <limits>

#include "formats/gguf_builder.h"
#include "support/model_path.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

template <class T>
T value_of(const GgufFile& file, const std::string& key) {
  const auto at = file.metadata().find(key);
  if (at == file.metadata().end() || !std::holds_alternative<T>(at->second.value)) {
    ADD_FAILURE() << key << " is absent or of another type";
    return T();
  }
  return std::get<T>(at->second.value);
}

template <class T>
void expect_scalar_and_array(const GgufFile& file, const std::string& type, T expected) {
  EXPECT_EQ(value_of<T>(file, "scalar." + type), expected) << type;
  EXPECT_EQ(value_of<std::vector<T>>(file, "array." + type), std::vector<T>(3, expected)) << type;
}

std::vector<float> floats_of(const GgufFile& file, const std::string& name, const std::vector<uint64_t>& shape) {
  const auto tensor = file.find(name);
  if (!tensor.ok()) {
    ADD_FAILURE() << tensor.status().message();
    return {};
  }
  EXPECT_EQ((*tensor)->shape, shape);
  const auto values = to_float(**tensor);
  return values.ok() ? *values : std::vector<float>();
}

TEST(Gguf, ReadsEveryTypeThatTheReferenceWriterWrites) {
  const auto file = GgufFile::open(data_path("writer.gguf"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  expect_scalar_and_array<uint64_t>(*file, "u8", 255);
  expect_scalar_and_array<int64_t>(*file, "i8", -128);
  expect_scalar_and_array<uint64_t>(*file, "u16", 65535);
  expect_scalar_and_array<int64_t>(*file, "i16", -32768);
  expect_scalar_and_array<uint64_t>(*file, "u32", 4294967295);
  expect_scalar_and_array<int64_t>(*file, "i32", std::numeric_limits<int32_t>::min());
  expect_scalar_and_array<uint64_t>(*file, "u64", std::numeric_limits<uint64_t>::max());
  expect_scalar_and_array<int64_t>(*file, "i64", std::numeric_limits<int64_t>::min());
  expect_scalar_and_array<double>(*file, "f32", 1.5);
  expect_scalar_and_array<double>(*file, "f64", 0.1);
  expect_scalar_and_array<bool>(*file, "bool", true);
  expect_scalar_and_array<std::string>(*file, "string", "naïve ☃");
  EXPECT_EQ(value_of<std::vector<bool>>(*file, "array.mixed_bool"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(*file->get_u32("general.alignment"), 64u);

  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(floats_of(*file, "f32", {2, 3}), (std::vector<float>{0, .25f, .5f, .75f, 1, 1.25f}));
  const std::vector<float> halves = floats_of(*file, "f16", {2, 3, 4});
  ASSERT_EQ(halves.size(), 24u);
  for (size_t i = 0; i < halves.size(); ++i) EXPECT_EQ(halves[i], static_cast<float>(i) / 8);
  const auto integers = file->find("i32");
  ASSERT_TRUE(integers.ok());
  EXPECT_EQ((*integers)->type, DType::kI32);
  EXPECT_EQ((*integers)->data[0], 0xfe);  // -2
  const std::vector<float> q8 = floats_of(*file, "q8_0", {2, 32});
  ASSERT_EQ(q8.size(), 64u);
  for (size_t i = 0; i < q8.size(); ++i) EXPECT_NEAR(q8[i], static_cast<float>(i) - 31.75f, 0.13f);  // half a step of 31.75 / 127
}

TEST(Gguf, TurnsShapesRoundAndFindsTensors) {
  const TempFolder folder;
  for (const uint32_t version : {2u, 3u}) {
    GgufBuilder builder = small_gguf();
    builder.version = version;
    const auto file = GgufFile::open(folder.write("small.gguf", builder.build()));
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(floats_of(*file, "a", {2, 3}), (std::vector<float>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ((*file->find("b"))->shape, (std::vector<uint64_t>{1, 32}));
    EXPECT_EQ((*file->find("b"))->data.size(), 18u);
    const auto missing = file->find("c");
    ASSERT_FALSE(missing.ok());
    EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
    EXPECT_EQ(missing.status().message(), file->path() + ": there is no tensor 'c'");
  }
}

TEST(Gguf, StaysValidWhenMoved) {
  const TempFolder folder;
  auto opened = GgufFile::open(folder.write("small.gguf", small_gguf().build()));
  ASSERT_TRUE(opened.ok());
  const GgufFile file = std::move(*opened);
  EXPECT_EQ(floats_of(file, "a", {2, 3})[5], 5.0f);
}

TEST(Gguf, GettersCheckTypeAndRange) {
  const TempFolder folder;
  GgufBuilder builder = small_gguf();
  builder.add<uint64_t>("big", kGgufU64, 1ull << 32).add<int32_t>("negative", kGgufI32, -1).add<int32_t>("positive", kGgufI32, 9);
  builder.add<double>("huge", kGgufF64, 1e300).add<uint8_t>("yes", kGgufBool, 1);
  builder.add_array("wide", kGgufU64, 1, GgufBytes().number<uint64_t>(1ull << 31).bytes());
  const auto file = GgufFile::open(folder.write("small.gguf", builder.build()));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(*file->get_u32("count"), 7u);
  EXPECT_EQ(*file->get_u32("positive"), 9u);
  EXPECT_EQ(*file->get_f32("eps"), 1e-5f);
  EXPECT_TRUE(*file->get_bool("yes"));
  EXPECT_EQ(*file->get_string("general.architecture"), "test");
  EXPECT_EQ(*file->get_strings("words"), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(*file->get_i32s("ids"), (std::vector<int32_t>{-1, 5}));

  EXPECT_EQ(file->get_u32("absent").status().message(), file->path() + ": there is no metadata key 'absent'");
  EXPECT_EQ(file->get_u32("absent").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(file->get_u32("eps").status().message(), file->path() + ": key 'eps' should hold an integer but holds a floating-point number");
  for (const char* key : {"big", "negative", "eps", "words"}) EXPECT_EQ(file->get_u32(key).status().code(), StatusCode::kCorrupt) << key;
  for (const char* key : {"huge", "count"}) EXPECT_EQ(file->get_f32(key).status().code(), StatusCode::kCorrupt) << key;
  for (const char* key : {"wide", "words", "count"}) EXPECT_EQ(file->get_i32s(key).status().code(), StatusCode::kCorrupt) << key;
  EXPECT_EQ(file->get_bool("count").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(file->get_string("words").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(file->get_strings("ids").status().code(), StatusCode::kCorrupt);
}

TEST(Gguf, AFileWithoutTensorsIsValid) {
  const TempFolder folder;
  GgufBuilder builder;
  builder.add_string("tokenizer.ggml.model", "gpt2").add_array("empty", kGgufString, 0, "");
  const auto file = GgufFile::open(folder.write("vocab.gguf", builder.build()));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_TRUE(file->get_strings("empty")->empty());
}

TEST(Gguf, OpensTheTarget) {
  const auto file = GgufFile::open(target_model_path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 272u);
  EXPECT_EQ(*file->get_string("general.architecture"), "llama");
  EXPECT_EQ(*file->get_u32("llama.block_count"), 30u);
  EXPECT_EQ(file->get_strings("tokenizer.ggml.tokens")->size(), 49152u);
  EXPECT_EQ(file->get_strings("tokenizer.ggml.merges")->size(), 48900u);
  EXPECT_EQ(file->get_i32s("tokenizer.ggml.token_type")->size(), 49152u);
  const auto shape = [&](const std::string& name) { return (*file->find(name))->shape_string(); };
  EXPECT_EQ(shape("token_embd.weight"), "[49152, 576]");
  EXPECT_EQ(shape("blk.0.attn_k.weight"), "[192, 576]");
  EXPECT_EQ(shape("blk.29.ffn_down.weight"), "[576, 1536]");
  EXPECT_EQ(shape("output_norm.weight"), "[576]");
  EXPECT_EQ((*file->find("blk.7.ffn_up.weight"))->type, DType::kQ4_1);
}

}  // namespace
}  // namespace aerie
