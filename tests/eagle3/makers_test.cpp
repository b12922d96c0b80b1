// Parity with the makers' own code: drafters that speculators saved, and drafters put together from transformers' modules, against
// what these packages computed (tools/goldens/make_speculators_goldens.py, make_transformers_draft_goldens.py).
#include <cmath>

#include "draft_fixture.h"
#include "eagle3/convert.h"
#include "eagle3/spec_fields.h"
#include "eagle3/unroll.h"

namespace aerie {
namespace {

using kernels::Isa;

constexpr float kTolerance = 1e-4f;

struct MakersGolden {
  DraftCheckpoint checkpoint;
  std::vector<float> features;             // [L, k*Ht]
  std::vector<int32_t> token_ids;          // [L]
  std::vector<std::vector<float>> logits;  // by step, [L, Vd]
};

std::vector<std::string> makers_goldens(const std::string& maker) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(AERIE_SOURCE_DIR "/tests/eagle3/" + maker)) {
    if (entry.is_directory()) out.push_back(maker + "/" + entry.path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> all_goldens() {
  std::vector<std::string> out = makers_goldens("speculators_data"), more = makers_goldens("transformers_data");
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

void load(const std::string& name, MakersGolden& out) {
  const std::string folder = AERIE_SOURCE_DIR "/tests/eagle3/" + name;
  auto checkpoint = load_spec_golden(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  out.checkpoint = std::move(*checkpoint);
  auto file = SafetensorsFile::open(folder + "/case.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  out.features = to_float(**file->find("features")).value();
  const std::vector<int64_t> ids = to_integers(**file->find("token_ids")).value();
  out.token_ids.assign(ids.begin(), ids.end());
  for (int s = 0; file->has("logits_" + std::to_string(s)); ++s) {
    out.logits.push_back(to_float(**file->find("logits_" + std::to_string(s))).value());
  }
  ASSERT_FALSE(out.logits.empty());
}

std::vector<std::vector<float>> unroll(const MakersGolden& golden, Isa isa, UnrollOptions options) {
  const DraftSpec& spec = golden.checkpoint.spec;
  TargetTables sizes{spec.target_hidden, spec.vocab, *std::max_element(spec.taps.begin(), spec.taps.end()), nullptr, nullptr};
  auto drafter = Drafter::create(golden.checkpoint, sizes, DraftPrecision::kFloat32);
  EXPECT_TRUE(drafter.ok()) << drafter.status().message();
  if (!drafter.ok()) return {};
  ThreadPool pool(2);
  CpuOps ops(table(isa), pool);
  const size_t vocab = static_cast<size_t>(spec.draft_vocab);
  std::vector<std::vector<float>> out(golden.logits.size(), std::vector<float>(golden.token_ids.size() * vocab, NAN));
  options.steps = static_cast<int>(golden.logits.size());
  const Status status =
      unroll_logits(*drafter, ops, golden.features, golden.token_ids, options, [&](int step, int first, int rows, const float* logits) {
        std::copy_n(logits, static_cast<size_t>(rows) * vocab, out[static_cast<size_t>(step)].data() + static_cast<size_t>(first) * vocab);
      });
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

class Makers : public testing::TestWithParam<std::string> {};

TEST_P(Makers, AgreeInFloat32OnEveryIsa) {
  MakersGolden golden;
  load(GetParam(), golden);
  if (HasFatalFailure()) return;
  const DraftSpec& spec = golden.checkpoint.spec;
  const size_t vocab = static_cast<size_t>(spec.draft_vocab), rows = golden.token_ids.size();
  for (const Isa isa : kernels::available_isas()) {
    const auto found = unroll(golden, isa, {.first_position = 1});
    ASSERT_EQ(found.size(), golden.logits.size());
    for (size_t s = 0; s < found.size(); ++s) {
      ASSERT_EQ(golden.logits[s].size(), rows * vocab);
      float worst = 0;
      for (size_t r = 0; r < rows; ++r) {
        // The makers' window moves with the row, not with the step: see the script.
        if (spec.sliding_window != 0 && s > 0 && r + s + 1 > static_cast<size_t>(spec.sliding_window)) continue;
        for (size_t c = 0; c < vocab; ++c) {
          const float error = std::fabs(found[s][r * vocab + c] - golden.logits[s][r * vocab + c]);
          worst = std::isnan(error) ? INFINITY : std::max(worst, error);
        }
      }
      EXPECT_LE(worst, kTolerance) << table(isa).name << ", step " << s;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Makers, testing::ValuesIn(all_goldens()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

// The reader of the speculators dialect makes of its own package's files what the script says that they mean.
TEST(MakersFiles, OfSpeculatorsReadToTheirSpec) {
  const std::vector<std::string> names = makers_goldens("speculators_data");
  ASSERT_EQ(names.size(), 22u);
  for (const std::string& name : names) {
    const std::string folder = AERIE_SOURCE_DIR "/tests/eagle3/" + name;
    const auto read = open_drafter(folder), expected = load_spec_golden(folder);
    ASSERT_TRUE(read.ok() && expected.ok()) << read.status().message() << expected.status().message();
    EXPECT_EQ(differing_fields(read->spec, expected->spec), std::vector<std::string>()) << name;
    // And the writer states every one of them, so that the package would load it again.
    TempFolder dir;
    const Status written = convert_drafter(*read, dir / "d", DraftFormat::kSpeculators, {});
    EXPECT_TRUE(written.ok()) << written.message();
  }
}

TEST(Unroll, RowsAreThoseOfAnyBatchAndOnlyRoundingDependsOnTheFirstPosition) {
  MakersGolden golden;
  load("speculators_data/two_layers", golden);
  if (HasFatalFailure()) return;
  const auto expected = unroll(golden, Isa::kScalar, {});
  for (const int batch : {1, 2, 3}) EXPECT_EQ(unroll(golden, Isa::kScalar, {.batch_rows = batch}), expected) << batch;
  const auto moved = unroll(golden, Isa::kScalar, {.first_position = 1});
  EXPECT_NE(moved, expected);
  for (size_t i = 0; i < expected[2].size(); ++i) EXPECT_NEAR(moved[2][i], expected[2][i], kTolerance);
}

TEST(Unroll, RefusesWhatDoesNotFit) {
  MakersGolden golden;
  load("speculators_data/two_layers", golden);
  if (HasFatalFailure()) return;
  auto drafter = Drafter::create(golden.checkpoint, {16, 40, 9, nullptr, nullptr});
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  ThreadPool pool(1);
  CpuOps ops(kernels::best_kernels(), pool);
  const auto refusal = [&](std::span<const float> features, std::span<const int32_t> ids, const UnrollOptions& options) {
    return unroll_logits(*drafter, ops, features, ids, options, [](int, int, int, const float*) {}).message();
  };
  const std::vector<int32_t> ids(golden.token_ids.size(), 40);
  EXPECT_NE(refusal(golden.features, ids, {}).find("token 0 is 40, outside"), std::string::npos);
  EXPECT_NE(refusal({golden.features.data(), 7}, golden.token_ids, {}).find("7 feature values for 7 tokens, expected 48"),
            std::string::npos);
  EXPECT_NE(refusal({}, {}, {}).find("no rows"), std::string::npos);
  EXPECT_NE(refusal(golden.features, golden.token_ids, {.steps = 0}).find("0 steps"), std::string::npos);
  EXPECT_NE(refusal(golden.features, golden.token_ids, {.steps = 33}).find("33 steps"), std::string::npos);
  EXPECT_NE(refusal(golden.features, golden.token_ids, {.first_position = 2}).find("first position is 2"), std::string::npos);
}

}  // namespace
}  // namespace aerie
