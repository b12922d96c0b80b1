// A drafter beside its target: is it that target's, and is its embedding a real one?
#include "eagle3/target_fit.h"

#include "draft_fixture.h"
#include "eagle3/finding_text.h"

namespace aerie {
namespace {

/// A table [rows, cols] with the lengths and the common direction that training leaves, or without them.
std::vector<float> table_of(uint64_t rows, uint64_t cols, bool trained, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(rows * cols);
  for (uint64_t r = 0; r < rows; ++r) {
    const float length = trained ? 0.5f + static_cast<float>(r % 7) * 0.2f : 0.02f;
    for (uint64_t c = 0; c < cols; ++c) out[r * cols + c] = length * (normal(random) + (trained && c % 5 == 0 ? 1.0f : 0.0f));
  }
  return out;
}

TensorView view_of(const std::vector<float>& values, uint64_t rows) {
  return {"embed_tokens", DType::kF32, {rows, values.size() / rows}, {reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4}};
}

/// "error another-target", in the given order.
std::vector<std::string> codes(const Expected<std::vector<Finding>>& findings) {
  EXPECT_TRUE(findings.ok()) << findings.status().message();
  std::vector<std::string> out;
  for (const Finding& finding : *findings) out.push_back(std::string(severity_name(finding.severity)) + " " + finding.code);
  return out;
}

using Codes = std::vector<std::string>;

TEST(TargetFit, AnEmbeddingThatWasNeverTrainedIsSeen) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    DraftCheckpoint checkpoint;
    const std::vector<float> random = table_of(600, 64, false, seed), trained = table_of(600, 64, true, seed);
    EXPECT_EQ(codes(embedding_findings(checkpoint)), Codes());
    checkpoint.tensors["embed_tokens"] = view_of(random, 600);
    EXPECT_EQ(codes(embedding_findings(checkpoint)), Codes{"warning embedding-random"}) << seed;
    checkpoint.tensors["embed_tokens"] = view_of(trained, 600);
    EXPECT_EQ(codes(embedding_findings(checkpoint)), Codes()) << seed;
  }
}

/// Each initialiser in use: normal, uniform, normal cut at two deviations; and a table of zeros, which is none.
TEST(TargetFit, WhateverInitialisedIt) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(-0.02f, 0.02f);
  const std::function<float()> initialisers[] = {[&] { return 0.02f * normal(random); }, [&] { return uniform(random); },
                                                 [&] {
                                                   float value = 3.0f;
                                                   while (std::abs(value) > 2.0f) value = normal(random);
                                                   return value;
                                                 }};
  for (const auto& draw : initialisers) {
    std::vector<float> table(400 * 64);
    for (float& value : table) value = draw();
    DraftCheckpoint checkpoint;
    checkpoint.tensors["embed_tokens"] = view_of(table, 400);
    EXPECT_EQ(codes(embedding_findings(checkpoint)), Codes{"warning embedding-random"});
    std::fill(table.begin(), table.end(), 0.0f);
    EXPECT_EQ(codes(embedding_findings(checkpoint)), Codes());
  }
}

TEST(TargetFit, AnotherTargetALongerContextAndAnotherTableAreFindings) {
  DraftCheckpoint checkpoint;
  checkpoint.spec = tiny_spec();  // Ht 12, V 10, taps 1 and 3, 256 positions
  TargetFacts target = {.hidden = 12, .vocab = 10, .blocks = 4, .context = 256};
  EXPECT_EQ(codes(target_findings(checkpoint, target)), Codes());
  target.context = 257;
  EXPECT_EQ(codes(target_findings(checkpoint, target)), Codes{"warning context-longer-than-trained"});
  for (int TargetFacts::*member : {&TargetFacts::hidden, &TargetFacts::vocab, &TargetFacts::blocks}) {
    TargetFacts other = target;
    other.*member = 2;
    EXPECT_EQ(codes(target_findings(checkpoint, other)), Codes{"error another-target"});
  }
  target.context = 0;
  const std::vector<float> ours = table_of(10, 12, true, 1), theirs = table_of(10, 12, false, 2);
  const TensorView same = view_of(ours, 10), other = view_of(theirs, 10);
  checkpoint.tensors["embed_tokens"] = same;
  target.embedding = &same;
  EXPECT_EQ(codes(target_findings(checkpoint, target)), Codes());
  target.embedding = &other;
  EXPECT_EQ(codes(target_findings(checkpoint, target)), Codes{"warning embedding-not-the-targets"});
}

