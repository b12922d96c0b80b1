// Arrow streams by datasets and pyarrow (tools/goldens/make_arrow_goldens.py), what is refused of them, damage, and data sets whose masks
// they hold.
#include "formats/arrow_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>

#include "formats/corrupt_bytes.h"
#include "formats/safetensors.h"
#include "formats/torch_builder.h"
#include "formats/trace_source.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;
using Lists = std::vector<std::vector<int64_t>>;

const std::vector<std::string> kColumns = {"input_ids", "loss_mask"};
const Lists kIds = {{4, 5, 6}, {7, 8}, {}, {1, 2, 3, 128255, 0, 17, 18, 19, 20, 21, 22}, {9}};

// As the script makes them.
Lists masks() {
  Lists out(kIds.size());
  for (size_t i = 0; i < kIds.size(); ++i) {
    for (size_t j = 0; j < kIds[i].size(); ++j) out[i].push_back(static_cast<int64_t>((i * 5 + j) % 3 % 2));
  }
  return out;
}

std::string golden(const std::string& name) { return data_path("arrow/" + name); }

void expect_error(const Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

Expected<ArrowStream> read(std::string bytes, const std::vector<std::string>& columns = kColumns) {
  return ArrowStream::read(MappedFile::from_memory("rows.arrow", std::move(bytes)), columns);
}

Expected<Lists> lists(const ArrowStream& stream, size_t column) {
  Lists out;
  for (uint64_t row = 0; row < stream.rows(); ++row) {
    AERIE_ASSIGN(const ArrowIntegers integers, stream.list(column, row));
    for (size_t i = out.emplace_back().size(); i < integers.size(); ++i) out.back().push_back(integers[i]);
  }
  return out;
}

void expect_rows(const ArrowStream& stream, size_t from, size_t to) {
  const auto part = [&](const Lists& all) {
    return Lists(all.begin() + static_cast<std::ptrdiff_t>(from), all.begin() + static_cast<std::ptrdiff_t>(to));
  };
  EXPECT_EQ(lists(stream, 0).value(), part(kIds)) << stream.path();
  EXPECT_EQ(lists(stream, 1).value(), part(masks())) << stream.path();
}

// `bytes` with the one place where `from` stands changed.
std::string with(std::string bytes, const std::string& from, const std::string& to) {
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos);
  EXPECT_EQ(bytes.find(from, at + 1), std::string::npos);
  return bytes.replace(at, from.size(), to);
}

TEST(ArrowStream, ReadsTheGoldens) {
  const struct {
    const char* name;
    size_t from, to;
  } kGoldens[] = {{"dataset/data-00000-of-00002.arrow", 0, 3},
                  {"dataset/data-00001-of-00002.arrow", 3, 5},
                  {"streams/types.arrow", 0, 5},
                  {"streams/file.arrow", 0, 5},
                  {"streams/empty.arrow", 0, 0}};
  for (const auto& [name, from, to] : kGoldens) {
    const auto stream = ArrowStream::open(golden(name), kColumns);
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    expect_rows(*stream, from, to);
  }
}

TEST(ArrowStream, ReadsEveryIntegerType) {
  const std::vector<std::string> names = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool"};
  const auto stream = ArrowStream::open(golden("streams/integers.arrow"), names);
  ASSERT_TRUE(stream.ok()) << stream.status().message();
  const std::vector<int64_t> small = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, bits = {1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0};
  const Lists extremes = {{-128, 127}, {-32768, 32767}, {INT32_MIN, INT32_MAX}, {INT64_MIN, INT64_MAX},
                          {0, 255},    {0, 65535},      {0, 4294967295},        {0, 1}};
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(lists(*stream, i).value(), (Lists{extremes[i], {}, i == 7 ? bits : small})) << names[i];
  }
}

