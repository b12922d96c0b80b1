// Files that torch.save never wrote, and what becomes of them.
#include <gtest/gtest.h>
#include <zlib.h>

#include <rapidcheck/gtest.h>

#include "formats/corrupt_bytes.h"
#include "formats/torch_builder.h"
#include "formats/torch_file.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

Expected<TorchFile> open_bytes(std::string bytes) { return TorchFile::from_memory("file", std::move(bytes)); }

// Touches every byte and value that a reader hands out, as a consumer would.
uint64_t read_all(const TorchFile& file) {
  uint64_t sum = 0;
  const auto visit = [&sum](const auto& self, const TorchValue& value, int budget) -> int {
    if (--budget <= 0) return 0;
    if (const TensorView* tensor = value.tensor()) {
      for (const uint8_t byte : tensor->data) sum += byte;
    }
    if (const auto text = value.string()) sum += text->size();
    for (size_t i = 0; i < value.size() && budget > 0; ++i) budget = self(self, value.at(i), budget);
    return budget;
  };
  visit(visit, file.root(), 1000);
  return sum;
}

TEST(TorchHostile, TheBuilderMakesAValidFile) {
  const auto file = open_bytes(torch_archive(small_pickle()).build());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->root().find("a")->tensor()->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(read_all(*file), 24u);
}

TEST(TorchHostile, Zip64AndACommentAreValid) {
  ZipBuilder zip = torch_archive(small_pickle());
  zip.zip64_end = true;
  zip.comment = "anything";
  for (auto& entry : zip.entries) entry.zip64 = true;
  const auto file = open_bytes(zip.build());
  EXPECT_TRUE(file.ok()) << file.status().message();
}

struct Case {
  const char* name;
  std::string file;
  StatusCode code;
  std::string expected;
};

void expect_refused(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    const auto file = open_bytes(each.file);
    if (file.ok()) {
      ADD_FAILURE() << "was read";
      continue;
    }
    EXPECT_EQ(file.status().code(), each.code);
    EXPECT_NE(file.status().message().find(each.expected), std::string::npos) << file.status().message();
  }
}

template <class Change>
std::string changed(const Change& change) {
  ZipBuilder zip = torch_archive(small_pickle());
  change(zip);
  return zip.build();
}

