// Traces in other people's formats: torch's own files (tools/goldens/make_torch_goldens.py), and data sets laid out as they do.
#include "formats/trace_source.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "formats/safetensors.h"
#include "formats/tensor.h"
#include "formats/torch_builder.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

void expect_error(const Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

void copy_golden(const std::string& name, const std::string& to) {
  fs::create_directories(fs::path(to).parent_path());
  fs::copy_file(data_path("torch/" + name), to);
}

std::vector<std::string> names(const TraceSource& source) {
  std::vector<std::string> out;
  for (const StateSlot& slot : source.slots()) out.push_back(slot.name());
  return out;
}

float state(const Trace& trace, size_t position, int slot, int channel) {
  return bf16_to_f32(trace.state(position, slot)[static_cast<size_t>(channel)]);
}

const std::vector<int32_t> kTokens = {1, 5, 2, 7, 3};
const std::vector<uint8_t> kMask = {0, 0, 1, 1, 1};

// The goldens count their states: aux value c of position t is 12 t + c, final value c is 100 + 4 t + c.
void expect_golden_states(const Trace& trace) {
  EXPECT_EQ(trace.tokens, kTokens);
  EXPECT_EQ(trace.mask, kMask);
  for (size_t t = 0; t < 5; ++t) {
    for (int c = 0; c < 4; ++c) {
      for (int slot = 0; slot < 3; ++slot) EXPECT_EQ(state(trace, t, slot, c), static_cast<float>(12 * static_cast<int>(t) + 4 * slot + c));
      EXPECT_EQ(state(trace, t, 3, c), static_cast<float>(100 + 4 * static_cast<int>(t) + c));
    }
  }
}

TEST(TraceSource, ReadsSpecForge) {
  const TempFolder folder;
  copy_golden("specforge.ckpt.gz", folder / "rows_0-2000/data_10.ckpt.gz");
  copy_golden("specforge.ckpt", folder / "rows_0-2000/data_9.ckpt");
  copy_golden("dtypes.pt", folder / "vocab_mapping/vocab_mapping.pt");  // d2t and t2d in theirs: no trace
  const auto source = TraceSource::open(folder.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->format(), "SpecForge");
  EXPECT_EQ((*source)->hidden(), 4);
  EXPECT_EQ((*source)->manifest(), nullptr);
  EXPECT_EQ(names(**source), (std::vector<std::string>{"aux 0", "aux 1", "aux 2", "final (after the norm)"}));
  ASSERT_EQ((*source)->size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const auto conversation = (*source)->read(i);
    ASSERT_TRUE(conversation.ok()) << conversation.status().message();
    EXPECT_EQ(conversation->id, i == 0 ? "data_9.ckpt" : "data_10.ckpt.gz");
    EXPECT_TRUE(conversation->has_mask);
    expect_golden_states(conversation->trace);
  }
}

TEST(TraceSource, ReadsModelOptimizer) {
  const TempFolder folder;
  copy_golden("modelopt.pt", folder / "conversation-7.pt");
  const auto source = TraceSource::open(folder.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->format(), "Model-Optimizer");
  EXPECT_EQ(names(**source), (std::vector<std::string>{"aux 0", "aux 1", "aux 2", "final (norm unknown)"}));
  const auto conversation = (*source)->read(0);
  ASSERT_TRUE(conversation.ok()) << conversation.status().message();
  EXPECT_EQ(conversation->id, "conversation-7.pt");
  expect_golden_states(conversation->trace);
}

TEST(TraceSource, ReadsSafeAILab) {
  const auto source = TraceSource::open(data_path("torch/safeailab.ckpt"));  // one file
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->format(), "SafeAILab");
  EXPECT_EQ(names(**source), std::vector<std::string>{"final (norm unknown)"});
  const auto conversation = (*source)->read(0);
  ASSERT_TRUE(conversation.ok()) << conversation.status().message();
  EXPECT_EQ(conversation->trace.tokens, kTokens);
  EXPECT_EQ(conversation->trace.mask, kMask);
  EXPECT_EQ(state(conversation->trace, 2, 0, 3), 111);  // stored as F16
}

// ---- files of torch.save that are no trace, or not like the first

std::vector<TorchField> specforge_fields() {
  return {{"input_ids", "LongStorage", 8, {5}},
          {"loss_mask", "LongStorage", 8, {5}},
          {"hidden_state", "BFloat16Storage", 2, {1, 5, 4}},
          {"aux_hidden_state", "BFloat16Storage", 2, {1, 5, 12}}};
}