TEST(ArrowStream, ReadsSlices) {
  const auto sliced = ArrowStream::open(golden("streams/sliced.arrow"), kColumns);
  ASSERT_TRUE(sliced.ok()) << sliced.status().message();
  const Lists all = masks();
  EXPECT_EQ(lists(*sliced, 0).value(), (Lists{kIds[3], kIds[4], kIds[0], kIds[1], kIds[2]}));
  EXPECT_EQ(lists(*sliced, 1).value(), (Lists{all[3], all[4], all[0], all[1], all[2]}));
  // pyarrow lets the offsets of what it writes begin at 0; others need not.
  const std::string end = little(11, 4) + little(12, 4) + little(0, 4) + little(1, 8) + little(2, 8);
  const auto stream = read(with(read_bytes(golden("dataset/data-00001-of-00002.arrow")), little(0, 4) + end, little(9, 4) + end));
  ASSERT_TRUE(stream.ok()) << stream.status().message();
  EXPECT_EQ(lists(*stream, 0).value(), (Lists{{21, 22}, {9}}));
}

TEST(ArrowStream, RefusalsAreNamed) {
  const struct {
    const char* name;
    StatusCode code;
    const char* part;
  } kRefused[] = {
      {"streams/null_list.arrow", StatusCode::kUnsupported,
       "column 'loss_mask': 1 of its 1 lists are null; every row has to have its list"},
      {"streams/null_value.arrow", StatusCode::kUnsupported, "column 'input_ids': 1 of its 1 values are null"},
      {"streams/lz4.arrow", StatusCode::kUnsupported, "message 1 at byte 288: its buffers are compressed (LZ4), which is not read"},
      {"streams/zstd.arrow", StatusCode::kUnsupported, "its buffers are compressed (ZSTD), which is not read; save the data set without"},
      {"streams/dictionary.arrow", StatusCode::kUnsupported, "column 'source': it is dictionary-encoded, which is not read"},
      {"streams/version4.arrow", StatusCode::kUnsupported, "its metadata is of version 4; only 5"},
      {"streams/u64.arrow", StatusCode::kUnsupported,
       "column 'input_ids': it is list of uint64; expected a list or large list of integers"},
      {"streams/float.arrow", StatusCode::kUnsupported, "column 'loss_mask': it is list of float; expected a list"},
      {"streams/not_a_list.arrow", StatusCode::kUnsupported, "column 'loss_mask': it is int; expected a list"},
      {"streams/fixed_list.arrow", StatusCode::kUnsupported, "column 'loss_mask': it is fixed-size list; expected a list"},
      {"streams/no_mask.arrow", StatusCode::kNotFound, "it has no column 'loss_mask'; it has 'input_ids', 'prompt'"},
      {"streams/twice.arrow", StatusCode::kCorrupt, "column 'loss_mask': it is there twice"},
      {"streams/hand_big_endian.arrow", StatusCode::kUnsupported, "the stream is big-endian"},
      {"streams/hand_deep.arrow", StatusCode::kUnsupported, "column 's': it nests deeper than 64 types"},
      {"streams/hand_laughs.arrow", StatusCode::kUnsupported, "column 's': the schema has more than 65536 fields"},
      {"streams/absent.arrow", StatusCode::kNotFound, "no such file"},
      {"dataset/state.json", StatusCode::kCorrupt, "expected a message of an Arrow stream at byte 0, which begins with ffffffff"},
  };
  for (const auto& [name, code, part] : kRefused) {
    const Status status = ArrowStream::open(golden(name), kColumns).status();
    expect_error(status, code, part);
    EXPECT_NE(status.message().find(golden(name) + ": "), std::string::npos) << status.message();
  }
}

TEST(ArrowStream, WhatFollowsTheEndIsRefused) {
  const std::string bytes = read_bytes(golden("streams/sliced.arrow"));
  expect_error(read(bytes + "12345").status(), StatusCode::kCorrupt, "5 bytes follow the stream's end");
  expect_error(read(little(0xffffffff, 4) + little(0, 4)).status(), StatusCode::kCorrupt, "the stream ends without a schema");
  expect_error(read("").status(), StatusCode::kCorrupt, "no end mark after 0 messages; the file is cut off");
  expect_error(read(bytes.substr(0, bytes.size() - 8) + bytes).status(), StatusCode::kCorrupt, "it is of type 1; expected a record batch");
}

