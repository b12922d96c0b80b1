// What write_gguf writes, GgufFile reads as it was given, and the `gguf` package writes byte by byte.
#include "formats/gguf_writer.h"

#include <cstring>
#include <filesystem>

#include "base/file_io.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

std::vector<uint8_t> some_bytes(size_t count) {
  std::vector<uint8_t> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(i * 37 + count);
  return out;
}

RC_GTEST_PROP(GgufWriter, WhatIsWrittenReadsBack, ()) {
  const auto u32 = *rc::gen::arbitrary<uint32_t>();
  const auto i32 = *rc::gen::arbitrary<int32_t>();
  const auto u64 = *rc::gen::arbitrary<uint64_t>();
  const auto real = static_cast<float>(*rc::gen::inRange(-1000, 1000)) / 7.0f;
  const auto flag = *rc::gen::arbitrary<bool>();
  const auto text = *rc::gen::arbitrary<std::string>();
  const auto ints = *rc::gen::arbitrary<std::vector<int32_t>>();
  const auto texts = *rc::gen::arbitrary<std::vector<std::string>>();
  const GgufMetadata meta = {{"general.architecture", "eagle3"},
                             {"a", u32},
                             {"b", i32},
                             {"c", u64},
                             {"d", real},
                             {"e", flag},
                             {"f", text},
                             {"g", ints},
                             {"h", texts}};
  const DType types[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kQ8_0, DType::kQ4_K};
  std::vector<TensorView> tensors;
  std::vector<std::vector<uint8_t>> data;
  const int count = *rc::gen::inRange(0, 6);
  data.reserve(6);
  for (int i = 0; i < count; ++i) {
    const DType type = *rc::gen::elementOf(std::vector<DType>(std::begin(types), std::end(types)));
    const auto blocks = static_cast<uint64_t>(*rc::gen::inRange(1, 4)), rows = static_cast<uint64_t>(*rc::gen::inRange(1, 5));
    data.push_back(some_bytes(rows * blocks * static_cast<uint64_t>(block_bytes(type))));
    tensors.push_back({fmt::format("t{}.weight", i), type, {rows, blocks * static_cast<uint64_t>(block_values(type))}, data.back()});
  }
  TempFolder folder;
  const std::string path = folder / "x.gguf";
  RC_ASSERT(write_gguf(path, meta, tensors).ok());
  auto file = GgufFile::open(path);
  RC_ASSERT(file.ok());
  RC_ASSERT(file->get_string("general.architecture").value() == "eagle3");
  RC_ASSERT(file->get_u32("a").value() == u32);
  RC_ASSERT(std::get<int64_t>(file->metadata().at("b").value) == i32);
  RC_ASSERT(std::get<uint64_t>(file->metadata().at("c").value) == u64);
  RC_ASSERT(file->get_f32("d").value() == real);
  RC_ASSERT(file->get_bool("e").value() == flag);
  RC_ASSERT(file->get_string("f").value() == text);
  RC_ASSERT(file->get_i32s("g").value() == ints);
  RC_ASSERT(file->get_strings("h").value() == texts);
  RC_ASSERT(file->tensors().size() == tensors.size());
  for (const TensorView& written : tensors) {
    const TensorView& read = **file->find(written.name);
    RC_ASSERT(read.type == written.type);
    RC_ASSERT(read.shape == written.shape);
    RC_ASSERT(std::memcmp(read.data.data(), written.data.data(), written.data.size()) == 0);
    RC_ASSERT(reinterpret_cast<uintptr_t>(read.data.data()) % 32 == 0);
  }
}

template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> out(values.size() * sizeof(T));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// tools/goldens/make_gguf_writer_golden.py
TEST(GgufWriter, WritesTheBytesOfTheGgufPackage) {
  const auto fc = bytes_of<float>({0, 1, 2, 3, 4, 5});
  const auto half = bytes_of<uint16_t>({f32_to_f16(0), f32_to_f16(1), f32_to_f16(2), f32_to_f16(3), f32_to_f16(4)});
  const auto d2t = bytes_of<int64_t>({0, 2, 3});
  const GgufMetadata meta = {{"general.architecture", "eagle3"},
                             {"general.name", "golden"},
                             {"eagle3.embedding_length", uint32_t{16}},
                             {"a.signed", int32_t{-5}},
                             {"a.wide", uint64_t{1} << 40},
                             {"eagle3.rope.freq_base", 10000.0f},
                             {"eagle3.norm_before_fc", true},
                             {"eagle3.target_layers", std::vector<int32_t>{2, 15, 27}},
                             {"a.floats", std::vector<float>{0.5f, -1.25f}},
                             {"a.texts", std::vector<std::string>{"x", "", "caf\xc3\xa9"}}};
  TempFolder folder;
  const std::string path = folder / "x.gguf";
  const Status status = write_gguf(
      path, meta, {{"fc.weight", DType::kF32, {2, 3}, fc}, {"half.weight", DType::kF16, {5}, half}, {"d2t", DType::kI64, {3}, d2t}});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(read_file(path, 1 << 20).value(), read_file(AERIE_SOURCE_DIR "/tests/formats/data/gguf_writer.gguf", 1 << 20).value());
}

TEST(GgufWriter, RefusesWhatTheFormatCannotHoldAndLeavesNothing) {
  TempFolder folder;
  const std::string path = folder / "x.gguf";
  const std::vector<uint8_t> bytes = some_bytes(64);
  const TensorView good = {"a", DType::kF32, {4, 4}, bytes};
  const auto refused = [&](const char* part, const GgufMetadata& meta, const std::vector<TensorView>& tensors) {
    const Status status = write_gguf(path, meta, tensors);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_FALSE(std::filesystem::exists(path));
  };
  refused("given twice", {{"k", true}, {"k", false}}, {good});
  refused("tensor 'a' is given twice", {}, {good, good});
  refused("does not fill", {}, {{"a", DType::kF32, {4, 5}, bytes}});
  refused("does not fill", {}, {{"a", DType::kQ8_0, {2, 16}, bytes}});
  refused("does not fill", {}, {{"a", DType::kF32, {UINT64_MAX, 8}, bytes}});
  refused("GGUF has no type BOOL", {}, {{"a", DType::kBool, {64}, bytes}});
  refused("5 dimensions", {}, {{"a", DType::kF32, {1, 1, 1, 4, 4}, bytes}});
  refused("a name has 1 to 63 bytes", {}, {{std::string(64, 'n'), DType::kF32, {4, 4}, bytes}});
  ASSERT_TRUE(write_gguf(path, {}, {good}).ok());
}

TEST(GgufWriter, NarrowsWhatTheReaderWidened) {
  EXPECT_EQ(narrow_gguf_value({uint64_t{7}}).value(), GgufMeta(uint32_t{7}));
  EXPECT_EQ(narrow_gguf_value({int64_t{-7}}).value(), GgufMeta(int32_t{-7}));
  EXPECT_EQ(narrow_gguf_value({std::vector<double>{0.5}}).value(), GgufMeta(std::vector<float>{0.5f}));
  EXPECT_EQ(narrow_gguf_value({std::vector<int64_t>{1, 2}}).value(), GgufMeta(std::vector<int32_t>{1, 2}));
  EXPECT_FALSE(narrow_gguf_value({std::vector<int64_t>{INT64_MAX}}).ok());
  EXPECT_FALSE(narrow_gguf_value({std::vector<bool>{true}}).ok());
}

}  // namespace
}  // namespace aerie
