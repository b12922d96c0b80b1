#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <cstring>

#include "formats/corrupt_bytes.h"
#include "formats/json_text.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data_bytes, '\x01');
}

const char* const kTwo = R"({"b":{"dtype":"I32","shape":[2],"data_offsets":[8,16]},)"
                         R"("a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},"__metadata__":{"format":"pt"}}  )";

TensorView view_of(const std::string& name, DType type, std::vector<uint64_t> shape, const std::vector<uint8_t>& data) {
  return {name, type, std::move(shape), data};
}

TEST(Safetensors, ReadsWhatTheReferenceWrites) {  // the golden is a file of the Python package
  const auto file = SafetensorsFile::open(data_path("dequant.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 24u);
  EXPECT_EQ((*file->find("Q6_K.values"))->shape, (std::vector<uint64_t>{14, 256}));
  EXPECT_EQ(file->find("Q6_K").status().message(), file->path() + ": there is no tensor 'Q6_K'");
}

TEST(Safetensors, ReadsHeaderInAnyOrder) {
  const TempFolder folder;
  const auto file = SafetensorsFile::open(folder.write("two.safetensors", file_of(kTwo, 16)));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file->find("a"))->type, DType::kBF16);
  EXPECT_EQ((*file->find("a"))->shape, (std::vector<uint64_t>{2, 2}));
  EXPECT_EQ((*file->find("b"))->data.data() - (*file->find("a"))->data.data(), 8);
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_TRUE(file->has("b"));
  EXPECT_FALSE(file->has("__metadata__"));
}

TEST(Safetensors, AnEmptyFileAndAScalarAreValid) {
  const TempFolder folder;
  EXPECT_TRUE(SafetensorsFile::open(folder.write("none.safetensors", file_of("{}", 0))).ok());
  const std::string header = R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";
  const auto scalar = SafetensorsFile::open(folder.write("s.safetensors", file_of(header, 4)));
  ASSERT_TRUE(scalar.ok()) << scalar.status().message();
  EXPECT_EQ((*scalar->find("s"))->element_count(), 1u);
}

RC_GTEST_PROP(SafetensorsProperty, ComesBackAsWritten, ()) {
  const TempFolder folder;
  const auto text = rc::gen::container<std::string>(rc::gen::inRange(' ', '\x7f'));
  const auto names = *rc::gen::unique<std::vector<std::string>>(rc::gen::nonEmpty(text));
  std::vector<std::vector<uint8_t>> data;
  std::vector<TensorView> tensors;
  for (const std::string& name : names) {
    const auto type = *rc::gen::element(DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI8, DType::kU8, DType::kI16,
                                        DType::kI32, DType::kI64, DType::kBool);
    const auto shape = *rc::gen::resize(4, rc::gen::container<std::vector<uint64_t>>(rc::gen::inRange<uint64_t>(1, 4)));
    TensorView tensor{name, type, shape, {}};
    const auto bytes = static_cast<size_t>(tensor.element_count()) * static_cast<size_t>(block_bytes(type));
    data.push_back(*rc::gen::container<std::vector<uint8_t>>(bytes, rc::gen::arbitrary<uint8_t>()));
    tensors.push_back(tensor);
  }
  for (size_t i = 0; i < data.size(); ++i) tensors[i].data = data[i];
  const std::map<std::string, std::string> metadata = {{"key", *text}};
  const std::string path = folder / "w.safetensors";
  const Status written = write_safetensors(path, tensors, metadata);
  if (!written.ok()) RC_FAIL(written.message());

  const auto file = SafetensorsFile::open(path);
  if (!file.ok()) RC_FAIL(file.status().message());
  RC_ASSERT(file->metadata() == metadata);
  RC_ASSERT(file->tensors().size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& got = file->tensors()[i];  // in the order they were given
    RC_ASSERT(got.name == tensors[i].name);
    RC_ASSERT(got.type == tensors[i].type);
    RC_ASSERT(got.shape == tensors[i].shape);
    RC_ASSERT(std::vector<uint8_t>(got.data.begin(), got.data.end()) == data[i]);
  }
  uint64_t header;
  std::memcpy(&header, read_bytes(path).data(), 8);
  RC_ASSERT(header % 8 == 0u);
}