TEST(ArrowStream, OffsetsThatLeaveTheColumnAreNamed) {
  const std::string bytes = read_bytes(golden("streams/integers.arrow"));
  const std::string values("\0\1\2\3\4\5\6\7\10\11\12", 11), column = little(0, 4) + little(11, 4) + values;  // of int8, and later of uint8
  for (const auto& [begin, end] : {std::pair(0, 12), {-1, 11}, {11, 10}}) {
    std::string changed = bytes;
    changed.replace(bytes.find(column), 8, little(static_cast<uint32_t>(begin), 4) + little(static_cast<uint32_t>(end), 4));
    const auto stream = read(changed, {"int8"});
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    EXPECT_TRUE(stream->list(0, 1).ok());
    expect_error(stream->list(0, 2).status(), StatusCode::kCorrupt,
                 fmt::format("rows.arrow: row 2: column 'int8': its list spans [{}, {}) of 11 values", begin, end));
  }
}

// What is read of a damaged stream must be there: the sanitizers see what is not.
void visit(const std::string& bytes, const std::vector<std::string>& columns = kColumns) {
  const auto stream = read(bytes, columns);
  if (!stream.ok()) {
    EXPECT_EQ(stream.status().message().rfind("rows.arrow: ", 0), 0u) << stream.status().message();
    return;
  }
  ASSERT_LE(stream->rows(), bytes.size());
  for (size_t column = 0; column < columns.size(); ++column) (void)lists(*stream, column);
}

TEST(ArrowStream, AnyCutIsSeen) {
  for (const char* name : {"dataset/data-00000-of-00002.arrow", "streams/types.arrow", "streams/file.arrow"}) {
    const std::string bytes = read_bytes(golden(name));
    for (size_t size = 0; size < bytes.size(); ++size) {
      const Status status = read(bytes.substr(0, size)).status();
      EXPECT_EQ(status.code(), StatusCode::kCorrupt) << name << " cut to " << size << ": " << status.message();
    }
  }
}

TEST(ArrowStream, NoChangedByteBreaksTheReader) {
  for (const char* name : {"dataset/data-00000-of-00002.arrow", "streams/types.arrow", "streams/file.arrow", "streams/lz4.arrow",
                           "streams/dictionary.arrow"}) {
    const std::string bytes = read_bytes(golden(name));
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const int change : {0x01, 0x08, 0x80, 0xff}) {
        std::string changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ change);
        visit(changed);
      }
    }
  }
}

RC_GTEST_PROP(ArrowStream, NoDamageBreaksTheReader, ()) {
  const char* name =
      *rc::gen::element("dataset/data-00001-of-00002.arrow", "streams/types.arrow", "streams/integers.arrow", "streams/file.arrow");
  const bool is_wide = std::string_view(name) == "streams/integers.arrow";
  visit(damaged(read_bytes(golden(name))), is_wide ? std::vector<std::string>{"bool", "int64", "uint16"} : kColumns);
}

// ---- the masks of speculators' states

class ArrowRows : public testing::Test {
 protected:
  // Row 2 is empty, and no states are stored of such a row.
  ArrowRows() {
    for (const size_t row : {0, 1, 3, 4}) write_states(fmt::format("hidden_states/hs_{}.safetensors", row), kIds[row]);
  }

  void write_states(const std::string& name, const std::vector<int64_t>& tokens) {
    const std::string path = folder_ / name;
    fs::create_directories(fs::path(path).parent_path());
    const std::vector<uint8_t> states(tokens.size() * 2 * 2 * 2);
    const std::span ids(reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size() * sizeof tokens[0]);
    ASSERT_TRUE(write_safetensors(path, {{"hidden_states", DType::kBF16, {tokens.size(), 2, 2}, states},
                                         {"token_ids", DType::kI64, {tokens.size()}, ids}})
                    .ok());
  }

