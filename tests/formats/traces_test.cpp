#include "formats/traces.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <rapidcheck/gtest.h>
#include <cstring>
#include <functional>

#include "formats/safetensors.h"
#include "formats/tensor.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

TraceManifest manifest_of() {
  TraceManifest manifest;
  manifest.target = {"tiny", std::string(64, 'a'), 4, 100, 6, 1e-5};
  manifest.taps = {0, 2, 5};
  manifest.template_sha256 = std::string(64, 'b');
  manifest.precision = "weights Q4_1, kv F32";
  manifest.aerie_version = "0.1.0";
  manifest.generation = {{"temperature", "0"}, {"max_tokens", "64"}};
  return manifest;
}

// State (position, slot, channel) holds a number that names its place.
Trace trace_of(int length) {
  Trace trace;
  trace.slots = 4;
  trace.hidden = 4;
  for (int t = 0; t < length; ++t) {
    trace.tokens.push_back((t * 7) % 100);
    trace.mask.push_back(t >= 2);
    for (int i = 0; i < 16; ++i) trace.states.push_back(f32_to_bf16(static_cast<float>(16 * t + i)));
  }
  return trace;
}

void expect_equal(const Trace& a, const Trace& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.mask, b.mask);
  EXPECT_EQ(a.states, b.states);
  EXPECT_EQ(a.slots, b.slots);
  EXPECT_EQ(a.hidden, b.hidden);
}

void expect_contains(const Status& status, const std::string& part) {
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST(Traces, ComeBackAsWritten) {
  const TempFolder folder;
  auto writer = TraceWriter::open(folder / "set", manifest_of());
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  for (const int row : {12, 0, 7}) ASSERT_TRUE(writer->write_row(row, trace_of(row + 1)).ok());
  EXPECT_TRUE(writer->has_row(7));
  EXPECT_FALSE(writer->has_row(8));

  const auto reader = TraceReader::open(folder / "set");
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->rows(), (std::vector<int>{0, 7, 12}));
  EXPECT_EQ(reader->manifest().to_json(), manifest_of().to_json());
  const auto trace = reader->read(7);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  expect_equal(*trace, trace_of(8));
  EXPECT_EQ(bf16_to_f32(trace->state(3, 2)[1]), 16 * 3 + 4 * 2 + 1);
  EXPECT_EQ(reader->read(8).status().code(), StatusCode::kNotFound);
}

