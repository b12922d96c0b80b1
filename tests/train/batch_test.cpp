// Which rows are trained, on what, and in which order: by hand-made cases.
#include "train/batch.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "eagle3/replay.h"
#include "tiny_target.h"

namespace aerie::train {
namespace {

/// T tokens 10, 11, ...; every state of position i holds the value i.
Trace counted(const std::vector<uint8_t>& mask) {
  Trace trace;
  trace.slots = 2;
  trace.hidden = 1;
  trace.mask = mask;
  for (size_t i = 0; i < mask.size(); ++i) {
    trace.tokens.push_back(static_cast<int32_t>(10 + i));
    trace.states.insert(trace.states.end(), 2, f32_to_bf16(static_cast<float>(i)));
  }
  return trace;
}

std::vector<int32_t> identity_map() {
  std::vector<int32_t> map(64);
  std::iota(map.begin(), map.end(), 0);
  return map;
}

using Numbers = std::vector<int64_t>;

TEST(Alignment, AnswerInTheMiddle) {
  // Positions         0  1  2  3  4  5  6  7  8;  the answer is 3..6, its first token comes from the prefill.
  const Trace trace = counted({0, 0, 0, 1, 1, 1, 1, 0, 0});
  const PackedBatch batch = pack_documents({&trace, 1}, 3, identity_map());
  ASSERT_EQ(batch.steps.size(), 3u);
  EXPECT_EQ(batch.tokens, 9);

  // Row i reads token i+1; rows after the last supervised one (4) are not needed.
  EXPECT_EQ(batch.document_rows, (Numbers{5}));
  EXPECT_EQ(batch.steps[0].tokens, (Numbers{11, 12, 13, 14, 15}));
  EXPECT_EQ(batch.steps[0].positions, (Numbers{0, 1, 2, 3, 4}));
  // The first draft of the answer is row 2 = a-1, which predicts token 4 = a+1; the last one predicts token 6, the answer's end.
  EXPECT_EQ(batch.steps[0].loss_rows, (Numbers{2, 3, 4}));
  EXPECT_EQ(batch.steps[0].labels, (Numbers{14, 15, 16}));
  // One and two steps deeper the same rows reach one and two tokens further, and those that would leave the answer are gone.
  EXPECT_EQ(batch.steps[1].parents, (Numbers{2, 3}));
  EXPECT_EQ(batch.steps[1].tokens, (Numbers{14, 15}));
  EXPECT_EQ(batch.steps[1].positions, (Numbers{3, 4}));
  EXPECT_EQ(batch.steps[1].labels, (Numbers{15, 16}));
  EXPECT_EQ(batch.steps[2].parents, (Numbers{0}));
  EXPECT_EQ(batch.steps[2].labels, (Numbers{16}));
  // The teacher of the prediction of token t is the final state of position t-1.
  for (const StepPlan& plan : batch.steps) {
    ASSERT_EQ(plan.teachers.size(), plan.labels.size());
    for (size_t n = 0; n < plan.labels.size(); ++n) {
      EXPECT_EQ(bf16_to_f32(batch.teacher_states[static_cast<size_t>(plan.teachers[n])]), static_cast<float>(plan.labels[n] - 10 - 1));
    }
  }
}

TEST(Alignment, NothingBeyondTheConversationIsPredicted) {
  const Trace trace = counted({0, 0, 1, 1, 1});  // cut at the answer's end
  const PackedBatch batch = pack_documents({&trace, 1}, 4, identity_map());
  EXPECT_EQ(batch.steps[0].labels, (Numbers{13, 14}));
  EXPECT_EQ(batch.steps[1].labels, (Numbers{14}));
  EXPECT_TRUE(batch.steps[2].tokens.empty());
  EXPECT_TRUE(batch.steps[3].tokens.empty());
}

TEST(Alignment, TwoAnswersAndOneOfASingleToken) {
  const Trace trace = counted({0, 1, 1, 1, 0, 1, 0, 0, 1, 1});
  const PackedBatch batch = pack_documents({&trace, 1}, 2, identity_map());
  EXPECT_EQ(batch.steps[0].loss_rows, (Numbers{0, 1, 7}));  // a single token leaves nothing to draft
  EXPECT_EQ(batch.steps[0].labels, (Numbers{12, 13, 19}));
  EXPECT_EQ(batch.steps[1].labels, (Numbers{13}));
}

TEST(Alignment, TargetsOutsideTheDraftVocabularyAreMissesWithoutLoss) {
  const Trace trace = counted({0, 1, 1, 1, 1});
  std::vector<int32_t> map = identity_map();
  map[13] = -1;
  const PackedBatch batch = pack_documents({&trace, 1}, 2, map);
  EXPECT_EQ(batch.steps[0].labels, (Numbers{12, 14}));
  EXPECT_EQ(batch.steps[0].loss_rows, (Numbers{0, 2}));
  EXPECT_EQ(batch.steps[0].supervised, 3);
  // Its row goes on: what comes after such a token can be drafted again.
  EXPECT_EQ(batch.steps[1].parents, (Numbers{0, 1}));
  EXPECT_EQ(batch.steps[1].labels, (Numbers{14}));
  EXPECT_EQ(batch.steps[1].supervised, 2);
}

TEST(Packing, RunsNeverLeaveTheirDocument) {
  std::vector<uint8_t> mask(400, 1);
  std::fill_n(mask.begin(), 50, uint8_t{0});
  mask[200] = 0;  // two answers in one conversation
  const std::vector<Trace> traces = {counted({0, 0, 1, 1, 1, 1}), counted(mask), counted({0, 1, 1, 1})};
  std::vector<int32_t> map(1000, 0);
  const PackedBatch batch = pack_documents(traces, 3, map);
  EXPECT_EQ(batch.document_rows, (Numbers{4, 398, 2}));
  for (size_t s = 0; s < batch.steps.size(); ++s) {
    const StepPlan& plan = batch.steps[s];
    int64_t place = 0;
    for (const RowRun& run : plan.runs) {
      EXPECT_EQ(run.begin, place);
      EXPECT_LE(run.count, kMaxRun);
      int64_t last = run.first - 1;
      for (int64_t n = 0; n < run.count; ++n) {
        const int64_t row = plan.positions[static_cast<size_t>(place + n)] - static_cast<int64_t>(s);
        EXPECT_TRUE(n == 0 ? row == run.first : row > last);
        last = row;
      }
      EXPECT_LT(last, batch.document_rows[static_cast<size_t>(run.document)]);
      place += run.count;
    }
    EXPECT_EQ(place, static_cast<int64_t>(plan.tokens.size()));
  }
}

/// Conversations of a tiny target, and a map that leaves tokens out.
struct Drawn {
  TinyTarget target;
  std::vector<Trace> traces = target.conversations(6);
  std::vector<int32_t> map = identity_map();
  Drawn() {
    traces.push_back(target.conversation(77, 30, 200));
    for (size_t id = 0; id < map.size(); id += 5) map[id] = -1;
  }
  PackedBatch pack(const Draws& draws, std::span<const uint32_t> numbers = {}) const {
    return pack_documents(traces, 4, map, draws, numbers);
  }
};

TEST(Noise, MovesTheFeaturesAloneByNoMoreThanItsSize) {
  const Drawn d;
  const PackedBatch still = d.pack({}), moved = d.pack({.noise = 0.25, .seed = 3, .epoch = 1});
  EXPECT_EQ(d.pack({.noise = 0, .seed = 3, .epoch = 1}), still);
  EXPECT_EQ(moved.steps, still.steps);
  EXPECT_EQ(moved.teacher_states, still.teacher_states);
  ASSERT_EQ(moved.features.size(), still.features.size());
  double sum = 0, squares = 0;
  for (size_t i = 0; i < moved.features.size(); ++i) {
    const double before = bf16_to_f32(still.features[i]), move = bf16_to_f32(moved.features[i]) - before;
    ASSERT_LE(std::fabs(move), 0.25 + std::ldexp(std::fabs(before) + 0.25, -8));  // a bf16 has eight bits
    sum += move;
    squares += move * move;
  }
  const double n = static_cast<double>(moved.features.size());
  ASSERT_GT(n, 10000);
  EXPECT_NEAR(sum / n, 0.0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / n), 0.25 / std::sqrt(3.0), 0.005);
}

TEST(Noise, DependsOnSeedEpochConversationAndPositionAlone) {
  const Drawn d;
  const Draws draws = {.noise = 0.25, .seed = 3, .epoch = 1};
  const PackedBatch moved = d.pack(draws);
  EXPECT_EQ(d.pack(draws), moved);
  EXPECT_NE(d.pack({.noise = 0.25, .seed = 4, .epoch = 1}).features, moved.features);
  EXPECT_NE(d.pack({.noise = 0.25, .seed = 3, .epoch = 2}).features, moved.features);
  EXPECT_NE(d.pack({.noise = 0.25, .seed = 4, .epoch = 0}).features, d.pack(draws).features);
  // Packed otherwise, each conversation has what it had.
  std::vector<uint16_t> alone;
  for (uint32_t i = 0; i < d.traces.size(); ++i) {
    const PackedBatch one = pack_documents({&d.traces[i], 1}, 4, d.map, draws, {&i, 1});
    alone.insert(alone.end(), one.features.begin(), one.features.end());
  }
  EXPECT_EQ(alone, moved.features);
  // The same states in two conversations, or at two positions, are moved otherwise.
  const std::vector<Trace> twice = {counted(std::vector<uint8_t>(4, 1)), counted(std::vector<uint8_t>(4, 1))};
  const PackedBatch both = pack_documents(twice, 1, identity_map(), {.noise = 1});
  EXPECT_NE(both.features[0], both.features[2]);
  EXPECT_NE(bf16_to_f32(both.features[0]), bf16_to_f32(both.features[1]) - 1);
}

TEST(Anchors, LaterStepsRunAtSoManyRowsOfEachConversation) {
  const Drawn d;
  const PackedBatch all = d.pack({});
  for (const int anchors : {1, 3, 9, 150}) {
    const PackedBatch some = d.pack({.anchors = anchors, .seed = 3, .epoch = 1});
    EXPECT_EQ(some.features, all.features);
    EXPECT_EQ(some.teacher_states, all.teacher_states);
    EXPECT_EQ(some.document_rows, all.document_rows);
    EXPECT_EQ(some.steps[0], all.steps[0]);
    int64_t expected = 0;
    for (const Trace& trace : d.traces) {
      const auto starts = find_starts(trace.mask, 4);
      expected += std::min<int64_t>(anchors, std::ranges::count_if(starts, [](const ReplayStart& start) { return start.available > 1; }));
    }
    EXPECT_EQ(some.steps[1].supervised, expected);
    EXPECT_EQ(some.steps[1].tokens.size(), static_cast<size_t>(expected));
    // What is left is what all rows have there, in the same order; a row that stays goes on as far as it did.
    std::vector<int64_t> roots_before, roots_all;
    for (size_t s = 1; s < some.steps.size(); ++s) {
      const StepPlan &few = some.steps[s], &many = all.steps[s];
      const auto roots = [s](const StepPlan& plan, const std::vector<int64_t>& before) {
        std::vector<int64_t> out;
        for (const int64_t parent : plan.parents) out.push_back(s == 1 ? parent : before[static_cast<size_t>(parent)]);
        return out;
      };
      const std::vector<int64_t> few_roots = roots(few, roots_before), many_roots = roots(many, roots_all);
      EXPECT_TRUE(std::ranges::is_sorted(few_roots));
      for (size_t n = 0; n < many_roots.size(); ++n) {
        const auto at = std::ranges::find(few_roots, many_roots[n]) - few_roots.begin();
        const bool kept = at < std::ssize(few_roots);
        const bool was = s == 1 ? kept : std::ranges::find(roots_before, many_roots[n]) != roots_before.end();
        EXPECT_EQ(kept, was);
        if (!kept) continue;
        EXPECT_EQ(few.tokens[static_cast<size_t>(at)], many.tokens[n]);
        EXPECT_EQ(few.positions[static_cast<size_t>(at)], many.positions[n]);
      }
      roots_before = few_roots;
      roots_all = many_roots;
    }
  }
}

TEST(Anchors, DependOnSeedEpochAndConversationAlone) {
  const Drawn d;
  EXPECT_EQ(d.pack({.anchors = 300, .seed = 3, .epoch = 1}), d.pack({}));
  const PackedBatch some = d.pack({.anchors = 3, .seed = 3, .epoch = 1});
  EXPECT_EQ(d.pack({.anchors = 3, .seed = 3, .epoch = 1}), some);
  EXPECT_NE(d.pack({.anchors = 3, .seed = 4, .epoch = 1}), some);
  EXPECT_NE(d.pack({.anchors = 3, .seed = 3, .epoch = 2}), some);
  Numbers alone;
  for (uint32_t i = 0; i < d.traces.size(); ++i) {
    const PackedBatch one = pack_documents({&d.traces[i], 1}, 4, d.map, {.anchors = 3, .seed = 3, .epoch = 1}, {&i, 1});
    alone.insert(alone.end(), one.steps[1].positions.begin(), one.steps[1].positions.end());
  }
  EXPECT_EQ(alone, some.steps[1].positions);
}

std::vector<Conversation> lengths(const std::vector<size_t>& tokens) {
  std::vector<Conversation> conversations;
  for (const size_t n : tokens) conversations.push_back({0, 0, std::vector<int32_t>(n, 1), std::vector<uint8_t>(n, 1)});
  return conversations;
}

TEST(Packing, FirstFitWithinTheRowLength) {
  const std::vector<int64_t> tokens = {60, 50, 40, 50, 100};
  EXPECT_EQ(pack_rows(tokens, 100), (std::vector<std::vector<size_t>>{{0, 2}, {1, 3}, {4}}));
}

TEST(Plan, EveryConversationOncePerEpochInASeededOrder) {
  std::vector<size_t> sizes;
  for (size_t i = 0; i < 101; ++i) sizes.push_back(10 + i % 7);
  const auto conversations = lengths(sizes);
  const auto first = plan_epoch(conversations, 100, 3, 0);
  EXPECT_EQ(first, plan_epoch(conversations, 100, 3, 0));
  EXPECT_NE(first, plan_epoch(conversations, 100, 3, 1));
  EXPECT_NE(first, plan_epoch(conversations, 100, 4, 0));
  std::vector<int> seen(conversations.size(), 0);
  for (const auto& step : first) {
    size_t tokens = 0;
    for (const uint32_t index : step) {
      ++seen[index];
      tokens += conversations[index].tokens.size();
    }
    EXPECT_GE(tokens, 50u);
  }
  EXPECT_EQ(seen, std::vector<int>(conversations.size(), 1));
}

TEST(DraftVocabulary, MostFrequentAnswerTokensThenLowestIds) {
  std::vector<Conversation> conversations(1);
  conversations[0].tokens = {9, 9, 9, 7, 7, 5, 30, 40};
  conversations[0].mask = {0, 0, 0, 1, 1, 1, 1, 1};  // 9 is a prompt token
  const std::vector<int32_t> end = {50};
  // Equal counts (5, 30, 40) go by id; 50 is always in.
  EXPECT_EQ(choose_draft_vocab(conversations, 4, 64, end).value(), (std::vector<int32_t>{5, 7, 30, 50}));
  EXPECT_EQ(choose_draft_vocab(conversations, 8, 64, end).value(), (std::vector<int32_t>{0, 1, 2, 5, 7, 30, 40, 50}));
  EXPECT_EQ(choose_draft_vocab(conversations, 64, 64, end).value().size(), 64u);
  EXPECT_EQ(choose_draft_vocab(conversations, 65, 64, end).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(choose_draft_vocab(conversations, 0, 64, end).status().code(), StatusCode::kInvalidArgument);
}

RC_GTEST_PROP(DraftVocabulary, IsTheSmallestThatCoversTheShare, ()) {
  const int vocab = *rc::gen::inRange(1, 400);
  std::vector<Conversation> conversations(static_cast<size_t>(*rc::gen::inRange(1, 4)));
  for (Conversation& conversation : conversations) {
    // Squared, so that some are frequent.
    for (const double x :
         *rc::gen::container<std::vector<double>>(rc::gen::map(rc::gen::inRange(0, 1000), [](int n) { return n / 1000.0; })))
      conversation.tokens.push_back(static_cast<int32_t>(x * x * vocab));
    conversation.tokens.push_back(0);
    for (size_t i = 0; i < conversation.tokens.size(); ++i) conversation.mask.push_back(i % 4 != 1);
  }
  const std::vector<int32_t> always = {*rc::gen::inRange(0, vocab)};
  const double share = *rc::gen::elementOf(std::vector<double>{0.01, 0.5, 0.9, 0.98, 1.0});
  int64_t total = 0;
  for (const Conversation& conversation : conversations) total += std::ranges::count(conversation.mask, 1);
  int smallest = 0;
  for (int size = 64; smallest == 0; size += 64) {
    const auto ids = choose_draft_vocab(conversations, std::min(size, vocab), vocab, always).value();
    int64_t covered = 0;
    for (const Conversation& conversation : conversations) {
      for (size_t i = 0; i < conversation.tokens.size(); ++i)
        covered += conversation.mask[i] != 0 && std::ranges::binary_search(ids, conversation.tokens[i]) ? 1 : 0;
    }
    RC_ASSERT(coverage_of(ids, conversations, vocab) == static_cast<double>(covered) / static_cast<double>(total));
    if (size >= vocab || static_cast<double>(covered) >= share * static_cast<double>(total)) smallest = std::min(size, vocab);
  }
  RC_ASSERT(draft_vocab_for(conversations, share, vocab, always) == smallest);
}

/// The message of an open that must fail.
std::string refusal(const std::vector<std::string>& folders, const DatasetOptions& options = {}) {
  const auto data = Dataset::open(folders, options);
  EXPECT_FALSE(data.ok());
  return data.ok() ? "" : data.status().message();
}

/// Overwrites the first state of a row with a NaN.
void spoil(const std::string& path, const Trace& trace) {
  std::string bytes = read_bytes(path);
  const std::string clean(reinterpret_cast<const char*>(trace.states.data()), trace.states.size() * 2);
  const size_t at = bytes.find(clean, 8);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = '\xc1';
  bytes[at + 1] = '\x7f';
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Data, LeavesOutWhatIsTooLongOrNotFinite) {
  const TinyTarget target;
  std::vector<Trace> traces = target.conversations(150);
  traces.push_back(target.conversation(5, 20, 80));
  traces.push_back(target.conversation(6, 20, 1));
  const std::string folder = target.write_traces("traces", traces);
  spoil(folder + "/hs_17.safetensors", traces[17]);
  const auto data = Dataset::open({folder}, {.max_tokens = 90, .holdout = 10});
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->training().size(), 139u);
  EXPECT_EQ(data->held_out().size(), 10u);
  EXPECT_EQ(data->report().too_long, 1);
  EXPECT_EQ(data->report().nothing_supervised, 1);
  ASSERT_EQ(data->report().unreadable.size(), 1u);
  EXPECT_NE(data->report().unreadable[0].find("hs_17.safetensors"), std::string::npos) << data->report().unreadable[0];
}

TEST(Data, HandsOutTheChosenTapsAndThenTheTeacher) {
  const TinyTarget target;
  const std::vector<Trace> traces = target.conversations(4);  // boundaries 1, 3 and 4
  const std::string folder = target.write_traces("traces", traces);
  const auto check = [&](const DatasetOptions& options, const std::vector<int>& slots) {
    const auto data = Dataset::open({folder}, options);
    ASSERT_TRUE(data.ok()) << data.status().message();
    for (const Conversation& conversation : data->training()) {
      const Trace& stored = traces[static_cast<size_t>(conversation.row)];
      const Trace chosen = data->read(conversation).value();
      ASSERT_EQ(chosen.slots, static_cast<int>(slots.size()));
      for (size_t t = 0; t < chosen.length(); ++t) {
        for (size_t s = 0; s < slots.size(); ++s)
          EXPECT_TRUE(std::ranges::equal(chosen.state(t, static_cast<int>(s)), stored.state(t, slots[s])));
      }
      EXPECT_EQ(chosen.tokens, stored.tokens);
      EXPECT_EQ(chosen.mask, stored.mask);
    }
  };
  check({.holdout = 0}, {0, 1, 2});
  check({.holdout = 0, .taps = {3}}, {1, 2});
  check({.holdout = 0, .taps = {3, 1}, .teacher = 4}, {1, 0, 2});
  check({.holdout = 0, .taps = {1}, .teacher = 3}, {0, 1});
  check({.holdout = 0, .taps = {4, 1}, .teacher = 3}, {2, 0, 1});
  EXPECT_NE(refusal({folder}, {.taps = {2, 3}}).find("the tap boundary 2 was not captured"), std::string::npos);
  EXPECT_NE(refusal({folder}, {.teacher = 0}).find("the teacher's embed was not captured"), std::string::npos)
      << refusal({folder}, {.teacher = 0});
}

TEST(Data, StopsOnMoreThanOnePercentNotFinite) {
  const TinyTarget target;
  const std::vector<Trace> traces = target.conversations(20);
  const std::string folder = target.write_traces("traces", traces);
  spoil(folder + "/hs_3.safetensors", traces[3]);
  EXPECT_NE(refusal({folder}).find("1 of 20 rows cannot be used"), std::string::npos) << refusal({folder});
}

TEST(Data, StopsOnAnEmptyMask) {
  const TinyTarget target;
  std::vector<Trace> traces = target.conversations(4);
  for (Trace& trace : traces) std::fill(trace.mask.begin(), trace.mask.end(), uint8_t{0});
  const std::string message = refusal({target.write_traces("traces", traces)});
  EXPECT_NE(message.find("nothing to train on"), std::string::npos) << message;
}

TEST(Data, StopsBelowOnePercentSupervised) {
  const TinyTarget target;
  const std::string folder = target.write_traces("traces", {target.conversation(1, 300, 3), target.conversation(2, 300, 3)});
  const std::string message = refusal({folder});
  EXPECT_NE(message.find("4 of 606 tokens are supervised"), std::string::npos) << message;
}

TEST(Data, RefusesFoldersOfDifferentTargets) {
  const TinyTarget target;
  const std::string one = target.write_traces("one", target.conversations(3));
  TraceManifest other = target.manifest();
  other.target.sha256 = std::string(64, 'a');
  const std::string two = target.write_traces("two", target.conversations(3), other);
  const std::string message = refusal({one, two});
  EXPECT_NE(message.find("together"), std::string::npos) << message;
  other = target.manifest();
  other.taps = {1, 2};
  EXPECT_NE(refusal({one, target.write_traces("three", target.conversations(3), other)}).find("taps"), std::string::npos);
}

TEST(Data, RefusesToHoldOutEverything) {
  const TinyTarget target;
  const std::string folder = target.write_traces("traces", target.conversations(3));
  EXPECT_NE(refusal({folder}, {.max_tokens = 100, .holdout = 3}).find("leaves nothing"), std::string::npos);
}

}  // namespace
}  // namespace aerie::train