  void copy_dataset(const std::string& to = "") {
    fs::create_directories(folder_ / to);
    fs::copy(golden("dataset"), folder_ / to, fs::copy_options::recursive);
  }

  void copy_shard(const std::string& name, const std::string& to) {
    fs::copy_file(golden(name), folder_ / to, fs::copy_options::overwrite_existing);
  }

  void expect_masks(const Expected<std::unique_ptr<TraceSource>>& source) {
    ASSERT_TRUE(source.ok()) << source.status().message();
    ASSERT_EQ((*source)->size(), 4u);
    const Lists expected = masks();
    for (size_t i = 0; i < 4; ++i) {
      const auto conversation = (*source)->read(i);
      ASSERT_TRUE(conversation.ok()) << conversation.status().message();
      EXPECT_TRUE(conversation->has_mask);
      const std::vector<int64_t>& row = expected[i < 2 ? i : i + 1];
      EXPECT_EQ(conversation->trace.mask, std::vector<uint8_t>(row.begin(), row.end())) << conversation->id;
    }
  }

  Status open_status(const TraceSource::Options& options = {}) { return TraceSource::open(folder_.path(), options).status(); }

  const TempFolder folder_;
};

TEST_F(ArrowRows, AreFoundWithTheirStates) {
  copy_dataset();
  expect_masks(TraceSource::open(folder_.path()));
  expect_masks(TraceSource::open(folder_ / "hidden_states"));
  expect_masks(TraceSource::open(folder_ / "hidden_states/"));
  expect_masks(TraceSource::open(folder_.path(), {"", true}));  // a mask that is there is taken
  for (const char* name : {"state.json", "dataset_info.json"}) fs::remove(folder_ / name);
  expect_masks(TraceSource::open(folder_.path()));
}

TEST_F(ArrowRows, MayLieBesideTheirStates) {
  copy_dataset("hidden_states");
  expect_masks(TraceSource::open(folder_ / "hidden_states"));
  expect_masks(TraceSource::open(folder_.path()));
}

TEST_F(ArrowRows, MayLieInAnotherFolder) {
  copy_dataset("elsewhere");
  expect_error((*TraceSource::open(folder_.path()))->read(0).status(), StatusCode::kInvalidArgument,
               "have no mask, and its rows lie neither beside them nor in the folder above hidden_states: give the folder that datasets");
  expect_masks(TraceSource::open(folder_.path(), {folder_ / "elsewhere", false}));
  expect_error(open_status({folder_ / "hidden_states", false}), StatusCode::kNotFound,
               "hidden_states: it holds no token rows; expected a folder of datasets' save_to_disk");
}

TEST_F(ArrowRows, GiveWayToRowsThatWereGiven) {
  copy_dataset();
  const auto source =
      TraceSource::open(folder_.path(), {folder_.write("rows.jsonl", R"({"input_ids": [4, 5, 6], "loss_mask": [1, 1, 1]})"), false});
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->read(0)->trace.mask, (std::vector<uint8_t>{1, 1, 1}));
}

