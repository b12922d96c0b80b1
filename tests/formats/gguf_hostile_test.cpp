// GGUF files made to harm. Each case names the published fault whose shape it has, where there is one.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <functional>

#include "formats/corrupt_bytes.h"
#include "formats/gguf.h"
#include "formats/gguf_builder.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

struct Case {
  std::string name;
  std::function<void(GgufBuilder&)> damage;
  std::string expected;  // part of the sentence
  StatusCode code = StatusCode::kCorrupt;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

GgufBuilder::Tensor tensor_a(std::vector<uint64_t> dims, uint32_t type, uint64_t offset = 0) {
  return {"a", std::move(dims), type, offset, std::string(64, 'x'), {}};
}

std::function<void(GgufBuilder&)> only_tensor(GgufBuilder::Tensor tensor) {
  return [tensor](GgufBuilder& b) { b.tensors = {tensor}; };
}

constexpr uint64_t kHuge = 1ull << 62;

std::vector<Case> cases() {
  std::vector<Case> out;
  const auto add = [&out](const char* name, std::function<void(GgufBuilder&)> damage, const char* expected,
                          StatusCode code = StatusCode::kCorrupt) {
    out.push_back({name, std::move(damage), expected, code});
  };

  add(
      "Magic", [](GgufBuilder& b) { b.magic = 0x46554746; }, "this is no GGUF file");
  add(
      "VersionOne", [](GgufBuilder& b) { b.version = 1; }, "GGUF version 1; expected version 2 or 3", StatusCode::kUnsupported);
  add(
      "BigEndian", [](GgufBuilder& b) { b.version = 0x03000000; }, "big-endian", StatusCode::kUnsupported);
  add(
      "KeyValueCount", [](GgufBuilder& b) { b.kv_count = kHuge; }, "metadata entries do not fit");
  // CVE-2025-53630 and its bypass CVE-2026-27940: counts and sizes whose products wrap.
  add(
      "TensorCount", [](GgufBuilder& b) { b.tensor_count = UINT64_MAX; }, "18446744073709551615 tensors do not fit");
  add(
      "TensorCountBeyondTheEntries", [](GgufBuilder& b) { b.tensor_count = 3; }, "");

  // Talos 2024 (CVE-2024-21802 and siblings): lengths taken for granted.
  add(
      "KeyLength",
      [](GgufBuilder& b) {
        b.key_values = {{"", 0, ""}};
        b.key_values[0].key = std::string(70000, 'k');
      },
      "70000 bytes long; expected at most 65535");
  add(
      "EmptyKey", [](GgufBuilder& b) { b.key_values[1].key = ""; }, "metadata entry 1 has an empty key");
  add(
      "TwiceTheSameKey", [](GgufBuilder& b) { b.key_values[1].key = "eps"; }, "key 'eps' appears twice");
  add(
      "ValueType", [](GgufBuilder& b) { b.key_values[1].type = 13; }, "key 'count': value type 13 is unknown");
  add(
      "BoolOfTwo", [](GgufBuilder& b) { b.add<uint8_t>("flag", kGgufBool, 2); }, "key 'flag': a bool holds 2; expected 0 or 1");
  add(
      "BoolArrayOfTwo", [](GgufBuilder& b) { b.add_array("flag", kGgufBool, 2, "\1\2"); }, "key 'flag': a bool holds 2");
  add(
      "StringLengthWraps", [](GgufBuilder& b) { b.key_values[0].value = GgufBytes().number<uint64_t>(UINT64_MAX).bytes(); },
      "key 'general.architecture': the string value");
  add(
      "StringBeyondTheFile", [](GgufBuilder& b) { b.key_values[0].value = GgufBytes().number<uint64_t>(1 << 20).bytes(); },
      "key 'general.architecture': the file ends inside the string value");
  add(
      "ArrayType", [](GgufBuilder& b) { b.add_array("x", 99, 1, "12345678"); }, "key 'x': value type 99 is unknown");
  add(
      "ArrayLengthWraps", [](GgufBuilder& b) { b.add_array("x", kGgufU64, (1ull << 61) + 1, "12345678"); }, "key 'x': an array of");
  add(
      "ArrayBeyondTheFile", [](GgufBuilder& b) { b.add_array("x", kGgufF32, 5000, "1234"); }, "key 'x': an array of 5000 f32 values");
  add(
      "StringArrayBeyondTheFile", [](GgufBuilder& b) { b.add_array("x", kGgufString, 5000, ""); },
      "key 'x': an array of 5000 string values");
  add(
      "ArrayOfArrays",
      [](GgufBuilder& b) { b.add_array("x", kGgufArray, 1, GgufBytes().number(kGgufU8).number<uint64_t>(1).number<uint8_t>(1).bytes()); },
      "key 'x': arrays of arrays are not read", StatusCode::kUnsupported);
  // llama.cpp PRs 19856 and 19919: metadata must be bounded in memory.
  add(
      "MetadataTooLarge", [](GgufBuilder& b) { b.add_array("x", kGgufU8, 9u << 20, std::string(9u << 20, '\0')); },
      "key 'x': the metadata is larger than the limit of 64 MiB");
  add(
      "ManyEmptyStrings", [](GgufBuilder& b) { b.add_array("x", kGgufString, 3u << 20, std::string(24u << 20, '\0')); },
      "key 'x': the metadata is larger than the limit of 64 MiB");

  // llama.cpp PR 26318: the alignment's type unchecked, padding arithmetic that wraps.
  add(
      "AlignmentType", [](GgufBuilder& b) { b.add<uint64_t>("general.alignment", kGgufU64, 32); },
      "key 'general.alignment': expected type u32, found u64");
  add(
      "AlignmentZero", [](GgufBuilder& b) { b.add<uint32_t>("general.alignment", kGgufU32, 0); }, "expected a power of two, found 0");
  add(
      "AlignmentOdd", [](GgufBuilder& b) { b.add<uint32_t>("general.alignment", kGgufU32, 48); }, "expected a power of two, found 48");
  add(
      "AlignmentBeyondTheFile", [](GgufBuilder& b) { b.add<uint32_t>("general.alignment", kGgufU32, 1u << 31); },
      "data section of 0 bytes");

  add(
      "EmptyTensorName", [](GgufBuilder& b) { b.tensors[0].name = ""; }, "tensor 0 has an empty name");
  add(
      "TensorNameTooLong", [](GgufBuilder& b) { b.tensors[0].name = std::string(65, 'n'); }, "65 bytes long; expected at most 64");
  add(
      "TwiceTheSameTensor", [](GgufBuilder& b) { b.tensors[1].name = "a"; }, "tensor 'a' appears twice");
  add(
      "NoDimensions", [](GgufBuilder& b) { b.tensors[0].n_dims = 0; }, "tensor 'a': 0 dimensions; expected 1 to 4");
  add("FiveDimensions", only_tensor(tensor_a({1, 1, 1, 1, 1}, kGgmlF32)), "tensor 'a': 5 dimensions; expected 1 to 4");
  add(
      "DimensionCountWraps", [](GgufBuilder& b) { b.tensors[0].n_dims = UINT32_MAX; }, "4294967295 dimensions");
  // llama.cpp PR 24263: a dimension of 0 divided by.
  add("DimensionZero", only_tensor(tensor_a({4, 0}, kGgmlF32)), "tensor 'a': shape [0, 4] has a dimension of 0");
  // llama.cpp 27203: the product of the dimensions wraps and passes; CVE-2026-33298: exabytes that become four megabytes.
  add("ShapeWrapsToZero", only_tensor(tensor_a({1ull << 32, 1ull << 32}, kGgmlF32)), "is larger than 64 bits can count");
  add("ShapeWrapsToSmall", only_tensor(tensor_a({4, (1ull << 60) + 1}, kGgmlF32)), "is larger than 64 bits can count");
  add("ShapeWrapsInFour", only_tensor(tensor_a({1ull << 17, 1ull << 17, 1ull << 17, 1ull << 17}, kGgmlF16)), "larger than 64 bits");
  add("ShapeOfExabytes", only_tensor(tensor_a({kHuge / 4}, kGgmlF32)), "do not lie in the data section");
  add("TensorType", only_tensor(tensor_a({256}, 10)), "tensor 'a': GGML type 10 is not read", StatusCode::kUnsupported);
  add("TensorTypeBeyondTheTable", only_tensor(tensor_a({256}, UINT32_MAX)), "GGML type 4294967295", StatusCode::kUnsupported);
  add("PartialBlock", only_tensor(tensor_a({33}, kGgmlQ4_0)),
      "tensor 'a': rows of 33 values are not whole blocks of Q4_0 (32 values each)");

  add("OffsetNotAligned", only_tensor(tensor_a({4}, kGgmlF32, 8)), "tensor 'a': its offset 8 is not a multiple of the alignment 32");
  add("OffsetBeyondTheFile", only_tensor(tensor_a({4}, kGgmlF32, 1ull << 40)),
      "tensor 'a': its 16 bytes at offset 1099511627776 do not lie");
  add("OffsetWraps", only_tensor(tensor_a({16}, kGgmlF32, UINT64_MAX - 31)), "do not lie in the data section");
  add("DataBeyondTheFile", only_tensor(tensor_a({17}, kGgmlF32)), "tensor 'a': its 68 bytes at offset 0 do not lie");
  add(
      "Overlap", [](GgufBuilder& b) { b.tensors[1].offset = 0; }, "overlap");
  add(
      "OverlapOutOfOrder",
      [](GgufBuilder& b) {
        b.tensors[0] = tensor_a({16}, kGgmlF32, 32);  // 32 to 96
        b.tensors[1].offset = 64;
      },
      "tensors 'a' and 'b' overlap: the first ends at offset 96, the second begins at 64");
  add(
      "UnprintableName", [](GgufBuilder& b) { b.tensors[0] = {"\x1b[2J\n", {0}, kGgmlF32, 0, "", {}}; }, "tensor '\\x1b[2J\\x0a'");
  return out;
}

class GgufHostile : public testing::TestWithParam<Case> {};

TEST_P(GgufHostile, IsRefusedInOneSentence) {
  const TempFolder folder;
  GgufBuilder builder = small_gguf();
  GetParam().damage(builder);
  const std::string path = folder.write("hostile.gguf", builder.build());
  const auto file = GgufFile::open(path);
  ASSERT_FALSE(file.ok());
  const std::string message = file.status().message();
  EXPECT_EQ(file.status().code(), GetParam().code) << message;
  EXPECT_EQ(message.substr(0, path.size() + 2), path + ": ");
  EXPECT_NE(message.find(GetParam().expected), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Files, GgufHostile, testing::ValuesIn(cases()), [](const auto& param) { return param.param.name; });

TEST(GgufDamage, EveryTruncationIsAnError) {
  const TempFolder folder;
  const std::string bytes = small_gguf().build();
  ASSERT_TRUE(GgufFile::open(folder.write("whole.gguf", bytes)).ok());
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto file = GgufFile::open(folder.write("cut.gguf", std::string_view(bytes).substr(0, length)));
    ASSERT_FALSE(file.ok()) << "cut to " << length << " of " << bytes.size() << " bytes";
    ASSERT_EQ(file.status().code(), StatusCode::kCorrupt) << file.status().message();
  }
}

TEST(GgufDamage, OffsetsOutOfOrderButApartAreFine) {
  const TempFolder folder;
  GgufBuilder builder = small_gguf();
  std::swap(builder.tensors[0], builder.tensors[1]);
  EXPECT_TRUE(GgufFile::open(folder.write("order.gguf", builder.build())).ok());
}

TEST(GgufDamage, TheNumberOfTensorsIsBounded) {
  const TempFolder folder;
  GgufBuilder builder = small_gguf();
  builder.tensor_count = 65'537;
  const auto file = GgufFile::open(folder.write("many.gguf", builder.build() + std::string(65'537 * 40, '\0')));
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find("the file has 65537 tensors; the limit is 65536"), std::string::npos) << file.status().message();
}

TEST(GgufDamage, AFolderOrNothingIsNoModel) {
  const TempFolder folder;
  EXPECT_EQ(GgufFile::open(folder.path()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(GgufFile::open(folder / "none.gguf").status().code(), StatusCode::kNotFound);
}

// Whatever is opened can be read to its last byte (the sanitizers watch), and takes no more than the file.
RC_GTEST_PROP(GgufDamageProperty, IsRefusedOrHarmless, ()) {
  const TempFolder folder;
  const auto file = GgufFile::open(folder.write("damaged.gguf", damaged(small_gguf().build())));
  if (!file.ok()) {
    RC_ASSERT(!file.status().message().empty());
    return;
  }
  uint64_t total = 0, sum = 0;
  for (const TensorView& tensor : file->tensors()) {
    total += tensor.data.size();
    for (const uint8_t byte : tensor.data) sum += byte;
    (void)to_float(tensor);
    RC_ASSERT(file->find(tensor.name).ok());
  }
  RC_ASSERT(total <= file->file_bytes());
  RC_ASSERT(sum <= 255 * total);
}

}  // namespace
}  // namespace aerie