TEST(TraceSource, AFirstFileThatIsNoTraceSaysWhatItHolds) {
  const TempFolder folder;
  const auto open = [&folder](const std::vector<TorchField>& fields) {
    return TraceSource::open(folder.write("data_0.ckpt", torch_dict(fields))).status();
  };
  expect_error(open({{"weight", "FloatStorage", 4, {2}}}), StatusCode::kUnsupported,
               "data_0.ckpt: it is no trace that is known: it holds weight; expected input_ids with hidden_state");
  auto fields = specforge_fields();
  fields[3].shape = {1, 5, 13};
  expect_error(open(fields), StatusCode::kCorrupt, "aux_hidden_state has 13 values a position; expected a multiple of 4");
  fields = specforge_fields();
  fields[2].shape = {2, 5, 4};
  expect_error(open(fields), StatusCode::kCorrupt, "hidden_state has shape [2, 5, 4]; expected [T, width] or [1, T, width]");
  fields = specforge_fields();
  fields[2] = {"hidden_state", "IntStorage", 4, {1, 5, 4}};
  expect_error(open(fields), StatusCode::kUnsupported, "hidden_state is I32; expected BF16, F16 or F32");
  expect_error(TraceSource::open(data_path("torch/bare.pt")).status(), StatusCode::kUnsupported, "it holds no named values");
  expect_error(TraceSource::open(data_path("torch/legacy.bin")).status(), StatusCode::kUnsupported, "before 1.6");
}

TEST(TraceSource, ALaterFileMustBeLikeTheFirst) {
  const struct {
    std::function<void(std::vector<TorchField>&)> change;
    std::string expected;
  } kChanges[] = {
      {[](auto& f) { f.erase(f.begin()); }, "it has no tensor input_ids; it holds loss_mask, hidden_state, aux_hidden_state"},
      {[](auto& f) { f[0].shape = {4}; }, "aux_hidden_state has 5 positions for 4 tokens"},
      {[](auto& f) {
         f[0].shape = {5, 1};
       },
       "input_ids is I64 of shape [5, 1]; expected integers of shape [T] or [1, T]"},
      {[](auto& f) {
         f[0] = {"input_ids", "FloatStorage", 4, {5}};
       },
       "input_ids is F32 of shape [5]"},
      {[](auto& f) { f[1].shape = {4}; }, "loss_mask has 4 values for 5 tokens"},
      {[](auto& f) {
         f[2].shape = {1, 5, 2};
       },
       "hidden_state has 2 values a position; the first file has 4"},
      {[](auto& f) {
         f[3].shape = {1, 5, 8};
       },
       "it has 3 states a position; the first file has 4"},
      {[](auto& f) {
         f[3].shape = {1, 5, 9};
       },
       "aux_hidden_state has 9 values a position; expected a multiple of 4"},
      {[](auto& f) { f.pop_back(); }, "it is a trace of SafeAILab but the first file is a trace of SpecForge"},
      {[](auto& f) { f.resize(1); }, "it is no trace but the first file"},
  };
  const TempFolder folder;
  folder.write("data_0.ckpt", torch_dict(specforge_fields()));
  folder.write("data_1.ckpt", torch_dict(specforge_fields()));
  const auto source = TraceSource::open(folder.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_TRUE((*source)->read(1).ok()) << (*source)->read(1).status().message();
  for (const auto& [change, expected] : kChanges) {
    auto fields = specforge_fields();
    change(fields);
    folder.write("data_1.ckpt", torch_dict(fields));
    expect_error((*source)->read(1).status(), StatusCode::kCorrupt, "data_1.ckpt: " + expected);
    EXPECT_TRUE((*source)->read(0).ok());  // one bad file spoils no other
  }
  auto fields = specforge_fields();
  fields.erase(fields.begin() + 1);
  folder.write("data_1.ckpt", torch_dict(fields));
  const auto unmasked = (*source)->read(1);
  ASSERT_TRUE(unmasked.ok()) << unmasked.status().message();
  EXPECT_FALSE(unmasked->has_mask);
  EXPECT_EQ(unmasked->trace.mask, std::vector<uint8_t>(5, 1));
}

TEST(TraceSource, AStateThatIsNotFiniteIsNamed) {
  std::string bytes = read_bytes(data_path("torch/specforge.ckpt"));
  const std::string counted = [] {
    std::string out;
    for (int i = 30; i < 35; ++i) out += little(f32_to_bf16(static_cast<float>(i)), 2);
    return out;
  }();
  const size_t at = bytes.find(counted);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at + 4, 2, "\xc0\x7f");
  const TempFolder folder;
  const auto source = TraceSource::open(folder.write("data_0.ckpt", bytes));
  ASSERT_TRUE(source.ok()) << source.status().message();
  expect_error((*source)->read(0).status(), StatusCode::kCorrupt, "aux_hidden_state at position 2 is not finite");
}