TEST(Traces, HaveTheLayoutOfTheSpeculatorsFormat) {
  const TempFolder folder;
  auto writer = TraceWriter::open(folder.path(), manifest_of());
  ASSERT_TRUE(writer.ok() && writer->write_row(3, trace_of(5)).ok());
  const auto file = SafetensorsFile::open(folder / "hs_3.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const TensorView &states = **file->find("hidden_states"), &tokens = **file->find("token_ids"), &mask = **file->find("loss_mask");
  EXPECT_EQ(states.type, DType::kBF16);
  EXPECT_EQ(states.shape, (std::vector<uint64_t>{5, 4, 4}));
  EXPECT_EQ(tokens.type, DType::kI64);
  EXPECT_EQ(tokens.shape, (std::vector<uint64_t>{5}));
  EXPECT_EQ(mask.type, DType::kU8);
  EXPECT_EQ(mask.shape, (std::vector<uint64_t>{5}));
  int64_t token;
  std::memcpy(&token, tokens.data.data() + 8 * 4, 8);
  EXPECT_EQ(token, 28);
  EXPECT_EQ((*to_float(states))[16 * 4 + 9], 16 * 4 + 9);
}

RC_GTEST_PROP(TracesProperty, ComeBackAsWritten, ()) {
  const TempFolder folder;
  TraceManifest manifest = manifest_of();
  manifest.target.hidden = *rc::gen::inRange(1, 9);
  manifest.taps = *rc::gen::nonEmpty(rc::gen::unique<std::vector<int>>(rc::gen::inRange(0, 7)));
  const size_t length = *rc::gen::inRange<size_t>(1, 12);
  Trace trace;
  trace.slots = manifest.slots();
  trace.hidden = manifest.target.hidden;
  trace.tokens = *rc::gen::container<std::vector<int32_t>>(length, rc::gen::inRange(0, 100));
  trace.mask = *rc::gen::container<std::vector<uint8_t>>(length, rc::gen::inRange<uint8_t>(0, 2));
  const size_t values = length * static_cast<size_t>(trace.slots * trace.hidden);
  trace.states = *rc::gen::container<std::vector<uint16_t>>(
      values, rc::gen::map(rc::gen::arbitrary<uint16_t>(), [](uint16_t s) { return (s & 0x7f80) == 0x7f80 ? uint16_t{0} : s; }));

  auto writer = TraceWriter::open(folder.path(), manifest);
  RC_ASSERT(writer.ok());
  RC_ASSERT(writer->write_row(0, trace).ok());
  const auto reader = TraceReader::open(folder.path());
  RC_ASSERT(reader.ok());
  const auto got = reader->read(0);
  if (!got.ok()) RC_FAIL(got.status().message());
  RC_ASSERT(got->tokens == trace.tokens);
  RC_ASSERT(got->mask == trace.mask);
  RC_ASSERT(got->states == trace.states);
}

TEST(Traces, AFolderIsJoinedAndGoesOn) {
  const TempFolder folder;
  {
    auto first = TraceWriter::open(folder.path(), manifest_of());
    ASSERT_TRUE(first.ok() && first->write_row(1, trace_of(3)).ok());
  }
  TraceManifest again = manifest_of();
  again.target.name = "tiny, elsewhere";  // for people alone
  again.aerie_version = "9.9";
  auto second = TraceWriter::open(folder.path(), again);
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_TRUE(second->has_row(1));
  ASSERT_TRUE(second->write_row(2, trace_of(4)).ok());
  const auto reader = TraceReader::open(folder.path());
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->rows(), (std::vector<int>{1, 2}));
  EXPECT_TRUE(reader->read(1).ok() && reader->read(2).ok());
}

TEST(Traces, MixingIsRefusedAndNamesFieldAndBothValues) {
  const struct {
    std::function<void(TraceManifest&)> change;
    std::string expected;
  } kChanges[] = {
      {[](auto& m) { m.target.sha256 = std::string(64, 'c'); },
       "target.sha256 differs: " + std::string(64, 'c') + " here, " + std::string(64, 'a') + " there"},
      {[](auto& m) { m.target.hidden = 8; }, "target.hidden differs: 8 here, 4 there"},
      {[](auto& m) { m.target.vocab = 101; }, "target.vocab differs: 101 here, 100 there"},
      {[](auto& m) { m.target.blocks = 7; }, "target.blocks differs: 7 here, 6 there"},
      {[](auto& m) { m.target.eps = 1e-6; }, "target.eps differs: 1e-06 here, 1e-05 there"},
      {[](auto& m) {
         m.taps = {2, 5, 6};
       },
       "taps differs: [2, 5, 6] here, [0, 2, 5] there"},
      {[](auto& m) {
         m.taps = {2, 0, 5};
       },
       "taps differs: [2, 0, 5] here, [0, 2, 5] there"},  // the order has meaning
      {[](auto& m) { m.template_sha256 = std::string(64, 'd'); }, "template_sha256 differs: "},
      {[](auto& m) { m.precision = "weights Q8_0, kv F32"; }, "precision differs: weights Q8_0, kv F32 here, weights Q4_1, kv F32 there"},
  };
  const TempFolder folder;
  ASSERT_TRUE(TraceWriter::open(folder.path(), manifest_of()).ok());
  EXPECT_TRUE(manifest_of().check_same_source(manifest_of()).ok());
  for (const auto& [change, expected] : kChanges) {
    TraceManifest other = manifest_of();
    change(other);
    const Status status = other.check_same_source(manifest_of());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    expect_contains(status, expected);
    EXPECT_NE(other.source_id(), manifest_of().source_id()) << expected;
    const auto writer = TraceWriter::open(folder.path(), other);
    ASSERT_FALSE(writer.ok()) << expected;
    expect_contains(writer.status(), folder.path());
    expect_contains(writer.status(), expected);
  }
  TraceManifest sampled = manifest_of();
  sampled.generation["temperature"] = "1";
  EXPECT_TRUE(sampled.check_same_source(manifest_of()).ok());  // two sets may train one drafter; one folder tells one story
  expect_contains(TraceWriter::open(folder.path(), sampled).status(), "generation differs");
}