TEST(TorchHostile, Archives) {
  const std::string valid = torch_archive(small_pickle()).build();
  std::string parts = valid, nowhere = valid, many = valid;
  parts[parts.size() - 18] = 1;                                      // "number of this disk"
  nowhere[nowhere.size() - 3] = 1;                                   // the top byte of the directory's offset
  for (const size_t at : {14, 12}) many[many.size() - at] = '\x30';  // both entry counts
  expect_refused({
      {"Empty", "", StatusCode::kCorrupt, "no zip archive, as torch.save writes them"},
      {"OtherFile", "\x89PNG", StatusCode::kCorrupt, "no zip archive"},
      {"CutOff", valid.substr(0, valid.size() - 1), StatusCode::kCorrupt, "no end record; the file is cut off"},
      {"OnlyTheMagic", "PK\3\4", StatusCode::kCorrupt, "no end record"},
      {"Compressed", changed([](ZipBuilder& zip) { zip.entries[2].method = 8; }), StatusCode::kUnsupported,
       "the entry 'archive/data/0' is compressed (method 8); torch.save compresses nothing"},
      {"Encrypted", changed([](ZipBuilder& zip) { zip.entries[2].flags = 1; }), StatusCode::kUnsupported, "it is encrypted"},
      {"SizeBeyondTheFile", changed([](ZipBuilder& zip) { zip.entries[2].size_error = 1 << 20; }), StatusCode::kCorrupt,
       "entry 'archive/data/0': its 1048600 bytes at offset"},
      {"SizeWraps", changed([](ZipBuilder& zip) {
         zip.entries[2].zip64 = true;
         zip.entries[2].size_error = -25;
       }),
       StatusCode::kCorrupt, "its 18446744073709551615 bytes at offset"},
      {"OffsetWraps", changed([](ZipBuilder& zip) {
         zip.entries[2].zip64 = true;
         zip.entries[2].offset_error = INT64_MIN;
       }),
       StatusCode::kCorrupt, "its header is not at offset"},
      {"HeaderElsewhere", changed([](ZipBuilder& zip) { zip.entries[2].offset_error = 1; }), StatusCode::kCorrupt,
       "its header is not at offset"},
      {"OtherName", changed([](ZipBuilder& zip) { zip.entries[2].local_name = "archive/data/1"; }), StatusCode::kCorrupt,
       "its header bears another name"},
      {"Overlap", changed([](ZipBuilder& zip) { zip.entries[1].size_error = 40; }), StatusCode::kCorrupt,
       "the entries 'archive/byteorder' and 'archive/data/0' overlap"},
      {"NameTwice", changed([](ZipBuilder& zip) { zip.add("archive/data/0", "x"); }), StatusCode::kCorrupt,
       "the entry 'archive/data/0' is there twice"},
      {"TooManyEntries", changed([](ZipBuilder& zip) { zip.entry_count_error = 1; }), StatusCode::kCorrupt,
       "the directory names 5 entries but holds 4"},
      {"ImpossibleCount", many, StatusCode::kCorrupt, "the directory of "},
      {"SeveralParts", parts, StatusCode::kUnsupported, "one part of several"},
      {"DirectoryNowhere", nowhere, StatusCode::kCorrupt, "does not lie in the"},
      {"NoPickle", changed([](ZipBuilder& zip) { zip.entries[0].name = "archive/other"; }), StatusCode::kUnsupported,
       "the archive has no data.pkl"},
      {"TwoPickles", changed([](ZipBuilder& zip) { zip.add("b/data.pkl", "x"); }), StatusCode::kCorrupt,
       "a data.pkl in 'archive' and in 'b'; expected one"},
      {"BigEndian", changed([](ZipBuilder& zip) { zip.entries[1].data = "big"; }), StatusCode::kUnsupported,
       "its byte order is 'big'; expected 'little'"},
      {"StorageMissing", changed([](ZipBuilder& zip) { zip.entries[2].name = "archive/data/1"; }), StatusCode::kCorrupt,
       "storage '0' has no record in the archive"},
      {"StorageInAnotherFolder", changed([](ZipBuilder& zip) { zip.entries[2].name = "archive2/data/0"; }), StatusCode::kCorrupt,
       "storage '0' has no record in the archive"},
      {"StorageTooSmall", changed([](ZipBuilder& zip) { zip.entries[2].data.pop_back(); }), StatusCode::kCorrupt,
       "storage '0' of 6 F32 values has a record of 23 bytes"},
  });
}

// A file whose value is made by `pickle`.
std::string with(const PickleBytes& pickle) { return torch_archive(pickle.stop()).build(); }

PickleBytes tensor(int32_t count, int32_t offset, const std::vector<int32_t>& shape, const std::vector<int32_t>& strides) {
  return PickleBytes().tensor("FloatStorage", "0", count, offset, shape, strides);
}

std::string nested_lists(int levels) {
  PickleBytes pickle;
  for (int i = 0; i < levels; ++i) pickle.raw("]");
  for (int i = 1; i < levels; ++i) pickle.raw("a");
  return with(pickle);
}