TEST(TargetFit, ARandomTableBesideTheTargetsIsAnError) {
  DraftCheckpoint checkpoint;
  checkpoint.spec = tiny_spec();
  checkpoint.spec.vocab = 600;
  const std::vector<float> random = table_of(600, 64, false, 3), trained = table_of(600, 64, true, 4);
  const TensorView target_table = view_of(trained, 600);
  checkpoint.tensors["embed_tokens"] = view_of(random, 600);
  const TargetFacts target = {.hidden = 12, .vocab = 600, .blocks = 4, .embedding = &target_table};
  EXPECT_EQ(codes(target_findings(checkpoint, target)), Codes{"error embedding-not-the-targets"});
}

TEST(TargetFit, AnEmbeddingThatIsTheTargetsButForRoundingCanBeLeftOut) {
  const std::vector<float> table = table_of(200, 64, true, 5);
  std::vector<float> rounded = table, other = table;
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (float& value : rounded) value += 0.05f * value * normal(random);
  for (size_t i = 0; i < 64; ++i) other[i] = -other[i];  // one row alone
  const TensorView target_table = view_of(table, 200);
  const TargetFacts target = {.embedding = &target_table};
  for (const auto& [values, same] : {std::pair(&table, true), {&rounded, true}, {&other, false}}) {
    DraftCheckpoint checkpoint;
    checkpoint.spec.own_embedding = true;
    checkpoint.tensors["embed_tokens"] = view_of(*values, 200);
    const auto dropped = drop_targets_embedding(checkpoint, target);
    ASSERT_TRUE(dropped.ok()) << dropped.status().message();
    EXPECT_EQ(*dropped, same);
    EXPECT_EQ(checkpoint.spec.own_embedding, !same);
    EXPECT_EQ(checkpoint.tensors.count("embed_tokens"), same ? 0u : 1u);
    EXPECT_FALSE(*drop_targets_embedding(checkpoint, TargetFacts()));
  }
}

TEST(TargetFit, AThetaThatIsNotTheTargetsIsSaidWhereItWasStated) {
  DraftCheckpoint checkpoint;
  checkpoint.spec = tiny_spec();  // theta 10000
  TargetFacts target = {.hidden = 12, .vocab = 10, .blocks = 4, .rope_theta = 10000.0f};
  EXPECT_EQ(codes(target_findings(checkpoint, target)), Codes());
  target.rope_theta = 1e6f;
  checkpoint.spec.provenance["rope_theta"] = {Source::kDefaulted, ""};
  EXPECT_EQ(codes(target_findings(checkpoint, target)), Codes());
  checkpoint.spec.provenance["rope_theta"] = {Source::kRead, "rope_theta"};
  EXPECT_EQ(codes(target_findings(checkpoint, target)), Codes{"warning rope-theta-not-the-targets"});
  checkpoint.spec.rope_theta = 5e5f;
  EXPECT_EQ(codes(target_findings(checkpoint, target)), Codes{"note rope-theta-not-the-targets"});
}

TEST(FindingText, OneFormForPeopleAndOneForPrograms) {
  const std::vector<Finding> findings = {{Severity::kNote, "n", "noted", ""},
                                         {Severity::kWarning, "w", "warned", "mend it"},
                                         {Severity::kError, "e", "failed", ""},
                                         {Severity::kWarning, "w2", "warned too", ""}};
  EXPECT_EQ(finding_text(findings[0]), "note: noted [n]");
  EXPECT_EQ(finding_text(findings[1]), "warning: warned [w]\n    mend: mend it");
  EXPECT_EQ(finding_text(findings[1], "  ", "misreads"), "  misreads: warned [w]\n      mend: mend it");
  std::string order;
  for (const Finding& finding : ranked(findings)) order += finding.code + " ";
  EXPECT_EQ(order, "e w w2 n ");
  EXPECT_EQ(findings_json(findings)[1].dump(), R"({"code":"w","fix":"mend it","severity":"warning","text":"warned"})");
}

}  // namespace
}  // namespace aerie