// ---- speculators

class SpeculatorsTraces : public testing::Test {
 protected:
  SpeculatorsTraces() { fs::create_directories(folder_ / "hidden_states"); }

  void write_row(int row, const std::vector<int64_t>& tokens, uint64_t slots = 3, uint64_t hidden = 2, bool mask = false) {
    std::vector<uint16_t> states(tokens.size() * slots * hidden);
    for (size_t i = 0; i < states.size(); ++i) states[i] = f32_to_bf16(static_cast<float>(i));
    const auto bytes = [](const auto& data) {
      return std::span(reinterpret_cast<const uint8_t*>(data.data()), data.size() * sizeof data[0]);
    };
    const std::vector<uint8_t> marks(tokens.size(), 1);
    std::vector<TensorView> tensors = {{"hidden_states", DType::kBF16, {tokens.size(), slots, hidden}, bytes(states)},
                                       {"token_ids", DType::kI64, {tokens.size()}, bytes(tokens)}};
    if (mask) tensors.push_back({"loss_mask", DType::kU8, {tokens.size()}, bytes(marks)});
    ASSERT_TRUE(write_safetensors(folder_ / fmt::format("hidden_states/hs_{}.safetensors", row), tensors).ok());
  }

  Expected<std::unique_ptr<TraceSource>> open(const std::string& rows = "", bool without_mask = false) {
    return TraceSource::open(folder_.path(), {rows, without_mask});
  }

  const TempFolder folder_;
};