TEST(TorchHostile, Pickles) {
  const auto p = [] { return PickleBytes(); };
  PickleBytes two_views;
  two_views.raw("]").storage("FloatStorage", "0", 6).raw("a").storage("IntStorage", "0", 6).raw("a");
  expect_refused({
      {"System", with(p().global("os", "system").text("echo").raw("\x85R")), StatusCode::kUnsupported,
       "data.pkl: byte 2: the global 'os.system' is not read: nothing in a file is called"},
      {"Eval", with(p().global("builtins", "eval").text("1").raw("\x85R")), StatusCode::kUnsupported, "the global 'builtins.eval'"},
      {"GlobalWithADot", with(p().global("torch", "_utils._rebuild_tensor_v2")), StatusCode::kUnsupported, "is not read"},
      {"StackGlobal", with(p().text("os").text("system").raw("\x93")), StatusCode::kUnsupported,
       "byte 20: the opcode STACK_GLOBAL is not read"},
      {"NewObject", with(p().raw(")\x81")), StatusCode::kUnsupported, "byte 3: the opcode NEWOBJ is not read"},
      {"Instance", with(p().raw("(ios\nsystem\n")), StatusCode::kUnsupported, "the opcode INST is not read"},
      {"Extension", with(p().raw("\x82\x01")), StatusCode::kUnsupported, "the opcode EXT1 is not read"},
      {"NoOpcode", with(p().raw("\xff")), StatusCode::kUnsupported, "the opcode 0xff is not read"},
      {"GlobalWithoutEnd", with(p().raw("ctorch")), StatusCode::kCorrupt, "a line of at most 512 bytes was expected"},
      {"BareGlobal", with(p().global("torch", "FloatStorage")), StatusCode::kUnsupported,
       "a value is a global; expected tensors and plain values"},
      {"BareStorage", with(p().raw("]").storage("FloatStorage", "0", 6).raw("a")), StatusCode::kUnsupported, "a value is a bare storage"},
      {"CallOfANumber", with(p().integer(1).raw(")R")), StatusCode::kCorrupt, "an integer is called with a tuple"},
      {"CallOfAType", with(p().global("torch", "FloatStorage").raw(")R")), StatusCode::kUnsupported,
       "torch.FloatStorage is called with arguments"},
      {"OrderedDictOfPairs", with(p().global("collections", "OrderedDict").raw("]\x85R")), StatusCode::kUnsupported,
       "collections.OrderedDict is called"},
      {"AttributesOfATensor", with(tensor(6, 0, {6}, {1}).raw("}b")), StatusCode::kUnsupported, "attributes are set on a tensor"},
      {"CutOff", torch_archive(small_pickle().substr(0, 30)).build(), StatusCode::kCorrupt, "data.pkl: byte "},
      {"NothingAtAll", torch_archive("").build(), StatusCode::kCorrupt, "data.pkl: byte 0: 1 bytes were expected but only 0 remain"},
      {"EmptyStack", with(p()), StatusCode::kCorrupt, "it ends with 0 values and 0 marks on its stack"},
      {"TwoValues", with(p().raw("NN")), StatusCode::kCorrupt, "it ends with 2 values"},
      {"OpenMark", with(p().raw("N(")), StatusCode::kCorrupt, "1 marks on its stack"},
      {"BytesBehind", torch_archive(p().raw("N").stop() + "x").build(), StatusCode::kCorrupt, "1 bytes follow its end"},
      {"NoMark", with(p().raw("Nt")), StatusCode::kCorrupt, "there is no mark"},
      {"PopBelowTheMark", with(p().raw("N(\x85")), StatusCode::kCorrupt, "1 values are needed but 0 are there"},
      {"AppendToADict", with(p().raw("}Na")), StatusCode::kCorrupt, "values are appended to a dict; expected a list"},
      {"KeyInAList", with(p().raw("]NNs")), StatusCode::kCorrupt, "keys are set in a list; expected a dict"},
      {"OddPairs", with(p().raw("}(Nu")), StatusCode::kCorrupt, "1 values are no pairs"},
      {"KeyIsATuple", with(p().raw("})Ns")), StatusCode::kUnsupported, "a key of a dict is a tuple"},
      {"KeyTwice", with(p().raw("}").text("a").raw("Ns").text("a").raw("Ns")), StatusCode::kCorrupt, "a dict has the key 'a' twice"},
      {"NumberTwice", with(p().raw("}").integer(-4).raw("Ns").integer(-4).raw("Ns")), StatusCode::kCorrupt, "a dict has the key -4 twice"},
      {"LongStringAsked", with(p().raw("X\xff\xff\xff\xff")), StatusCode::kCorrupt, "4294967295 bytes were expected but only 1 remain"},
      {"MemoHole", with(p().raw("Nr\xff\xff\xff\xff")), StatusCode::kCorrupt, "memo slot 4294967295 is filled before slot 0"},
      {"MemoUnfilled", with(p().raw("h\x05")), StatusCode::kCorrupt, "memo slot 5 is read before it is filled"},
      {"ListInItself", with(p().raw("]q").raw(std::string(1, '\0')).raw("h").raw(std::string(1, '\0')).raw("a")), StatusCode::kCorrupt,
       "a list holds itself"},
      {"DictInItsList", with(p().raw("}q").raw(std::string(1, '\0')).text("k").raw("]h").raw(std::string(1, '\0')).raw("as")),
       StatusCode::kCorrupt, "a dict holds itself"},
      {"TooDeep", nested_lists(65), StatusCode::kCorrupt, "values nest deeper than 64 levels"},
      {"ManyValues", with(p().raw("(").raw(std::string(1'000'001, 'N')).raw("t")), StatusCode::kResource,
       "it makes more than 1000000 values"},
      {"ManyMarks", with(p().raw(std::string(1'000'001, '('))), StatusCode::kResource, "it makes more than 1000000 values"},
      {"LongPickle", with(p().text(std::string(64 << 20, ' '))), StatusCode::kResource, "the limit is 67108864"},
      {"ProtocolInTheMiddle", with(p().raw("N\x80\x02")), StatusCode::kCorrupt, "the protocol is named in the middle"},

      {"NegativeSize", with(tensor(6, 0, {-2, 3}, {3, 1})), StatusCode::kCorrupt, "its shape holds -2; expected no negative number"},
      {"NegativeStride", with(tensor(6, 0, {2, 3}, {3, -1})), StatusCode::kCorrupt, "its strides holds -1"},
      {"NegativeOffset", with(tensor(6, -1, {2}, {1})), StatusCode::kCorrupt, "its offset is no number from 0"},
      {"NegativeStorage", with(tensor(-1, 0, {2}, {1})), StatusCode::kCorrupt, "storage '0' has -1 elements"},
      {"LeavesTheStorage", with(tensor(6, 1, {2, 3}, {3, 1})), StatusCode::kCorrupt,
       "shape [2, 3] with strides [3, 1] from element 1 on leaves its storage '0' of 6 elements"},
      {"StrideLeavesTheStorage", with(tensor(6, 0, {2, 3}, {4, 1})), StatusCode::kCorrupt, "leaves its storage"},
      {"SizeWraps", with(tensor(6, 0, {2147483647, 2147483647, 2147483647}, {1, 2147483647, 2147483647})), StatusCode::kCorrupt,
       "leaves its storage"},
      {"Expanded", with(tensor(6, 0, {1000000, 6}, {0, 1})), StatusCode::kUnsupported, "names elements more than once"},
      {"Windows", with(tensor(6, 0, {4, 3}, {1, 1})), StatusCode::kUnsupported, "names elements more than once"},
      {"FewerStrides", with(tensor(6, 0, {2, 3}, {1})), StatusCode::kCorrupt, "it has 2 dimensions but 1 strides"},
      {"ManyDimensions", with(tensor(6, 0, std::vector<int32_t>(9, 1), std::vector<int32_t>(9, 1))), StatusCode::kUnsupported,
       "its shape has more than 8 numbers"},
      {"EmptyStorage", with(tensor(0, 0, {}, {})), StatusCode::kCorrupt, "leaves its storage '0' of 0 elements"},
      {"StorageNotWhatItWas", with(two_views), StatusCode::kCorrupt, "storage '0' is named as F32 x 6 and as I32 x 6"},
      {"StorageWithoutItsForm", with(p().text("0").raw("Q")), StatusCode::kCorrupt,
       "is not of the form ('storage', type, key, device, elements)"},
      {"StorageOfADict", with(p().raw("(").text("storage").global("collections", "OrderedDict").text("0").text("cpu").integer(6).raw("tQ")),
       StatusCode::kCorrupt, "is not of the form"},
      {"TensorOfNothing", with(p().global("torch._utils", "_rebuild_tensor_v2").raw("(NNNNNNtR")), StatusCode::kCorrupt,
       "a tensor: it is made of None; expected a storage"},
      {"TensorOfFewArguments", with(p().global("torch._utils", "_rebuild_tensor_v2").raw(")R")), StatusCode::kUnsupported,
       "it is made from 0 arguments"},
      {"ParameterOfNothing", with(p().global("torch._utils", "_rebuild_parameter").raw("NNN\x87R")), StatusCode::kUnsupported,
       "torch._utils._rebuild_parameter is called with arguments that are not read"},
  });
}