TEST(Traces, ARowCopiedFromAnotherSetIsNoticed) {
  const TempFolder folder;
  TraceManifest other = manifest_of();
  other.taps = {1, 2, 5};
  auto writer = TraceWriter::open(folder / "one", other);
  ASSERT_TRUE(writer.ok() && writer->write_row(0, trace_of(3)).ok());
  ASSERT_TRUE(TraceWriter::open(folder / "two", manifest_of()).ok());
  std::filesystem::copy_file(folder / "one/hs_0.safetensors", folder / "two/hs_0.safetensors");
  const auto reader = TraceReader::open(folder / "two");
  ASSERT_TRUE(reader.ok());
  expect_contains(reader->read(0).status(), "hs_0.safetensors: this row comes from another data set");
}

TEST(Traces, HalfWrittenRowsAreNotSeenAndCleared) {
  const TempFolder folder;
  ASSERT_TRUE(TraceWriter::open(folder.path(), manifest_of()).ok());
  const std::string dead = folder.write("hs_4.safetensors.tmp.2147483647", "half");  // beyond any process number
  const std::string running = folder.write("hs_5.safetensors.tmp." + std::to_string(::getppid()), "half");
  const std::string foreign = folder.write("notes.tmp.2147483647", "mine");
  for (const char* name :
       {"hs_007.safetensors", "hs_.safetensors", "hs_-1.safetensors", "hs_99999999999.safetensors", "hs_1.safetensors.bak"}) {
    folder.write(name, "x");
  }
  const auto reader = TraceReader::open(folder.path());
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE(reader->rows().empty());
  const auto writer = TraceWriter::open(folder.path(), manifest_of());
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE(writer->rows().empty());
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(running));
  EXPECT_TRUE(std::filesystem::exists(foreign));
}

TEST(Traces, AFolderWithoutAManifestIsNotGuessedAt) {
  const TempFolder folder;
  folder.write("hs_0.safetensors", "x");
  expect_contains(TraceWriter::open(folder.path(), manifest_of()).status(), "it has rows but no manifest.json");
  EXPECT_EQ(TraceReader::open(folder.path()).status().code(), StatusCode::kNotFound);
  folder.write("manifest.json", "{");
  expect_contains(TraceWriter::open(folder.path(), manifest_of()).status(), "manifest.json: not valid JSON");
  expect_contains(TraceWriter::open(folder / "hs_0.safetensors", manifest_of()).status(), "hs_0.safetensors");
}

