// Data and targets that were not written by Aerie: they train the drafter that Aerie's own files train, or say what is wrong with them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "eagle3/checkpoint.h"
#include "formats/torch_builder.h"
#include "tiny_target.h"
#include "train/states_check.h"
#include "train/trainer.h"

namespace aerie::train {
namespace {

const std::atomic<bool> kGoOn{false};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string write_speculators(const TinyTarget& target, const std::string& name, const std::vector<Trace>& traces) {
  std::string rows;
  std::filesystem::create_directories(target.folder() / name);
  for (size_t i = 0; i < traces.size(); ++i) {
    const Trace& trace = traces[i];
    const std::vector<int64_t> tokens(trace.tokens.begin(), trace.tokens.end());
    const auto view = [](const auto& values) {
      return std::span(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof values[0]);
    };
    const uint64_t length = trace.length(), slots = static_cast<uint64_t>(trace.slots), hidden = static_cast<uint64_t>(trace.hidden);
    EXPECT_TRUE(write_safetensors(target.folder() / (name + "/hs_" + std::to_string(i) + ".safetensors"),
                                  {{"hidden_states", DType::kBF16, {length, slots, hidden}, view(trace.states)},
                                   {"token_ids", DType::kI64, {length}, view(tokens)}})
                    .ok());
    rows += nlohmann::json{{"input_ids", trace.tokens}, {"loss_mask", trace.mask}}.dump() + "\n";
  }
  target.folder().write(name + "/rows.jsonl", rows);
  return target.folder() / name;
}

/// `aux` and `final`: the names that a maker gives the taps and the final state.
std::string write_torch(const TinyTarget& target, const std::string& name, const char* aux, const char* final,
                        const std::vector<Trace>& traces) {
  for (size_t i = 0; i < traces.size(); ++i) {
    const Trace& trace = traces[i];
    const int32_t length = static_cast<int32_t>(trace.length()), taps = trace.slots - 1;
    std::vector<int> slots;
    for (int s = 0; s < taps; ++s) slots.push_back(s);
    const std::vector<int64_t> tokens(trace.tokens.begin(), trace.tokens.end()), mask(trace.mask.begin(), trace.mask.end());
    target.folder().write(
        name + "/data_" + std::to_string(i) + ".ckpt",
        torch_dict({{"input_ids", "LongStorage", 8, {length}, bytes_of(tokens)},
                    {"loss_mask", "LongStorage", 8, {length}, bytes_of(mask)},
                    {final, "BFloat16Storage", 2, {1, length, trace.hidden}, bytes_of(trace.states_of(std::vector{taps}))},
                    {aux, "BFloat16Storage", 2, {1, length, taps * trace.hidden}, bytes_of(trace.states_of(slots))}}));
  }
  return target.folder() / name;
}

/// The final states after a norm of weight `weight`.
std::vector<Trace> normed(std::vector<Trace> traces, const std::vector<float>& weight) {
  for (Trace& trace : traces) {
    for (size_t t = 0; t < trace.length(); ++t) {
      uint16_t* state = trace.states.data() + (t * static_cast<size_t>(trace.slots) + static_cast<size_t>(trace.slots) - 1) * kTinyHidden;
      double squares = 0;
      for (size_t c = 0; c < kTinyHidden; ++c) squares += std::pow(bf16_to_f32(state[c]), 2);
      const double scale = 1 / std::sqrt(squares / kTinyHidden + 1e-5);
      for (size_t c = 0; c < kTinyHidden; ++c)
        state[c] = f32_to_bf16(static_cast<float>(bf16_to_f32(state[c]) * scale * static_cast<double>(weight[c])));
    }
  }
  return traces;
}

TrainOptions options_for(const TinyTarget& target, const std::string& data, const std::string& out) {
  TrainOptions o;
  o.data = {data};
  o.out = target.folder() / out;
  o.target = target.path();
  o.taps = {1, 3};
  o.draft_vocab = kTinyVocab;
  o.tokens_per_step = 100;
  o.max_steps = 6;
  o.holdout = 2;
  o.threads = 1;
  o.precision = MatmulPrecision::kFloat32;
  return o;
}

std::string drafter_of(const TrainOptions& options) {
  const Status status = train(options, kGoOn);
  EXPECT_TRUE(status.ok()) << status.message();
  return status.ok() ? read_bytes(options.out + "/model.safetensors") : "";
}

std::string refusal(const TrainOptions& options) {
  const Status status = train(options, kGoOn);
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(std::filesystem::exists(options.out)) << options.out;
  return status.message();
}

double first_loss(const TrainOptions& options) {
  const std::string text = read_bytes(options.out + "/metrics.jsonl");
  return nlohmann::json::parse(text.substr(0, text.find('\n')))["loss"];
}

TEST(OtherMakers, StatesOfSpeculatorsTrainTheSameDrafter) {
  const TinyTarget target;
  const std::vector<Trace> traces = target.conversations(8);
  const std::string own = drafter_of(options_for(target, target.write_traces("own", traces), "a"));
  const std::string folder = write_speculators(target, "theirs", traces);
  TrainOptions o = options_for(target, folder, "b");
  o.token_rows = folder + "/rows.jsonl";
  EXPECT_EQ(drafter_of(o), own);
  o.out = target.folder() / "c";
  o.taps = {};
  EXPECT_NE(refusal(o).find("does not say from which layers its 2 states a position come"), std::string::npos) << refusal(o);
  o.taps = {1, 2, 3};
  EXPECT_NE(refusal(o).find("3 were given"), std::string::npos) << refusal(o);
  o.taps = {1, 3};
  o.token_rows = "";
  EXPECT_NE(refusal(o).find("have no mask"), std::string::npos) << refusal(o);
}

TEST(OtherMakers, ANormedFinalStateIsNotNormedAgain) {
  const TinyTarget target;
  const std::vector<Trace> raw = target.conversations(8), after = normed(raw, target.norm());
  const TrainOptions own = options_for(target, target.write_traces("own", raw), "own-out");
  drafter_of(own);
  // The name that SpecForge gives it says normed; that of Model-Optimizer says nothing. What it is decides in any case.
  int run = 0;
  for (const auto& [aux, final] : {std::pair{"aux_hidden_state", "hidden_state"}, {"aux_hidden_states", "hidden_states"}}) {
    for (const auto* traces : {&raw, &after}) {
      const std::string name = "run" + std::to_string(run++);
      const TrainOptions o = options_for(target, write_torch(target, name, aux, final, *traces), name + "-out");
      drafter_of(o);
      EXPECT_NEAR(first_loss(o), first_loss(own), 2e-3) << name;
    }
  }
}

TEST(OtherMakers, FoldersWithFinalStatesOfTwoKindsAreRefused) {
  const TinyTarget target;
  const std::vector<Trace> raw = target.conversations(20), after = normed(raw, target.norm());
  const auto write = [&](const std::string& name, const std::vector<Trace>& traces) {
    return write_torch(target, name, "aux_hidden_states", "hidden_states", traces);
  };
  TrainOptions o = options_for(target, write("raw", raw), "out");
  o.data.push_back(write("after", after));
  EXPECT_NE(refusal(o).find("1 of 2 folders are after the target's final norm"), std::string::npos) << refusal(o);
  std::vector<Trace> both = raw;
  std::copy(after.begin(), after.begin() + 10, both.begin());
  o.data = {write("both", both)};
  EXPECT_NE(refusal(o).find("they are of two kinds"), std::string::npos) << refusal(o);
}

TEST(OtherMakers, WithoutAMaskNothingIsTrained) {
  const TinyTarget target;
  const std::vector<Trace> traces = target.conversations(4);
  TrainOptions o = options_for(target, write_torch(target, "theirs", "aux_hidden_state", "hidden_state", traces), "out");
  o.token_rows = target.folder().write("rows.jsonl", "");
  EXPECT_NE(refusal(o).find("--trace-rows belongs to a folder of speculators"), std::string::npos) << refusal(o);
  const int32_t length = static_cast<int32_t>(traces[0].length());
  const std::vector<int64_t> tokens(traces[0].tokens.begin(), traces[0].tokens.end());
  target.folder().write(
      "bare/data_0.ckpt",
      torch_dict(
          {{"input_ids", "LongStorage", 8, {length}, bytes_of(tokens)},
           {"hidden_state", "BFloat16Storage", 2, {1, length, kTinyHidden}, bytes_of(traces[0].states_of(std::vector{2}))},
           {"aux_hidden_state", "BFloat16Storage", 2, {1, length, 2 * kTinyHidden}, bytes_of(traces[0].states_of(std::vector{0, 1}))}}));
  o = options_for(target, target.folder() / "bare", "out");
  EXPECT_NE(refusal(o).find("does not say which tokens the target wrote"), std::string::npos) << refusal(o);
}

// A drafter's own taps choose among the states; what the states are is not the drafter's to say.
TEST(OtherMakers, ADrafterIsGoneOnFromWithTheStatesThatItReads) {
  const TinyTarget target;
  const std::vector<Trace> traces = target.conversations(8);
  TrainOptions first = options_for(target, target.write_traces("own", traces), "first");
  first.taps = {3};
  drafter_of(first);
  const std::string theirs = write_torch(target, "theirs", "aux_hidden_state", "hidden_state", traces);
  TrainOptions o = options_for(target, theirs, "second");
  o.from = first.out;
  const std::string expected = drafter_of(o);
  o.out = target.folder() / "third";
  o.data = first.data;
  EXPECT_NE(refusal(o).find("leave --taps out"), std::string::npos) << refusal(o);
  o.taps = {};
  EXPECT_EQ(drafter_of(o), expected);
  o.data = {theirs};
  o.out = target.folder() / "fourth";
  EXPECT_NE(refusal(o).find("does not say from which layers"), std::string::npos) << refusal(o);
  o.taps = {1, 2};
  EXPECT_NE(refusal(o).find("the tap boundary 3 was not captured"), std::string::npos) << refusal(o);
}

TEST(OtherMakers, AMixtureOfMakersIsRefused) {
  const TinyTarget target;
  const std::vector<Trace> traces = target.conversations(4);
  TrainOptions o = options_for(target, target.write_traces("own", traces), "out");
  o.data.push_back(write_torch(target, "theirs", "aux_hidden_state", "hidden_state", traces));
  EXPECT_NE(refusal(o).find("one is of Aerie, the other of SpecForge"), std::string::npos) << refusal(o);
}

TEST(OtherMakers, ATokenOutsideTheVocabularyIsNamed) {
  const TinyTarget target;
  std::vector<Trace> traces = target.conversations(4);
  traces[2].tokens[1] = kTinyVocab;
  const TrainOptions o = options_for(target, write_torch(target, "theirs", "aux_hidden_state", "hidden_state", traces), "out");
  EXPECT_NE(refusal(o).find("data_2.ckpt: token 64 is outside the target's vocabulary of 64"), std::string::npos) << refusal(o);
}

/// Puts the embedding of the tokens into a slot.
void put_embedding(const TinyTarget& target, Trace& trace, int slot) {
  for (size_t t = 0; t < trace.length(); ++t) {
    for (size_t c = 0; c < kTinyHidden; ++c) {
      trace.states[(t * static_cast<size_t>(trace.slots) + static_cast<size_t>(slot)) * kTinyHidden + c] =
          f32_to_bf16(target.embedding()[static_cast<size_t>(trace.tokens[t]) * kTinyHidden + c]);
    }
  }
}

// The fault that Aerie was founded on: the embedding and two layers were trained on, and three layers served.
TEST(StatesCheck, AnEmbeddingThatIsCalledALayerIsRefused) {
  const TinyTarget target;
  std::vector<Trace> traces = target.conversations(4);
  for (Trace& trace : traces) put_embedding(target, trace, 1);
  TrainOptions o = options_for(target, write_torch(target, "theirs", "aux_hidden_state", "hidden_state", traces), "out");
  EXPECT_NE(refusal(o).find("stored state 1 is called boundary 3, but it is the target's embedding"), std::string::npos) << refusal(o);
  o.taps = {0, 3};
  EXPECT_NE(refusal(o).find("stored state 0 is called boundary 0, the target's embedding of the tokens, but it is not"), std::string::npos)
      << refusal(o);
  o.taps = {3, 0};
  drafter_of(o);
}

TEST(StatesCheck, ToldFromTheStatesWhateverTheNormsWeights) {
  const TinyTarget target;
  TargetTensors tensors = read_target_tensors(target.path()).value();
  std::mt19937 random(3);
  for (float& weight : tensors.final_norm) weight = std::exp(std::normal_distribution<float>(0, 1)(random));
  const TraceTarget here{"tiny", tensors.sha256, kTinyHidden, kTinyVocab, kTinyBlocks, 1e-5};
  const std::vector<Trace> raw = target.conversations(40);
  const auto check = [&](const std::string& folder) {
    const Dataset data = Dataset::open({folder}, {.holdout = 0, .target = &here, .states = {1, 3}}).value();
    const auto found = check_states(data, tensors);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : StatesCheck();
  };
  const StatesCheck before = check(write_torch(target, "raw", "aux_hidden_states", "hidden_states", raw));
  const StatesCheck after = check(write_torch(target, "after", "aux_hidden_states", "hidden_states", normed(raw, tensors.final_norm)));
  EXPECT_FALSE(before.final_normed);
  EXPECT_TRUE(after.final_normed);
  EXPECT_GT(before.rows, 200);
  EXPECT_NEAR(before.on_policy, after.on_policy, 0.02);  // the same states, but for the rounding
}

TEST(StatesCheck, TellsWhoseWordsTheAnswersAre) {
  const TinyTarget target;
  const TargetTensors tensors = read_target_tensors(target.path()).value();
  std::vector<Trace> traces = target.conversations(40);
  const auto share = [&](const std::string& name) {
    const Dataset data = Dataset::open({target.write_traces(name, traces)}, {.holdout = 0}).value();
    return check_states(data, tensors).value().on_policy;
  };
  EXPECT_GT(share("own"), 0.95);
  std::mt19937 random(5);
  for (Trace& trace : traces) {
    for (size_t i = 0; i < trace.length(); ++i) {
      if (trace.mask[i] != 0) trace.tokens[i] = static_cast<int32_t>(random() % kTinyVocab);
    }
  }
  EXPECT_LT(share("foreign"), 0.1);
}

TEST(TargetFolder, TrainsTheSameDrafterAsTheGguf) {
  const TinyTarget target;
  const std::vector<Trace> traces = target.conversations(8);
  const std::string data = write_torch(target, "theirs", "aux_hidden_state", "hidden_state", traces);
  const std::string expected = drafter_of(options_for(target, data, "a"));
  TrainOptions o = options_for(target, data, "b");
  o.target = target.write_folder("target");
  EXPECT_EQ(drafter_of(o), expected);
  // A model that also sees: the sizes of its language model stand apart.
  o.out = target.folder() / "c";
  o.target = target.write_folder("seeing");
  nlohmann::json config = nlohmann::json::parse(read_bytes(o.target + "/config.json"));
  target.folder().write("seeing/config.json", nlohmann::json{{"model_type", "sees"}, {"text_config", config}}.dump());
  EXPECT_EQ(drafter_of(o), expected);
  // Aerie's own traces name the file that wrote them.
  o.data = {target.write_traces("own", traces)};
  o.out = target.folder() / "d";
  EXPECT_NE(refusal(o).find("train with the target of the traces"), std::string::npos) << refusal(o);
}

TEST(TargetFolder, SaysWhatIsWrongWithIt) {
  const TinyTarget target;
  int number = 0;
  const auto refused = [&](const std::string& expected, const nlohmann::json& config) {
    const std::string name = "target" + std::to_string(number++);
    const auto read = read_target_tensors(target.write_folder(name, config));
    ASSERT_FALSE(read.ok()) << expected;
    EXPECT_NE(read.status().message().find(expected), std::string::npos) << read.status().message();
  };
  refused("of 'gemma3_text' it is not known that its head", {{"model_type", "gemma3_text"}});
  refused("config.json sets logits_scaling", {{"logits_scaling", 8.0}});
  refused("it has no lm_head.weight", {{"tie_word_embeddings", false}});
  refused("expected [63, 32], found [64, 32]", {{"vocab_size", 63}, {"eos_token_id", 2}});
  refused("end token 64 is outside the vocabulary of 64", {{"eos_token_id", {1, 64}}});
  refused("num_hidden_layers", {{"num_hidden_layers", "many"}});
  refused("hidden_size", {{"hidden_size", nullptr}});
  refused("rms_norm_eps", {{"rms_norm_eps", nullptr}});
  refused("4 heads cannot share 3 kv heads", {{"num_key_value_heads", 3}});

  const std::string empty = target.folder() / "empty";
  std::filesystem::create_directories(empty);
  EXPECT_FALSE(read_target_tensors(empty).ok());
  target.folder().write("empty/config.json", read_bytes(target.write_folder("whole") + "/config.json"));
  EXPECT_NE(read_target_tensors(empty).status().message().find("neither model.safetensors nor"), std::string::npos);
  std::filesystem::remove(target.folder() / "whole/model-00002-of-00002.safetensors");
  EXPECT_NE(read_target_tensors(target.folder() / "whole").status().message().find("model-00002-of-00002.safetensors"), std::string::npos);
}

TEST(TargetFolder, ShardsMayHoldWhatIsNotRead) {
  const TempFolder folder;
  const std::vector<uint8_t> eight(6, 1);
  ASSERT_TRUE(write_safetensors(folder / "a.safetensors", {{"w", DType::kF8E4M3, {2, 3}, eight}, {"s", DType::kF8E8M0, {6}, eight}}).ok());
  const auto file = SafetensorsFile::open(folder / "a.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_FALSE(to_float(**file->find("w")).ok());
}

}  // namespace
}  // namespace aerie::train
