#include "eagle3/draft_spec.h"

#include "draft_fixture.h"
#include "eagle3/spec_fields.h"

namespace aerie {
namespace {

TEST(DraftSpec, ValidatesAndNamesTheFieldThatIsWrong) {
  EXPECT_TRUE(tiny_spec().validate().ok()) << tiny_spec().validate().message();
  struct Fault {
    const char* field;
    void (*break_it)(DraftSpec&);
  };
  const Fault faults[] = {
      {"taps is empty", [](DraftSpec& s) { s.taps.clear(); }},
      {"taps has 100 entries", [](DraftSpec& s) { s.taps.assign(100, 1); }},
      {"taps holds -2",
       [](DraftSpec& s) {
         s.taps = {2, -2};
       }},
      {"target_hidden is 0", [](DraftSpec& s) { s.target_hidden = 0; }},
      {"hidden is -4", [](DraftSpec& s) { s.hidden = -4; }},
      {"hidden is 2000000000", [](DraftSpec& s) { s.hidden = 2'000'000'000; }},
      {"heads is 0", [](DraftSpec& s) { s.heads = 0; }},
      {"kv_heads is 0", [](DraftSpec& s) { s.kv_heads = 0; }},
      {"not a multiple of kv_heads", [](DraftSpec& s) { s.kv_heads = 3; }},
      {"head_dim is 0", [](DraftSpec& s) { s.head_dim = 0; }},
      {"rope_dim is 8, expected an even value from 2 to head_dim, which is 7", [](DraftSpec& s) { s.head_dim = 7; }},
      {"rope_dim is 3", [](DraftSpec& s) { s.rope_dim = 3; }},
      {"layers is 0", [](DraftSpec& s) { s.layers = 0; }},
      {"sliding_window is -1", [](DraftSpec& s) { s.sliding_window = -1; }},
      {"logit_scale is 0", [](DraftSpec& s) { s.logit_scale = 0; }},
      {"attention_scale is nan", [](DraftSpec& s) { s.attention_scale = NAN; }},
      {"has_fc is false", [](DraftSpec& s) { s.has_fc = false; }},
      {"rope_scaling.factor is 0", [](DraftSpec& s) { s.rope_scaling = {.kind = RopeScalingKind::kLinear, .factor = 0}; }},
      {"rope_scaling.original_max_positions is 0", [](DraftSpec& s) { s.rope_scaling.kind = RopeScalingKind::kYarn; }},
      {"low_freq_factor and high_freq_factor are both 2",
       [](DraftSpec& s) {
         s.rope_scaling = {.kind = RopeScalingKind::kLlama3, .original_max_positions = 8, .low_freq_factor = 2, .high_freq_factor = 2};
       }},
      {"kv_rank is 0", [](DraftSpec& s) { s.attention = AttentionKind::kMla; }},
      {"expected nope_dim + rope_dim = 4 + 8",
       [](DraftSpec& s) {
         s.attention = AttentionKind::kMla;
         s.kv_rank = 4, s.nope_dim = 4, s.v_dim = 4;
       }},
      {"intermediate is 0", [](DraftSpec& s) { s.intermediate = 0; }},
      {"max_positions is 0", [](DraftSpec& s) { s.max_positions = 0; }},
      {"rope_theta is 0", [](DraftSpec& s) { s.rope_theta = 0; }},
      {"rope_theta is inf", [](DraftSpec& s) { s.rope_theta = INFINITY; }},
      {"rms_eps is nan", [](DraftSpec& s) { s.rms_eps = NAN; }},
      {"vocab is 0", [](DraftSpec& s) { s.vocab = 0; }},
      {"draft_vocab is 0", [](DraftSpec& s) { s.draft_vocab = 0; }},
      {"draft_vocab is 11", [](DraftSpec& s) { s.draft_vocab = 11; }},
      {"d2t is missing", [](DraftSpec& s) { s.d2t.clear(); }},
      {"d2t has 5 entries", [](DraftSpec& s) { s.d2t.pop_back(); }},
      {"draft token 2 to target token 10", [](DraftSpec& s) { s.d2t[2] = 10; }},
      {"draft token 0 to target token -1", [](DraftSpec& s) { s.d2t[0] = -1; }},
      {"draft tokens 1 and 4 to the same target token 2", [](DraftSpec& s) { s.d2t[4] = 2; }},
      {"own_embedding is false", [](DraftSpec& s) { s.own_embedding = false; }},
      {"own_head is false", [](DraftSpec& s) { s.own_head = false; }},
  };
  for (const Fault& fault : faults) {
    DraftSpec spec = tiny_spec();
    fault.break_it(spec);
    const Status status = spec.validate();
    EXPECT_FALSE(status.ok()) << fault.field;
    EXPECT_NE(status.message().find(fault.field), std::string::npos) << status.message();
  }
}

TEST(DraftSpec, AnEmptyMapIsTheIdentity) {
  DraftSpec spec = tiny_spec();
  spec.draft_vocab = spec.vocab;
  spec.d2t.clear();
  EXPECT_TRUE(spec.validate().ok());
  EXPECT_EQ(spec.to_target(7), 7);
  const auto inverse = invert_d2t(spec);
  for (int t = 0; t < spec.vocab; ++t) EXPECT_EQ(inverse[static_cast<size_t>(t)], t);
}

TEST(DraftSpec, InvertsItsVocabularyMap) { EXPECT_EQ(invert_d2t(tiny_spec()), (std::vector<int32_t>{0, -1, 1, 2, -1, 3, -1, 4, -1, 5})); }

TEST(DraftSpec, TellsWhichTargetItFits) {
  const DraftSpec spec = tiny_spec();
  EXPECT_TRUE(check_fits_target(spec, 12, 10, 3).ok());
  const auto message = [&](int hidden, int vocab, int blocks) { return check_fits_target(spec, hidden, vocab, blocks).message(); };
  EXPECT_NE(message(16, 10, 3).find("hidden width 12, this target has 16"), std::string::npos);
  EXPECT_NE(message(12, 11, 3).find("vocabulary of 10 tokens, this target has 11"), std::string::npos);
  EXPECT_NE(message(12, 10, 2).find("boundary 3, this target has only 2 blocks"), std::string::npos);
}

TEST(DraftSpec, NamesEveryDifferenceBetweenTwoForwards) {
  EXPECT_TRUE(differing_fields(tiny_spec(), tiny_spec()).empty());
  DraftSpec other = tiny_spec();
  other.taps = {1, 4};
  other.feature_norm = FeatureNorm::kPerTap;
  other.feedback = Feedback::kPreNorm;
  other.norm_before_residual = false;
  other.rope_theta = 1e6f;
  other.d2t[5] = 8;
  const std::vector<std::string> expected = {"taps: 1,3 against 1,4",
                                             "feature_norm: concat against per-tap",
                                             "norm_before_residual: true against false",
                                             "feedback: post-norm against pre-norm",
                                             "rope_theta: 10000 against 1000000",
                                             "d2t: 1 of 6 entries"};
  EXPECT_EQ(differing_fields(tiny_spec(), other), expected);
  other = tiny_spec();
  other.path = "elsewhere";
  EXPECT_TRUE(differing_fields(tiny_spec(), other).empty());
}

}  // namespace
}  // namespace aerie