TEST(TorchHostile, SixtyFourLevelsAreRead) { EXPECT_TRUE(open_bytes(nested_lists(64)).ok()); }

// Each list holds the one before twice: 2^60 values if anything unfolded them.
TEST(TorchHostile, ListsThatShareTheirItemsTakeTheirMemoryOnce) {
  PickleBytes pickle;
  pickle.raw("(]q").raw(std::string(1, '\0'));
  for (char slot = 1; slot < 60; ++slot) {
    const std::string before = "h" + std::string(1, static_cast<char>(slot - 1));
    pickle.raw("](" + before + before + "eq" + std::string(1, slot));
  }
  const auto file = open_bytes(with(pickle.raw("t")));  // all sixty are in one tuple
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->root().size(), 60u);
  EXPECT_EQ(file->root().at(59).at(0).at(1).size(), 2u);
}

TEST(TorchHostile, CopiesOfOneStorageAreBounded) {
  const std::string data(4 * 10000, '\x01');
  PickleBytes pickle;
  pickle.raw("](");
  for (int i = 0; i < 100; ++i) pickle.tensor("FloatStorage", "0", 10000, 0, {100, 100}, {1, 100});
  const auto file = open_bytes(torch_archive(pickle.raw("e").stop(), data).build());
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kResource);
  EXPECT_NE(file.status().message().find("not contiguous take more bytes than the file has"), std::string::npos);
}

