// A diagnosis from the files of other people's trainers, from end to end: the drawn trace is written as each of them would, read, and
// must give the same verdict as Aerie's own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "diagnosis.h"
#include "formats/safetensors.h"
#include "formats/torch_builder.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

enum class Format { kSpeculators, kSpecForge, kModelOpt, kSafeAiLab };

template <class T>
std::string raw_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// The states of the given slots, side by side at each position.
std::vector<uint16_t> states_of(const Trace& trace, const std::vector<int>& slots) {
  std::vector<uint16_t> out;
  for (size_t t = 0; t < trace.length(); ++t) {
    for (const int slot : slots) {
      const auto state = trace.state(t, slot);
      out.insert(out.end(), state.begin(), state.end());
    }
  }
  return out;
}

/// A dictionary of tensors as torch.save writes it.
class TorchDict {
 public:
  TorchDict() { pickle_.raw("}("); }
  void add(const std::string& key, const std::string& storage, const std::vector<int32_t>& shape, const std::string& data) {
    std::vector<int32_t> strides(shape.size(), 1);
    int32_t count = 1;
    for (size_t i = shape.size(); i-- > 0; count *= shape[i]) strides[i] = count;
    pickle_.text(key).tensor(storage, key, count, 0, shape, strides);
    zip_.add("t/data/" + key, data);
  }
  std::string build() {
    ZipBuilder whole;
    whole.add("t/data.pkl", pickle_.raw("u").stop());
    for (const auto& entry : zip_.entries) whole.add(entry.name, entry.data);
    return whole.build();
  }

 private:
  PickleBytes pickle_;
  ZipBuilder zip_;
};

/// Writes `source`, whose boundaries are drawn_slots(), with the taps 1, 4 and 7 and the final state 8. Returns the JSON lines' path.
std::string write(const TempFolder& folder, Format format, const TraceSource& source) {
  const std::string lines = folder / "rows.jsonl", where = folder / "traces";
  std::filesystem::create_directories(where);
  std::ofstream rows(lines);
  const std::vector<int> aux = {1, 3, 5}, final_state = {6}, all = {1, 3, 5, 6};
  for (size_t i = 0; i < source.size(); ++i) {
    const Trace trace = source.read(i)->trace;
    const auto length = static_cast<int32_t>(trace.length());
    const std::vector<int64_t> tokens(trace.tokens.begin(), trace.tokens.end()), mask(trace.mask.begin(), trace.mask.end());
    if (format == Format::kSpeculators) {
      const std::vector<uint16_t> states = states_of(trace, all);
      const auto view = [](const auto& values) {
        return std::span(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof values[0]);
      };
      const Status written = write_safetensors(fmt::format("{}/hs_{}.safetensors", where, i),
                                               {{"hidden_states", DType::kBF16, {trace.length(), 4, 32}, view(states)},
                                                {"token_ids", DType::kI64, {trace.length()}, view(tokens)}});
      EXPECT_TRUE(written.ok()) << written.message();
      rows << nlohmann::json{{"input_ids", trace.tokens}, {"loss_mask", trace.mask}}.dump() << "\n";
      continue;
    }
    TorchDict dict;
    dict.add("input_ids", "LongStorage", {length}, raw_bytes(tokens));
    dict.add("loss_mask", "LongStorage", {length}, raw_bytes(mask));
    if (format == Format::kSpecForge) {
      dict.add("hidden_state", "BFloat16Storage", {1, length, 32}, raw_bytes(states_of(trace, final_state)));
      dict.add("aux_hidden_state", "BFloat16Storage", {1, length, 96}, raw_bytes(states_of(trace, aux)));
      folder.write(fmt::format("traces/data_{}.ckpt", i), dict.build());
    } else if (format == Format::kModelOpt) {
      dict.add("hidden_states", "BFloat16Storage", {length, 32}, raw_bytes(states_of(trace, final_state)));
      dict.add("aux_hidden_states", "BFloat16Storage", {length, 96}, raw_bytes(states_of(trace, aux)));
      folder.write(fmt::format("traces/{}.pt", i), dict.build());
    } else {
      dict.add("hidden_state", "BFloat16Storage", {length, 32}, raw_bytes(states_of(trace, final_state)));
      folder.write(fmt::format("traces/data_{}.ckpt", i), dict.build());
    }
  }
  return lines;
}

struct Diagnosis {
  std::string format;
  std::vector<Finding> findings;
};

/// The drafter has the taps of the format; the doctor is given its files with `fault`.
Diagnosis diagnose_files(Format format, const std::function<void(DraftSpec&)>& fault) {
  ThreadPool pool(1);
  DraftSpec spec = drawn_spec();
  if (format == Format::kSafeAiLab) spec.taps = {8};
  const DraftCheckpoint checkpoint = drawn_checkpoint(spec, 7);
  const TempFolder folder;
  const std::string lines = write(folder, format, *draw_trace(checkpoint, true_reading(spec), {}, pool));
  TraceSource::Options options;
  if (format == Format::kSpeculators) options.rows = lines;
  const auto source = TraceSource::open(folder / "traces", options);
  EXPECT_TRUE(source.ok()) << source.status().message();
  Reading declared;
  declared.spec = spec;
  if (format == Format::kSafeAiLab) declared.spec.taps = {kFinalNormed};  // the trace does not say whether it is normed
  fault(declared.spec);
  const Sample sample = take_sample(**source, declared.spec, {}).value();
  const auto feature = nearest_feature(declared.spec, sample.slots, 0);
  EXPECT_TRUE(feature.ok()) << feature.status().message();
  declared.feature = feature->feature;
  DraftCheckpoint given = checkpoint;
  given.spec = declared.spec;
  auto scorer = ReadingScorer::create(given, declared, drawn_tables(spec), {}, sample, kernels::best_kernels(), pool);
  EXPECT_TRUE(scorer.ok()) << scorer.status().message();
  HypothesisFacts facts;
  facts.slots = sample.slots;
  facts.longest = 44;
  SearchOptions search;
  search.taps.pieces = 24;
  search.taps.rows_per_piece = 16;
  search.taps.context = 44;
  return {(*source)->format(), verdict(search_hypotheses(*scorer, declared, facts, search).value(), 3)};
}

class ForeignTraces : public testing::TestWithParam<Format> {};

TEST_P(ForeignTraces, AHealthyDrafterIsNotAccused) {
  const Diagnosis found = diagnose_files(GetParam(), [](DraftSpec&) {});
  const char* names[] = {"speculators", "SpecForge", "Model-Optimizer", "SafeAILab"};
  EXPECT_EQ(found.format, names[static_cast<int>(GetParam())]);
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].code, "no-fault-found") << found.findings[0].text;
}

TEST_P(ForeignTraces, AFaultIsNamed) {
  const Diagnosis found = diagnose_files(GetParam(), [](DraftSpec& spec) { spec.feedback = Feedback::kPreNorm; });
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].code, "wrong-feedback") << found.findings[0].text;
  EXPECT_EQ(found.findings[0].severity, Severity::kError) << found.findings[0].text;
}

INSTANTIATE_TEST_SUITE_P(Doctor, ForeignTraces,
                         testing::Values(Format::kSpeculators, Format::kSpecForge, Format::kModelOpt, Format::kSafeAiLab));

}  // namespace
}  // namespace aerie