TEST(Traces, WriterRefusesWhatContradictsTheManifest) {
  const struct {
    std::function<void(Trace&)> change;
    std::string expected;
  } kChanges[] = {
      {[](auto& t) {
         t = Trace{{}, {}, {}, 4, 4};
       },
       "the row has no tokens"},
      {[](auto& t) { t.slots = 3; }, "a position holds 3 states of 4 values; the manifest says 4 of 4"},
      {[](auto& t) { t.hidden = 2; }, "a position holds 4 states of 2 values"},
      {[](auto& t) { t.mask.pop_back(); }, "loss_mask has 4 values for 5 tokens"},
      {[](auto& t) { t.states.pop_back(); }, "hidden_states has 79 values; 5 tokens of 4 states of 4 take 80"},
      {[](auto& t) { t.tokens[3] = 100; }, "token_ids at position 3 is 100; expected 0 to 99"},
      {[](auto& t) { t.tokens[3] = -1; }, "token_ids at position 3 is -1"},
      {[](auto& t) { t.mask[1] = 2; }, "loss_mask at position 1 is 2; expected 0 or 1"},
      {[](auto& t) { t.states[16 * 2 + 4 * 3 + 1] = 0x7fc0; }, "hidden_states at position 2, slot 3, is not finite"},
      {[](auto& t) { t.states[0] = 0xff80; }, "hidden_states at position 0, slot 0, is not finite"},
  };
  const TempFolder folder;
  auto writer = TraceWriter::open(folder.path(), manifest_of());
  ASSERT_TRUE(writer.ok());
  for (const auto& [change, expected] : kChanges) {
    Trace trace = trace_of(5);
    change(trace);
    const Status status = writer->write_row(0, trace);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    expect_contains(status, "hs_0.safetensors: " + expected);
    EXPECT_FALSE(writer->has_row(0));
  }
  EXPECT_EQ(writer->write_row(-1, trace_of(5)).code(), StatusCode::kInvalidArgument);
}

TEST(Traces, ReaderRefusesRowsThatAreNotWhatTheManifestSays) {
  const std::vector<int64_t> tokens = {1, 2}, beyond = {1, 1ll << 40};
  const std::vector<uint16_t> states(2 * 16), with_nan = [] {
    std::vector<uint16_t> s(2 * 16);
    s[17] = 0x7fc1;
    return s;
  }();
  const std::vector<uint8_t> mask = {0, 1}, bad_mask = {0, 9}, short_mask = {0};
  const auto view = [](const char* name, DType type, std::vector<uint64_t> shape, const auto& data) {
    return TensorView{name, type, std::move(shape), {reinterpret_cast<const uint8_t*>(data.data()), data.size() * sizeof data[0]}};
  };
  const TensorView t = view("token_ids", DType::kI64, {2}, tokens), m = view("loss_mask", DType::kU8, {2}, mask);
  const TensorView s = view("hidden_states", DType::kBF16, {2, 4, 4}, states);
  const struct {
    std::vector<TensorView> tensors;
    std::string expected;
  } kRows[] = {
      {{s, m}, "there is no tensor 'token_ids'"},
      {{t, m}, "there is no tensor 'hidden_states'"},
      {{t, s}, "there is no tensor 'loss_mask'"},
      {{t, s, m, view("extra", DType::kU8, {2}, mask)}, "it holds 4 tensors"},
      {{t, view("hidden_states", DType::kF16, {2, 4, 4}, states), m}, "hidden_states is F16 of shape [2, 4, 4]; expected BF16 of 3"},
      {{t, view("hidden_states", DType::kBF16, {2, 16}, states), m}, "hidden_states is BF16 of shape [2, 16]; expected BF16 of 3"},
      {{t, view("hidden_states", DType::kBF16, {2, 2, 8}, states), m}, "2 tokens go with hidden_states [2, 4, 4]"},
      {{t, s, view("loss_mask", DType::kU8, {1}, short_mask)}, "loss_mask [2] but found [2, 4, 4] and [1]"},
      {{view("token_ids", DType::kI64, {2}, beyond), s, m}, "token_ids at position 1 is 1099511627776; expected 0 to 99"},
      {{t, s, view("loss_mask", DType::kU8, {2}, bad_mask)}, "loss_mask at position 1 is 9"},
      {{t, view("hidden_states", DType::kBF16, {2, 4, 4}, with_nan), m}, "hidden_states at position 1, slot 0, is not finite"},
  };
  const TempFolder folder;
  ASSERT_TRUE(TraceWriter::open(folder.path(), manifest_of()).ok());
  const std::string path = folder / "hs_0.safetensors";
  ASSERT_TRUE(write_safetensors(path, {s, t, m}).ok());  // any order; no source of ours: another program's row
  const auto reader = TraceReader::open(folder.path());
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(reader->read(0).ok()) << reader->read(0).status().message();
  for (const auto& [tensors, expected] : kRows) {
    ASSERT_TRUE(write_safetensors(path, tensors).ok()) << expected;
    expect_contains(reader->read(0).status(), expected);
    expect_contains(reader->read(0).status(), path);
  }
  const std::string cut = read_bytes(path);
  folder.write("hs_0.safetensors", std::string_view(cut).substr(0, cut.size() - 1));
  EXPECT_EQ(reader->read(0).status().code(), StatusCode::kCorrupt);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) {
    ADD_FAILURE() << "the manifest has no " << from;
    return text;
  }
  return text.replace(at, from.size(), to);
}