TEST(TorchHostile, AGzipBombIsNotUnpacked) {
  const TempFolder folder;
  const std::string path = folder / "bomb.ckpt.gz";
  gzFile out = gzopen(path.c_str(), "wb9");
  const std::string zeros(1 << 20, '\0');
  for (int i = 0; i < 64; ++i) gzwrite(out, zeros.data(), static_cast<unsigned>(zeros.size()));
  gzclose(out);
  const auto file = TorchFile::open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kResource);
  EXPECT_NE(file.status().message().find("unpacks to more than"), std::string::npos) << file.status().message();
}

TEST(TorchHostile, AGzipThatIsCutOffSaysSo) {
  const TempFolder folder;
  const std::string bytes = read_bytes(data_path("torch/specforge.ckpt.gz"));
  const auto file = TorchFile::open(folder.write("cut.ckpt.gz", std::string_view(bytes).substr(0, bytes.size() / 2)));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kCorrupt) << file.status().message();
}

TEST(TorchHostile, NoTruncationIsRead) {
  for (const char* name : {"torch/views.pt", "torch/values.pt"}) {
    const std::string bytes = read_bytes(data_path(name));
    for (size_t length = 0; length < bytes.size(); ++length)
      ASSERT_FALSE(open_bytes(bytes.substr(0, length)).ok()) << name << " " << length;
  }
}

// Every byte of every golden, with each bit turned and with its extremes. Most of it is still a file: a number of a tensor, say.
TEST(TorchHostile, NoSingleByteCrashesTheReader) {
  for (const char* name : {"torch/views.pt", "torch/values.pt", "torch/dtypes.pt", "torch/state_dict.bin"}) {
    const std::string bytes = read_bytes(data_path(name));
    size_t read = 0;
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const int change : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff}) {
        std::string damage = bytes;
        damage[at] = static_cast<char>(damage[at] ^ change);
        const auto file = open_bytes(std::move(damage));
        if (file.ok()) read += read_all(*file) != UINT64_MAX;
      }
    }
    EXPECT_GT(read, 0u) << name;
    EXPECT_LT(read, bytes.size() * 9) << name;
  }
}

RC_GTEST_PROP(TorchHostileProperty, DamageGivesAStatusOrAFile, ()) {
  const char* name = *rc::gen::element("torch/views.pt", "torch/values.pt", "torch/dtypes.pt", "torch/state_dict.bin");
  const auto file = open_bytes(damaged(read_bytes(data_path(name))));
  if (file.ok()) {
    RC_ASSERT(read_all(*file) != UINT64_MAX);
    (void)TorchCheckpoint::from_file(*file);
  } else {
    RC_ASSERT(!file.status().message().empty());
  }
}

// The same on the pickle alone, so that the damage is not spent on the archive.
RC_GTEST_PROP(TorchHostileProperty, ADamagedPickleGivesAStatusOrAFile, ()) {
  const auto file = open_bytes(torch_archive(damaged(small_pickle())).build());
  if (file.ok()) RC_ASSERT(read_all(*file) != UINT64_MAX);
}

}  // namespace
}  // namespace aerie