TEST_F(SpeculatorsTraces, AreReadWithTheirRows) {
  write_row(0, {4, 5, 6});
  write_row(2, {7, 8});
  folder_.write("hidden_states/hs_0.safetensors.lock", "");
  const auto source = open(folder_.write("rows.jsonl",
                                         "{\"input_ids\": [4, 5, 6], \"loss_mask\": [0, 1, 1], \"seq_len\": 3}\n"
                                         "{\"input_ids\": [1], \"loss_mask\": [1]}\n\n"
                                         "{\"input_ids\": [7, 8], \"loss_mask\": [0, 1]}"));
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->format(), "speculators");
  EXPECT_EQ((*source)->hidden(), 2);
  EXPECT_EQ(names(**source), (std::vector<std::string>{"aux 0", "aux 1", "final (before the norm)"}));
  ASSERT_EQ((*source)->size(), 2u);
  const auto first = (*source)->read(0), second = (*source)->read(1);
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(first->trace.mask, (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_EQ(state(first->trace, 2, 1, 1), 2 * 6 + 2 + 1);
  EXPECT_EQ(second->id, "2");
  EXPECT_EQ(second->trace.tokens, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(second->trace.mask, (std::vector<uint8_t>{0, 1}));
}

TEST_F(SpeculatorsTraces, WithoutRowsSayWhatToDo) {
  write_row(0, {4, 5, 6});
  const auto refused = open();
  ASSERT_TRUE(refused.ok()) << refused.status().message();
  expect_error((*refused)->read(0).status(), StatusCode::kInvalidArgument,
               "give the folder that datasets saved them to, or JSON lines of input_ids");
  const auto taken = open("", true);
  ASSERT_TRUE(taken.ok());
  const auto conversation = (*taken)->read(0);
  ASSERT_TRUE(conversation.ok()) << conversation.status().message();
  EXPECT_FALSE(conversation->has_mask);
  EXPECT_EQ(conversation->trace.mask, std::vector<uint8_t>(3, 1));
  write_row(0, {4, 5, 6}, 3, 2, true);
  EXPECT_TRUE((*refused)->read(0)->has_mask);  // a mask in the row itself
}

TEST_F(SpeculatorsTraces, RowsThatDoNotFitAreNamed) {
  write_row(1, {4, 5});
  const auto read = [this](const std::string& line) {
    const auto source = open(folder_.write("rows.jsonl", "{}\n" + line));
    return source.ok() ? (*source)->read(0).status() : source.status();
  };
  EXPECT_TRUE(read(R"({"input_ids": [4, 5], "loss_mask": [0, 1]})").ok());
  expect_error(read(""), StatusCode::kNotFound, "rows.jsonl: it has 1 rows, but there are states of row 1");
  expect_error(read("[4, 5]"), StatusCode::kCorrupt, "rows.jsonl: row 1: expected an object whose input_ids is a list of integers");
  expect_error(read("{\"input_ids\": [4, "), StatusCode::kCorrupt, "rows.jsonl: row 1: not valid JSON");
  expect_error(read(R"({"input_ids": [4, 5.5], "loss_mask": [0, 1]})"), StatusCode::kCorrupt, "input_ids at position 1 is no integer");
  expect_error(read(R"({"input_ids": [4, 5], "loss_mask": [0]})"), StatusCode::kCorrupt, "loss_mask has 1 values for 2 tokens");
  expect_error(read(R"({"input_ids": [4, 5], "loss_mask": [0, 2]})"), StatusCode::kCorrupt, "loss_mask at position 1 is 2");
  expect_error(read(R"({"input_ids": [4, 6], "loss_mask": [0, 1]})"), StatusCode::kCorrupt, "the two are of different data sets");
  expect_error(read(R"({"input_ids": [4], "loss_mask": [0]})"), StatusCode::kCorrupt, "(1 and 2 tokens)");
  expect_error(open(folder_ / "absent.jsonl").status(), StatusCode::kNotFound, "absent.jsonl");
}

TEST_F(SpeculatorsTraces, FilesThatDoNotFitAreNamed) {
  write_row(0, {4, 5});
  write_row(1, {4, 5}, 4);
  write_row(2, {4, 5}, 3, 3);
  write_row(3, {4, -5});
  const auto source = open("", true);
  ASSERT_TRUE(source.ok());
  expect_error((*source)->read(1).status(), StatusCode::kCorrupt,
               "hs_1.safetensors: hidden_states has shape [2, 4, 2]; the first row has 3 states of 2 values");
  expect_error((*source)->read(2).status(), StatusCode::kCorrupt, "hs_2.safetensors: hidden_states has shape [2, 3, 3]");
  expect_error((*source)->read(3).status(), StatusCode::kCorrupt, "token_ids at position 1 is -5");
  const std::string bytes = read_bytes(folder_ / "hidden_states/hs_0.safetensors");
  folder_.write("hidden_states/hs_0.safetensors", std::string_view(bytes).substr(0, bytes.size() - 1));
  EXPECT_EQ((*source)->read(0).status().code(), StatusCode::kCorrupt);
}

TEST(TraceSource, AFolderOfAerieKeepsItsManifest) {
  TraceManifest manifest;
  manifest.target = {"tiny", std::string(64, 'a'), 4, 100, 6, 1e-5};
  manifest.taps = {0, 5};
  manifest.template_sha256 = std::string(64, 'b');
  manifest.precision = "any";
  const TempFolder folder;
  auto writer = TraceWriter::open(folder.path(), manifest);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  const Trace trace = {{1, 2}, {0, 1}, std::vector<uint16_t>(2 * 3 * 4, 0x3f80), 3, 4};
  ASSERT_TRUE(writer->write_row(7, trace).ok());
  const auto source = TraceSource::open(folder.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->format(), "Aerie");
  EXPECT_EQ(names(**source), (std::vector<std::string>{"embed", "boundary 5", "boundary 6"}));
  ASSERT_NE((*source)->manifest(), nullptr);
  const auto conversation = (*source)->read(0);
  ASSERT_TRUE(conversation.ok()) << conversation.status().message();
  EXPECT_EQ(conversation->id, "7");
  EXPECT_EQ(conversation->trace.states, trace.states);
}

TEST(TraceSource, NothingToReadSaysWhatIsRead) {
  const TempFolder folder;
  expect_error(TraceSource::open(folder.path()).status(), StatusCode::kNotFound,
               "it holds no traces that are read; expected Aerie's manifest.json");
  expect_error(TraceSource::open(folder / "absent").status(), StatusCode::kNotFound, "there are no traces here");
}

}  // namespace
}  // namespace aerie
