// GGUF files of llama.cpp's eagle3 architecture, as others write them and as Aerie does.
#include "eagle3/dialects/gguf_eagle3.h"

#include <cmath>
#include <functional>

#include "checkpoint_parts.h"
#include "draft_fixture.h"
#include "eagle3/spec_fields.h"

namespace aerie {
namespace {

DraftSpec gguf_spec() {
  DraftSpec spec = tiny_spec();
  spec.taps = {1, 3, 0};  // llama.cpp keeps the file's order
  spec.feedback = Feedback::kPreNorm;
  return spec;
}

void expect_same(const DraftSpec& spec, const std::map<std::string, std::vector<float>>& weights, const DraftCheckpoint& read) {
  EXPECT_EQ(differing_fields(spec, read.spec), std::vector<std::string>());
  ASSERT_EQ(read.tensors.size(), weights.size());
  for (const auto& [name, values] : weights) EXPECT_EQ(to_float(read.tensors.at(name)).value(), values) << name;
}

TEST(GgufEagle3, WhatIsWrittenReadsBackAsTheSameForwardAndValues) {
  for (int variant = 0; variant < 8; ++variant) {
    DraftSpec spec = gguf_spec();
    if (variant == 1) spec.feature_norm = FeatureNorm::kNone;
    if (variant == 2) spec.norm_before_residual = false;
    if (variant == 3) spec.rope_scaling = {.kind = RopeScalingKind::kLinear, .factor = 4};
    if (variant == 4) {  // with this base the slowest frequency is divided by the whole factor, from which it is read back
      spec.rope_theta = 500000.0f;
      spec.rope_scaling = {.kind = RopeScalingKind::kLlama3, .factor = 8, .original_max_positions = 8192};
    }
    if (variant == 5) {
      spec.rope_scaling = {.kind = RopeScalingKind::kYarn,
                           .factor = 4,
                           .original_max_positions = 64,
                           .magnitude = static_cast<float>(0.1 * std::log(4.0) + 1.0)};
    }
    if (variant == 6) spec.d2t = {9, 1, 4, 0, 3, 2};
    if (variant == 7) {
      spec.target_hidden = spec.hidden;
      spec.own_embedding = spec.own_head = false;
      spec.draft_vocab = spec.vocab;
      spec.d2t.clear();
    }
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const Made made(spec, type);
      TempFolder dir;
      const Status saved = gguf_eagle3::save_checkpoint(dir / "d.gguf", made.checkpoint, {});
      ASSERT_TRUE(saved.ok()) << saved.message();
      auto read = open_drafter(dir / "d.gguf");
      ASSERT_TRUE(read.ok()) << variant << ": " << read.status().message();
      expect_same(spec, made.weights, *read);
      EXPECT_EQ(read->tensors.at("layers.0.q").type, type);
      EXPECT_EQ(read->tensors.at("norm").type, DType::kF32);
      for (const SpecField& field : spec_fields(spec)) EXPECT_EQ(read->spec.provenance.count(field.name), 1u) << field.name;
    }
  }
}

/// The file of gguf_spec() after `change`, opened.
Expected<DraftCheckpoint> changed(const std::function<void(GgufMetadata&, std::vector<TensorView>&)>& change,
                                  const OpenOptions& options = {}) {
  const Made made(gguf_spec());
  TempFolder dir;
  EXPECT_TRUE(gguf_eagle3::save_checkpoint(dir / "d.gguf", made.checkpoint, {}).ok());
  auto file = GgufFile::open(dir / "d.gguf");
  GgufMetadata meta;
  for (const auto& [key, value] : file->metadata()) meta.emplace_back(key, narrow_gguf_value(value).value());
  std::vector<TensorView> tensors = file->tensors();
  change(meta, tensors);
  const Status status = write_gguf(dir / "e.gguf", meta, tensors);
  if (!status.ok()) return status;
  return read_drafter(dir / "e.gguf", options);
}

void set(GgufMetadata& meta, const std::string& key, GgufMeta value) {
  std::erase_if(meta, [&](const auto& entry) { return entry.first == key; });
  meta.emplace_back(key, std::move(value));
}

TensorView& tensor(std::vector<TensorView>& tensors, const std::string& name) {
  for (TensorView& view : tensors) {
    if (view.name == name) return view;
  }
  ADD_FAILURE() << name;
  return tensors.front();
}

TEST(GgufEagle3, ReadsTheNamesOfEarlyFiles) {
  const auto read = changed([](GgufMetadata& meta, std::vector<TensorView>& tensors) {
    std::erase_if(meta, [](const auto& entry) { return entry.first == "eagle3.target_layers"; });
    set(meta, "eagle3.extract_layers", std::vector<int32_t>{1, 3, 0});
    tensor(tensors, "blk.0.attn_norm_2.weight").name = "blk.0.hidden_norm.weight";
  });
  ASSERT_TRUE(read.ok()) << read.status().message();
  expect_same(gguf_spec(), random_weights(gguf_spec(), 5), *read);
  EXPECT_NE(read->spec.provenance.at("taps").why.find("extract_layers"), std::string::npos);
}

TEST(GgufEagle3, QuantisedWeightsAreHandedOutAsFloats) {
  std::vector<uint8_t> blocks(4 * 34 * 8);  // [8 * 4, 32] of Q8_0: the scale 2^-10 and ascending values
  for (size_t b = 0; b < blocks.size() / 34; ++b) {
    const uint16_t scale = f32_to_f16(0x1p-10f);
    std::memcpy(&blocks[b * 34], &scale, 2);
    for (size_t i = 0; i < 32; ++i) blocks[b * 34 + 2 + i] = static_cast<uint8_t>(b);
  }
  const auto read = changed([&](GgufMetadata&, std::vector<TensorView>& tensors) {
    TensorView& q = tensor(tensors, "blk.0.attn_q.weight");
    q.type = DType::kQ8_0;
    q.data = blocks;
  });
  ASSERT_TRUE(read.ok()) << read.status().message();
  const std::vector<float> q = to_float(read->tensors.at("layers.0.q")).value();
  // Rows 0, 2, 4, 6 of a head in the file are its first half, rows 1, 3, 5, 7 its second.
  const int order[] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (int row = 0; row < 32; ++row) {
    EXPECT_EQ(q[static_cast<size_t>(row) * 32], static_cast<float>(row / 8 * 8 + order[row % 8]) * 0x1p-10f) << row;
  }
}

TEST(GgufEagle3, RefusesWhatContradictsItself) {
  struct Fault {
    const char* expected;
    std::function<void(GgufMetadata&, std::vector<TensorView>&)> damage;
  };
  static const std::vector<int64_t> zeros(6, 0), offsets = {0, 1, 1, 2, 3, 4}, far = {0, 2, 3, 5, 7, 10};
  const auto with_d2t = [](const std::vector<int64_t>& values) {
    return [&values](GgufMetadata&, std::vector<TensorView>& tensors) {
      tensor(tensors, "d2t").data = {reinterpret_cast<const uint8_t*>(values.data()), values.size() * 8};
    };
  };
  const Fault faults[] = {
      {"architecture 'llama', not of a drafter", [](auto& meta, auto&) { set(meta, "general.architecture", "llama"); }},
      {"eagle3.block_count is 2", [](auto& meta, auto&) { set(meta, "eagle3.block_count", uint32_t{2}); }},
      {"eagle3.embedding_length is missing",
       [](auto& meta, auto&) { std::erase_if(meta, [](auto& e) { return e.first == "eagle3.embedding_length"; }); }},
      {"the key 'eagle3.fc_norm' is not known", [](auto& meta, auto&) { set(meta, "eagle3.fc_norm", true); }},
      {"'enc.output_norm.weight' is there, but norm_before_fc is not true",
       [](auto& meta, auto&) { set(meta, "eagle3.norm_before_fc", false); }},
      {"rope.scaling.type is 'longrope'", [](auto& meta, auto&) { set(meta, "eagle3.rope.scaling.type", "longrope"); }},
      {"enc.output_norm.weight has the shape [36], expected [24]",
       [](auto& meta, auto&) {
         set(meta, "eagle3.target_layers", std::vector<int32_t>{1, 3});
       }},
      {"d2t is all zeros", with_d2t(zeros)},
      {"d2t maps the draft tokens 1 and 2 to the same target token 1; this dialect stores target ids, not offsets", with_d2t(offsets)},
      {"d2t[5] is 10, outside the target's vocabulary of 10", with_d2t(far)},
      {"'blk.0.attn_q_norm.weight' is a tensor that no part",
       [](auto&, auto& tensors) { tensor(tensors, "output_norm.weight").name = "blk.0.attn_q_norm.weight"; }},
  };
  for (const Fault& fault : faults) {
    const auto read = changed(fault.damage);
    EXPECT_NE(read.status().message().find(fault.expected), std::string::npos)
        << "expected: " << fault.expected << "\nfound: " << read.status().message();
  }
}

TEST(GgufEagle3, SaysThatIdsLookUnconverted) {
  const auto copied = [](GgufMetadata& meta, auto&) { set(meta, "eagle3.target_layers", std::vector<int32_t>{1, 15, 28}); };
  auto read = changed(copied);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->findings.size(), 1u);
  EXPECT_EQ(read->findings[0].code, "gguf-ids-unconverted");
  EXPECT_EQ(read->spec.taps, (std::vector<int>{1, 15, 28}));
  OpenOptions options;
  options.convention = LayerIdConvention::kBlockOutput;
  read = changed(copied, options);
  EXPECT_EQ(read->spec.taps, (std::vector<int>{2, 16, 29}));
}

}  // namespace
}  // namespace aerie
