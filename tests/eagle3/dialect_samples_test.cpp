// A drafter in each dialect, as its makers' programs write it: what the reader makes of it, what it says, and that the forward is the one
// that a second implementation computes (tools/goldens/make_dialect_goldens.py).
#include <cmath>
#include <set>

#include "draft_fixture.h"
#include "eagle3/finding_text.h"
#include "eagle3/spec_fields.h"
#include "eagle3/unroll.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

const std::string kFolder = AERIE_SOURCE_DIR "/tests/eagle3/dialect_data/";

const Json& cases() {
  static const Json all = Json::parse(std::ifstream(kFolder + "manifest.json")).at("cases");
  return all;
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& [name, unused] : cases().items()) out.push_back(name);
  return out;
}

class DialectSample : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    known_.target_blocks = sample().at("blocks");
    const std::string gguf = folder() + "/drafter.gguf";
    auto read = read_drafter(std::filesystem::exists(gguf) ? gguf : folder() + "/drafter", known_);
    ASSERT_TRUE(read.ok()) << read.status().message();
    golden_ = load_golden_case(folder(), std::move(read));
    ASSERT_FALSE(golden_.tokens.empty());
  }

  const Json& sample() const { return cases().at(GetParam()); }
  std::string folder() const { return kFolder + GetParam(); }
  const DraftCheckpoint& checkpoint() const { return golden_.checkpoint; }

  OpenOptions known_;
  DraftGolden golden_;
};

TEST_P(DialectSample, ReadsToWhatItsMakersMean) {
  const Json spec = Json::parse(std::ifstream(folder() + "/spec.json"));
  EXPECT_EQ(differing_fields(golden_spec(spec), checkpoint().spec), std::vector<std::string>());
  EXPECT_EQ(checkpoint().spec.dialect, sample().at("dialect"));
  // Every field says where it was found.
  for (const SpecField& field : spec_fields(checkpoint().spec)) EXPECT_EQ(checkpoint().spec.provenance.count(field.name), 1u) << field.name;
}

TEST_P(DialectSample, SaysWhatIsDoubtfulAndNothingElse) {
  std::set<std::string> found;
  std::string texts;
  for (const Finding& finding : checkpoint().findings) {
    found.insert(finding.code);
    texts += finding_text(finding) + "\n";
  }
  EXPECT_EQ(found, sample().at("findings").get<std::set<std::string>>()) << texts;
}

TEST_P(DialectSample, IsTheForwardOfTheReference) {
  const DraftSpec& spec = checkpoint().spec;
  TargetTables tables = golden_tables(golden_);
  tables.blocks = known_.target_blocks;
  auto drafter = Drafter::create(checkpoint(), tables, DraftPrecision::kFloat32);
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  ThreadPool pool(1);
  CpuOps ops(kernels::best_kernels(), pool);
  std::vector<float> features;
  for (const uint16_t value : golden_.features) features.push_back(bf16_to_f32(value));
  features.resize(features.size() - static_cast<size_t>(spec.feature_width()));
  const std::vector<int32_t> ids(golden_.tokens.begin() + 1, golden_.tokens.end());
  const size_t vocab = static_cast<size_t>(spec.draft_vocab), count = golden_.rows.size();
  float worst = 0;
  size_t compared = 0;
  const Status status =
      unroll_logits(*drafter, ops, features, ids, {.steps = kGoldenSteps}, [&](int step, int first, int rows, const float* logits) {
        for (size_t r = 0; r < count; ++r) {
          const int row = golden_.rows[r] - first;
          if (row < 0 || row >= rows) continue;
          const float* expected = golden_.logits.data() + (static_cast<size_t>(step) * count + r) * vocab;
          for (size_t c = 0; c < vocab; ++c) {
            const float error = std::fabs(logits[static_cast<size_t>(row) * vocab + c] - expected[c]);
            worst = std::isnan(error) ? INFINITY : std::max(worst, error);
            ++compared;
          }
        }
      });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(compared, golden_.logits.size());
  EXPECT_LE(worst, 1e-4f);
}

INSTANTIATE_TEST_SUITE_P(All, DialectSample, testing::ValuesIn(names()), [](const auto& test) { return test.param; });

TEST(DialectSamples, EveryFolderIsACase) {
  std::set<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.is_directory()) folders.insert(entry.path().filename().string());
  }
  const std::vector<std::string> all = names();
  EXPECT_EQ(folders, std::set<std::string>(all.begin(), all.end()));
}

}  // namespace
}  // namespace aerie