TEST_F(ArrowRows, ThatDoNotFitAreNamed) {
  copy_dataset();
  write_states("hidden_states/hs_1.safetensors", {7, 9});
  write_states("hidden_states/hs_7.safetensors", {1});
  const auto source = TraceSource::open(folder_.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_TRUE((*source)->read(0).ok());
  expect_error((*source)->read(1).status(), StatusCode::kCorrupt,
               "hs_1.safetensors: " + folder_.path() +
                   ": row 1: its input_ids are not the tokens of the states (2 and 2 tokens): the two are of different data sets");
  expect_error((*source)->read(4).status(), StatusCode::kNotFound, "it has 5 rows, but there are states of row 7");

  std::string bytes = read_bytes(golden("dataset/data-00001-of-00002.arrow"));
  const std::string marks("\0\1\0\0\1\0\0\1\0\0\1", 11);
  folder_.write("data-00001-of-00002.arrow", with(bytes, marks, "\2" + marks.substr(1)));
  const auto other = TraceSource::open(folder_.path());
  ASSERT_TRUE(other.ok()) << other.status().message();
  expect_error((*other)->read(2).status(), StatusCode::kCorrupt, "row 3: loss_mask at position 0 is 2; expected 0 or 1");
  EXPECT_TRUE((*other)->read(3).ok());
}

TEST_F(ArrowRows, ThatCannotBeReadAreNamed) {
  copy_dataset();
  copy_shard("streams/zstd.arrow", "data-00001-of-00002.arrow");
  expect_error(open_status(), StatusCode::kUnsupported, "data-00001-of-00002.arrow: message 1 at byte");
  copy_shard("streams/no_mask.arrow", "data-00001-of-00002.arrow");
  expect_error(open_status(), StatusCode::kNotFound, "data-00001-of-00002.arrow: message 0 at byte 0: it has no column 'loss_mask'");
  const auto without = TraceSource::open(folder_.path(), {"", true});
  ASSERT_TRUE(without.ok()) << without.status().message();
  EXPECT_FALSE((*without)->read(0)->has_mask);
}

TEST_F(ArrowRows, StateJsonSaysWhichShardsThereAreAndInWhichOrder) {
  copy_dataset();
  fs::rename(folder_ / "data-00001-of-00002.arrow", folder_ / "second.arrow");
  folder_.write("cache-0123.arrow", "not read");
  const auto state = [this](const std::string& text) {
    folder_.write("state.json", text);
    return open_status();
  };
  EXPECT_TRUE(state(R"({"_data_files": [{"filename": "data-00000-of-00002.arrow"}, {"filename": "second.arrow"}]})").ok());
  expect_masks(TraceSource::open(folder_.path()));
  EXPECT_TRUE(state(R"({"_data_files": [{"filename": "second.arrow"}, {"filename": "data-00000-of-00002.arrow"}]})").ok());
  expect_error((*TraceSource::open(folder_.path()))->read(0).status(), StatusCode::kCorrupt, "row 0: its input_ids are not the tokens");
  expect_error(state("{"), StatusCode::kCorrupt, "state.json: not valid JSON");
  expect_error(state("[]"), StatusCode::kCorrupt, "state.json: expected an object with _data_files");
  expect_error(state(R"({"_data_files": {}})"), StatusCode::kCorrupt, "state.json: expected an object with _data_files");
  expect_error(state(R"({"_data_files": [{"file": "a"}]})"), StatusCode::kCorrupt, "_data_files: shard 0 has no filename");
  for (const char* name : {"../a.arrow", "/a.arrow", "..", "", "a\\\\b"}) {
    expect_error(state(fmt::format(R"({{"_data_files": [{{"filename": "{}"}}]}})", name)), StatusCode::kCorrupt,
                 "is no plain file name in this folder");
  }
  expect_error(state(R"({"_data_files": [{"filename": "second.arrow"}, {"filename": "second.arrow"}]})"), StatusCode::kCorrupt,
               "the shard 'second.arrow' is named twice");
  expect_error(state(R"({"_data_files": [{"filename": "third.arrow"}]})"), StatusCode::kNotFound, "third.arrow: no such file");
  expect_error(state(R"({"_data_files": [{"filename": "second.arrow"}], "_indices_data_files": [{"filename": "i.arrow"}]})"),
               StatusCode::kUnsupported, "the rows have an order of their own");
}

TEST_F(ArrowRows, AShardThatIsMissingIsSeen) {
  copy_dataset();
  fs::remove(folder_ / "state.json");
  fs::remove(folder_ / "data-00000-of-00002.arrow");
  expect_error(open_status(), StatusCode::kCorrupt, "it has 1 shards, but number 0 of them is 'data-00001-of-00002.arrow'");
  copy_shard("dataset/data-00000-of-00002.arrow", "data-00000-of-00003.arrow");
  expect_error(open_status(), StatusCode::kCorrupt, "it has 2 shards, but number 0 of them is 'data-00000-of-00003.arrow'");
}

}  // namespace
}  // namespace aerie
