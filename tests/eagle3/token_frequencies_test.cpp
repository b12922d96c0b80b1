// What of a text a draft vocabulary can propose.
#include "eagle3/token_frequencies.h"

#include "draft_fixture.h"
#include "formats/traces.h"

namespace aerie {
namespace {

Expected<std::vector<double>> read_text(const std::string& text) {
  TempFolder dir;
  return read_token_frequencies(dir.write("f", text), 10);
}

TEST(TokenFrequencies, EveryShapeReadsAsTheSameCounts) {
  const std::vector<double> wanted = {3, 4, 0, 0, 0, 0, 0, 0, 0, 1};
  for (const char* text :
       {R"({"0": 3, "9": 1, "1": 4})", "[3, 4, 0, 0, 0, 0, 0, 0, 0, 1]", "0 3\n9\t1\n\n1, 4", " 1 4\r\n 0 3\r\n 9 1.0\r\n"}) {
    const auto read = read_text(text);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(*read, wanted) << text;
  }
}

TEST(TokenFrequencies, OfTracesTheAnswersAreCounted) {
  TempFolder dir;
  TraceManifest manifest;
  manifest.target = {"t", std::string(64, 'a'), 2, 10, 4, 1e-5};
  manifest.taps = {1};
  manifest.template_sha256 = std::string(64, 'b');
  auto writer = TraceWriter::open(dir / "t", manifest);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  Trace trace;
  trace.tokens = {5, 1, 2, 2};
  trace.mask = {0, 0, 1, 1};
  trace.slots = 2;
  trace.hidden = 2;
  trace.states.assign(16, 0);
  ASSERT_TRUE(writer->write_row(0, trace).ok());
  trace.mask = {0, 1, 1, 0};
  ASSERT_TRUE(writer->write_row(1, trace).ok());
  const auto read = read_token_frequencies(dir / "t", 10);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, (std::vector<double>{0, 1, 3, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_NE(read_token_frequencies(dir / "t", 2).status().message().find("the token 2 is outside the target's vocabulary of 2"),
            std::string::npos);
}

TEST(TokenFrequencies, RefuseWhatCannotBeMeant) {
  const std::pair<const char*, const char*> refused[] = {{R"({"10": 1})", "the token 10 is outside the target's vocabulary of 10"},
                                                         {R"({"-1": 1})", "the token -1 is outside"},
                                                         {R"({"x": 1})", "'x' is no token id"},
                                                         {R"({"1": "a"})", "the count of token 1 is no number"},
                                                         {R"({"1": -2})", "occurs -2 times"},
                                                         {R"({"1": 0})", "no token is counted at all"},
                                                         {R"({"1": 1, "01": 1})", "the count of token 1 is given twice"},
                                                         {"[1,2]", "it lists 2 counts, the target's vocabulary has 10 tokens"},
                                                         {"3", "line 1 is '3', expected a token id and a count"},
                                                         {"1 2\n1 3", "line 2: the count of token 1 is given twice"},
                                                         {"1 nan", "occurs nan times"},
                                                         {"1 2 3", "expected a token id and a count"},
                                                         {"", "no token is counted at all"},
                                                         {"{", "f: "}};
  for (const auto& [text, part] : refused) {
    const Status status = read_text(text).status();
    EXPECT_NE(status.message().find(part), std::string::npos) << text << ": " << status.message();
  }
  TempFolder dir;
  EXPECT_FALSE(read_token_frequencies(dir / "nothing", 10).ok());
  EXPECT_FALSE(read_token_frequencies(dir.path(), 10).ok());
}

TEST(TokenFrequencies, CoverageIsTheShareOfTokensThatCanBeProposed) {
  const DraftSpec spec = tiny_spec();  // six tokens: 0 2 3 5 7 9
  const auto covered = [&](const std::vector<double>& counts) { return vocabulary_coverage(spec, counts); };
  const auto codes = [&](const std::vector<double>& counts) {
    std::string out;
    for (const Finding& finding : coverage_findings(spec, covered(counts))) out += finding.code + ": " + finding.fix;
    return out;
  };
  const std::vector<double> half = {3, 4, 0, 0, 0, 0, 0, 0, 0, 1}, even(10, 1.0), well = {96, 4, 0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_DOUBLE_EQ(covered(half).share, 0.5);
  EXPECT_DOUBLE_EQ(covered(half).best, 1.0);
  EXPECT_DOUBLE_EQ(covered(even).share, 0.6);
  EXPECT_DOUBLE_EQ(covered(even).best, 0.6);
  EXPECT_EQ(codes(well), "");
  // Another text's map, and one that is too small.
  EXPECT_EQ(codes(half).rfind("coverage-low: choose the draft vocabulary from text like this", 0), 0u) << codes(half);
  EXPECT_EQ(codes(even), "coverage-low: choose a larger draft vocabulary");
}

}  // namespace
}  // namespace aerie