TEST(Safetensors, WriterRefusesWhatNobodyCouldRead) {
  const TempFolder folder;
  const std::string path = folder / "w.safetensors";
  const std::vector<uint8_t> four(4), eighteen(18), none;
  const std::vector<std::vector<TensorView>> bad = {
      {view_of("a", DType::kF32, {2}, four)},                                        // too few bytes
      {view_of("a", DType::kF32, {0}, none)},                                        // a dimension of 0
      {view_of("a", DType::kQ4_0, {32}, eighteen)},                                  // no plain type
      {view_of("", DType::kF32, {1}, four)},                                         // no name
      {view_of("__metadata__", DType::kF32, {1}, four)},                             // a name with another meaning
      {view_of("a", DType::kF32, {1}, four), view_of("a", DType::kF32, {1}, four)},  // twice
      {view_of("\xff", DType::kF32, {1}, four)},                                     // no UTF-8
      {view_of("a", DType::kF32, {1ull << 62, 1ull << 62}, four)},                   // a size that wraps
      {view_of("a", DType::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 4}, four)},                 // nine dimensions
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(write_safetensors(path, bad[i]).code(), StatusCode::kInvalidArgument) << i;
    EXPECT_FALSE(std::filesystem::exists(path)) << i;
  }
}

struct Case {
  std::string name;
  std::string bytes;
  std::string expected;
  StatusCode code = StatusCode::kCorrupt;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string one(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }

std::vector<Case> cases() {
  const auto raw_length = [](uint64_t length, const std::string& rest) {
    return std::string(reinterpret_cast<const char*>(&length), 8) + rest;
  };
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100000; ++i) deep += "[";
  std::string nine_dims = R"("dtype":"U8","data_offsets":[0,1],"shape":[1,1,1,1,1,1,1,1,1])";
  return {
      {"Empty", "", "the file has 0 bytes"},
      {"SevenBytes", "1234567", "the file has 7 bytes"},
      // fastllm 712: the header's length plus something wraps.
      {"HeaderLengthWraps", raw_length(UINT64_MAX - 4, "{}"), "the limit is 100000000"},
      {"HeaderOverTheLimit", raw_length(100'000'001, "{}"), "the header is 100000001 bytes long; the limit is 100000000"},
      {"HeaderBeyondTheFile", raw_length(3, "{}"), "the header is 3 bytes long but only 2 bytes follow"},
      {"NoHeader", raw_length(0, ""), "does not begin with an opening brace"},
      {"NoBrace", file_of("[]", 0), "does not begin with an opening brace"},
      {"BrokenJson", file_of("{\"a\":", 0), "the header is no valid JSON at its byte"},
      {"JsonAfterTheHeader", file_of("{}{}", 0), "the header is no valid JSON"},
      {"InvalidUtf8", file_of("{\"\xff\":{}}", 0), "the header is no valid JSON"},
      {"Deep", file_of(deep, 0), "tensor 'a': an array where none belongs"},
      {"TensorIsANumber", file_of(R"({"a":5})", 0), "tensor 'a': the number 5 where none belongs"},
      {"TensorIsNull", file_of(R"({"a":null})", 0), "tensor 'a': a null where none belongs"},
      {"ObjectInTensor", file_of(one(R"("shape":{})"), 0), "tensor 'a': an object where none belongs"},
      {"EmptyName", file_of(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), "a tensor has an empty name"},
      {"NameTwice",
       file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2),
       "tensor 'a': it appears twice"},
      {"FieldTwice", file_of(one(R"("dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1])"), 1), "its field 'dtype' appears twice"},
      {"MetadataIsANumber", file_of(R"({"__metadata__":{"a":1}})", 0), "the number 1 where none belongs"},
      {"NoDtype", file_of(one(R"("shape":[1],"data_offsets":[0,1])"), 1), "tensor 'a': it has no dtype"},
      {"NoShape", file_of(one(R"("dtype":"U8","data_offsets":[0,1])"), 1), "tensor 'a': it has no shape"},
      {"NoOffsets", file_of(one(R"("dtype":"U8","shape":[1])"), 1), "data_offsets holds 0 numbers; expected 2"},
      {"OneOffset", file_of(one(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1), "data_offsets holds 1 numbers; expected 2"},
      {"ThreeOffsets", file_of(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 1), "its data_offsets has more than 2 numbers"},
      {"NineDimensions", file_of(one(nine_dims), 1), "its shape has more than 8 numbers"},
      {"UnknownDtype", file_of(one(R"("dtype":"F4","shape":[1],"data_offsets":[0,1])"), 1), "tensor 'a': dtype 'F4' is not read",
       StatusCode::kUnsupported},
      {"NegativeDimension", file_of(one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1),
       "the number -1; expected one that is not negative"},
      {"FractionalOffset", file_of(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1.0])"), 1), "the number '1.0'; expected an integer"},
      {"OffsetBeyond64Bits", file_of(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616])"), 1), "expected an integer"},
      {"DimensionZero", file_of(one(R"("dtype":"U8","shape":[0,2],"data_offsets":[0,0])"), 0), "shape [0, 2] has a dimension of 0"},
      {"ShapeWraps", file_of(one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
       "larger than 64 bits can count"},
      // mlx 3363 and 3409, stable-diffusion.cpp 1396, LiteRT 9255: offsets believed.
      {"ShapeIsNotTheSpan", file_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4),
       "tensor 'a': F32 of shape [2] takes 8 bytes but data_offsets [0, 4] span 4"},
      {"OffsetsInverted", file_of(one(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), 4), "data_offsets [4, 0] do not lie"},
      {"OffsetsBeyondTheFile", file_of(one(R"("dtype":"U8","shape":[8],"data_offsets":[0,8])"), 4),
       "[0, 8] do not lie in the 4 bytes of data"},
      {"Gap", file_of(one(R"("dtype":"U8","shape":[2],"data_offsets":[2,4])"), 4), "begins at offset 2 but the data before it ends at 0"},
      {"Overlap",
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6),
       "tensor 'b': its data begins at offset 2 but the data before it ends at 4"},
      {"TrailingBytes", file_of(one(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"), 4),
       "the tensors end at offset 2 but the file holds 4"},
  };
}

class SafetensorsHostile : public testing::TestWithParam<Case> {};

TEST_P(SafetensorsHostile, IsRefusedInOneSentence) {
  const TempFolder folder;
  const std::string path = folder.write("hostile.safetensors", GetParam().bytes);
  const auto file = SafetensorsFile::open(path);
  ASSERT_FALSE(file.ok());
  const std::string message = file.status().message();
  EXPECT_EQ(file.status().code(), GetParam().code) << message;
  EXPECT_EQ(message.substr(0, path.size() + 2), path + ": ");
  EXPECT_NE(message.find(GetParam().expected), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Files, SafetensorsHostile, testing::ValuesIn(cases()), [](const auto& param) { return param.param.name; });

TEST(SafetensorsDamage, EveryTruncationIsAnError) {
  const TempFolder folder;
  const std::string bytes = file_of(kTwo, 16);
  for (size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_FALSE(SafetensorsFile::open(folder.write("cut.safetensors", std::string_view(bytes).substr(0, length))).ok()) << length;
  }
}

RC_GTEST_PROP(SafetensorsDamageProperty, IsRefusedOrHarmless, ()) {
  const TempFolder folder;
  const auto file = SafetensorsFile::open(folder.write("damaged.safetensors", damaged(file_of(kTwo, 16))));
  if (!file.ok()) return;
  for (const TensorView& tensor : file->tensors()) {
    RC_ASSERT(tensor.data.size() == tensor.element_count() * static_cast<uint64_t>(block_bytes(tensor.type)));
    for (const uint8_t byte : tensor.data) RC_ASSERT(byte < 256);
  }
}

class Shards : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write("one.safetensors", file_of(one(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"), 2));
    folder_.write("two.safetensors", file_of(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"__metadata__":{"format":"pt"}})", 3));
  }
  Expected<SafetensorsFile> open(const std::string& index) {
    return SafetensorsFile::open(folder_.write("model.safetensors.index.json", index));
  }
  void expect_refused(const std::string& index, const std::string& expected) {
    const auto file = open(index);
    ASSERT_FALSE(file.ok()) << index;
    EXPECT_NE(file.status().message().find(expected), std::string::npos) << file.status().message();
  }
  TempFolder folder_;
};

TEST_F(Shards, AreOneFile) {
  const auto file = open(R"({"metadata":{"total_size":5},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ((*file->find("b"))->data.size(), 3u);
  EXPECT_EQ(file->metadata().at("format"), "pt");
}

TEST_F(Shards, MayNotLeaveTheFolder) {
  for (const char* shard :
       {"../one.safetensors", "/etc/passwd", "..", ".", "", "x/../../one.safetensors", "..\\\\one.safetensors", "a\\u0000b"}) {
    expect_refused(std::string(R"({"weight_map":{"a":")") + shard + "\"}}", "is no plain file name in this folder");
  }
}

TEST_F(Shards, MustHoldWhatTheIndexSays) {
  expect_refused(R"({"weight_map":{"c":"one.safetensors"}})", "the index says that tensor 'c' is in this file, but it is not");
  expect_refused(R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})", "");
  expect_refused(R"({"weight_map":{"a":"none.safetensors"}})", "none.safetensors: no such file");
  folder_.write("two.safetensors", file_of(one(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"), 2));
  expect_refused(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})", "tensor 'a' is also in another shard");
}

TEST_F(Shards, IndexMustBeAnIndex) {
  expect_refused("", "not valid JSON");
  expect_refused("[]", "expected an object with a weight_map");
  expect_refused("{}", "expected an object with a weight_map");
  expect_refused(R"({"weight_map":[]})", "expected an object with a weight_map");
  expect_refused(R"({"weight_map":{}})", "expected an object with a weight_map");
  expect_refused(R"({"weight_map":{"a":1}})", "the shard of 'a' is no string");
  expect_refused(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})", "the JSON key 'a' appears twice");
  expect_refused(std::string(100000, '[') + std::string(100000, ']'), "nests deeper than 64 levels");
}

TEST(Safetensors, CountsAreBounded) {  // a name of five bytes takes hundreds of memory
  const TempFolder folder;
  const auto refused = [&folder](const std::string& header, size_t bytes, const std::string& expected) {
    const auto file = SafetensorsFile::open(folder.write("many.safetensors", file_of(header, bytes)));
    ASSERT_FALSE(file.ok());
    EXPECT_NE(file.status().message().find(expected), std::string::npos) << file.status().message();
  };
  std::string tensors = "{", metadata = "{\"__metadata__\":{";
  for (int i = 0; i <= 200'000; ++i) {
    tensors += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i == 0 ? "" : ",", i, i, i + 1);
  }
  for (int i = 0; i <= 10'000; ++i) metadata += fmt::format(R"({}"{}":"")", i == 0 ? "" : ",", i);
  refused(tensors + "}", 200'001, "the file has more than 200000 tensors");
  refused(metadata + "}}", 0, "it has more than 10000 entries");
}

TEST(JsonText, LimitsTheNumberOfValues) {
  const auto list = [](size_t values) {
    std::string text = "[\",,,[[\"";  // a string is one value, whatever is in it
    for (size_t i = 1; i < values; ++i) text += ",0";
    return text + "]";
  };
  EXPECT_TRUE(parse_json(list(kMaxJsonValues - 2)).ok());
  const auto refused = parse_json(list(kMaxJsonValues));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "the JSON holds more than 1000000 values");
}

TEST(JsonText, LimitsDepthWithoutMindingStrings) {
  EXPECT_TRUE(parse_json(R"({"a":[{"b":"[[[[\"[[["}]})", 3).ok());
  EXPECT_FALSE(parse_json(R"({"a":[{"b":[]}]})", 3).ok());
  EXPECT_TRUE(parse_json(R"([{"a":1},{"a":2}])").ok());  // the same key in different objects
  EXPECT_FALSE(parse_json(R"({"a":{"b":1,"b":2}})").ok());
  EXPECT_FALSE(parse_json("{\"a\":\"\xff\"}").ok());
  EXPECT_FALSE(parse_json("1e999").ok());
  EXPECT_EQ(parse_json("{\"a\": }").status().message(), "not valid JSON at byte 7");
}

}  // namespace
}  // namespace aerie