TEST(TraceManifestText, NamesItsBoundaries) {
  const std::string text = manifest_of().to_json();
  for (const char* part : {"\"embed\"", "\"boundary 2\"", "\"boundary 6\"", "\"format_version\": 1", "\"eps\": 1e-05"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  const auto parsed = TraceManifest::from_json(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->to_json(), text);
  EXPECT_EQ(parsed->source_id(), manifest_of().source_id());
}

TEST(TraceManifestText, ErrorsNameTheKey) {
  const std::string text = manifest_of().to_json();
  const struct {
    const char *from, *to, *expected;
  } kChanges[] = {
      {"\"format_version\": 1", "\"format_version\": 2", "format_version is 2; this program reads 1"},
      {"\"format_version\"", "\"version\"", "key format_version is missing"},
      {"\"hidden\": 4", "\"hidden\": \"4\"", "key target.hidden should be number but is string"},
      {"\"hidden\": 4", "\"hidden\": -4", "key target.hidden should"},
      {"\"hidden\": 4", "\"hidden\": 0", "target.hidden is 0; expected 1 to"},
      {"\"hidden\": 4", "\"hidden\": 4294967300", "key target.hidden should hold an integer from 0 to 2147483647"},
      {"\"eps\": 1e-05", "\"eps\": null", "key target.eps should be number but is null"},
      {"\"eps\": 1e-05", "\"eps\": -1", "target.eps is -1"},
      {"aaaaaaaa", "AAAAAAAA", "target.sha256 is 'AAAAAAAA"},
      {"bbbbbbbb", "b", "template_sha256 is 'b"},
      {"\"taps\"", "\"tap\"", "key taps is missing"},
      {"    0,\n    2,", "    0,\n    -2,", "key taps should hold an integer"},
      {"    0,\n    2,", "    0,\n    7,", "taps names boundary 7; expected 0 to 6"},
      {"    0,\n    2,", "    2,\n    2,", "taps [2, 2, 5] names a boundary twice"},
      {"    0,\n    2,", "    0,\n    3,", "slot_names should be [\"embed\",\"boundary 3\",\"boundary 5\",\"boundary 6\"]"},
      {"\"temperature\": \"0\"", "\"temperature\": 0", "key generation.'temperature' should be string but is number"},
      {"\"precision\"", "\"precisions\"", "key precision is missing"},
      {"{", "[{", "not valid JSON"},
  };
  for (const auto& [from, to, expected] : kChanges) expect_contains(TraceManifest::from_json(replaced(text, from, to)).status(), expected);
  expect_contains(TraceManifest::from_json("[]").status(), "format_version: expected an object around it");
}

TEST(TraceManifestText, MeaninglessFieldsAreNotWritten) {
  const TempFolder folder;
  TraceManifest manifest = manifest_of();
  manifest.taps.clear();
  expect_contains(TraceWriter::open(folder / "set", manifest).status(), "taps is empty");
  EXPECT_FALSE(std::filesystem::exists(folder / "set"));
}

}  // namespace
}  // namespace aerie
