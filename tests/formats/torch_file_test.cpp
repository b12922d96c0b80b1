// Reads what torch itself wrote (tools/goldens/make_torch_goldens.py).
#include "formats/torch_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "formats/safetensors.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

Expected<TorchFile> golden(const std::string& name) { return TorchFile::open(data_path("torch/" + name)); }

template <class T>
std::vector<T> numbers(const TensorView& tensor) {
  std::vector<T> out(tensor.element_count());
  EXPECT_EQ(tensor.data.size(), out.size() * sizeof(T));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

std::vector<float> floats(const TensorView& tensor) {
  auto out = to_float(tensor);
  EXPECT_TRUE(out.ok()) << out.status().message();
  return out.ok() ? *out : std::vector<float>();
}

TEST(TorchFile, ReadsEveryKindOfValue) {
  const auto file = golden("values.pt");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const TorchValue root = file->root();
  const auto at = [&root](std::string_view key) {
    const auto value = root.find(key);
    EXPECT_TRUE(value.has_value()) << key;
    return value.value_or(root);
  };
  EXPECT_EQ(root.size(), 19u);
  EXPECT_EQ(root.key_at(0).string(), "none");  // in the file's order
  EXPECT_EQ(at("none").kind(), PickleKind::kNone);
  EXPECT_EQ(at("true").boolean(), true);
  EXPECT_EQ(at("false").boolean(), false);
  EXPECT_EQ(at("true").integer(), std::nullopt);
  EXPECT_EQ(at("small").integer(), 7);
  EXPECT_EQ(at("word").integer(), 300);
  EXPECT_EQ(at("negative").integer(), -3);
  EXPECT_EQ(at("long").integer(), 1ll << 40);
  EXPECT_EQ(at("most").integer(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(at("least").integer(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(at("zero_long").integer(), -(1ll << 31) - 1);
  EXPECT_EQ(at("float").real(), -0.375);
  EXPECT_EQ(at("string").string(), "naïve ☃");
  EXPECT_EQ(at("list").kind(), PickleKind::kList);
  EXPECT_EQ(at("list").size(), 3u);
  EXPECT_EQ(at("list").at(1).at(1).string(), "x");
  EXPECT_EQ(at("tuple").size(), 4u);
  EXPECT_EQ(at("tuple").at(3).integer(), 4);
  EXPECT_EQ(at("empty").at(1).kind(), PickleKind::kDict);
  EXPECT_EQ(at("ordered").key_at(0).string(), "z");
  EXPECT_EQ(at("ordered").find("a")->integer(), 2);
  EXPECT_EQ(at("size").at(1).integer(), 3);
  EXPECT_EQ(at("ints").key_at(2).integer(), 128256);
  EXPECT_EQ(at("ints").find("5"), std::nullopt);
  EXPECT_EQ(at("shared").at(1).find("z")->integer(), 1);
  EXPECT_EQ(root.find("absent"), std::nullopt);
  EXPECT_EQ(at("small").find("x"), std::nullopt);
  EXPECT_EQ(at("small").size(), 0u);
}

TEST(TorchFile, ReadsEveryType) {
  const auto file = TorchCheckpoint::open(data_path("torch/dtypes.pt"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 10u);
  for (const TensorView& tensor : file->tensors()) EXPECT_EQ(tensor.name, dtype_name(tensor.type));
  for (const char* name : {"F32", "F16", "BF16"}) {
    EXPECT_EQ((*file->find(name))->shape, (std::vector<uint64_t>{2, 3}));
    EXPECT_EQ(floats(**file->find(name)), (std::vector<float>{0, 1, 2, 3, 4, 5})) << name;
  }
  EXPECT_EQ(numbers<double>(**file->find("F64")), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers<int8_t>(**file->find("I8")), (std::vector<int8_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers<int16_t>(**file->find("I16")), (std::vector<int16_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers<int32_t>(**file->find("I32")), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers<int64_t>(**file->find("I64")), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers<uint8_t>(**file->find("BOOL")), (std::vector<uint8_t>{1, 0, 1}));
}

TEST(TorchFile, ReadsViewsOfSharedStorages) {
  const auto file = TorchCheckpoint::open(data_path("torch/views.pt"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto at = [&file](const char* name) -> const TensorView& { return **file->find(name); };
  EXPECT_EQ(at("again").data.data(), at("base").data.data());  // shared, not copied
  EXPECT_EQ(at("rows").data.data(), at("base").data.data() + 24);
  EXPECT_EQ(floats(at("row")), (std::vector<float>{12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(at("rows").shape, (std::vector<uint64_t>{2, 6}));
  EXPECT_EQ(floats(at("column")), (std::vector<float>{1, 7, 13, 19}));
  EXPECT_EQ(at("transposed").shape, (std::vector<uint64_t>{6, 4}));
  std::vector<float> transposed, permuted;
  for (int i = 0; i < 24; ++i) transposed.push_back(static_cast<float>(i % 4 * 6 + i / 4));
  EXPECT_EQ(floats(at("transposed")), transposed);
  EXPECT_EQ(at("permuted").shape, (std::vector<uint64_t>{4, 2, 3}));
  for (int i = 0; i < 24; ++i) permuted.push_back(static_cast<float>(i % 6 * 4 + i / 6));
  EXPECT_EQ(floats(at("permuted")), permuted);
  EXPECT_EQ(at("scalar").shape, std::vector<uint64_t>());
  EXPECT_EQ(floats(at("scalar")), std::vector<float>{1.5});
  EXPECT_EQ(floats(at("one")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(floats(at("parameter")), (std::vector<float>{0, 1, 2}));
}

TEST(TorchFile, AStateDictIsAFileOfNamedTensors) {
  const auto file = open_tensor_file(data_path("torch/state_dict.bin"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 3u);
  EXPECT_TRUE(file->has("lm_head.weight"));
  EXPECT_FALSE(file->has("_metadata"));
  EXPECT_EQ((*file->find("lm_head.weight"))->data.data(), (*file->find("embed_tokens.weight"))->data.data());
  EXPECT_EQ((*file->find("lm_head.weight"))->name, "lm_head.weight");
  EXPECT_EQ(numbers<int64_t>(**file->find("d2t")), (std::vector<int64_t>{0, 1, 1, 3}));
  EXPECT_EQ(file->find("fc.weight").status().message(), file->path() + ": there is no tensor 'fc.weight'");
}

TEST(TorchFile, OneOpenerTellsTheContainersApartByContent) {
  const TempFolder folder;
  const std::string misnamed = folder.write("model.safetensors", read_bytes(data_path("torch/state_dict.bin")));
  EXPECT_TRUE(open_tensor_file(misnamed).ok());
  EXPECT_TRUE(open_tensor_file(data_path("dequant.safetensors")).ok());
  const auto legacy = open_tensor_file(data_path("torch/legacy.bin"));
  ASSERT_FALSE(legacy.ok());
  EXPECT_NE(legacy.status().message().find("before 1.6"), std::string::npos);
  EXPECT_EQ(open_tensor_file(folder / "absent").status().code(), StatusCode::kNotFound);
}

TEST(TorchFile, AGzippedFileHoldsTheSame) {
  const auto plain = golden("specforge.ckpt"), packed = golden("specforge.ckpt.gz");
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  for (const char* name : {"input_ids", "loss_mask", "hidden_state", "aux_hidden_state"}) {
    const TensorView *one = plain->root().find(name)->tensor(), *two = packed->root().find(name)->tensor();
    ASSERT_TRUE(one != nullptr && two != nullptr) << name;
    EXPECT_EQ(one->shape, two->shape);
    EXPECT_TRUE(std::equal(one->data.begin(), one->data.end(), two->data.begin(), two->data.end())) << name;
  }
  EXPECT_EQ(plain->root().find("aux_hidden_state")->tensor()->shape, (std::vector<uint64_t>{1, 5, 12}));
}

TEST(TorchFile, AFileOutlivesTheObjectThatOpenedIt) {
  std::optional<TorchCheckpoint> checkpoint;
  {
    const auto file = golden("views.pt");
    ASSERT_TRUE(file.ok());
    auto opened = TorchCheckpoint::from_file(*file);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    checkpoint = std::move(*opened);
  }
  EXPECT_EQ(floats(**checkpoint->find("column")), (std::vector<float>{1, 7, 13, 19}));
}

struct Refused {
  const char* file;
  StatusCode code;
  const char* expected;
};

TEST(TorchFile, RefusesByName) {
  const Refused cases[] = {
      {"legacy.bin", StatusCode::kUnsupported, "the format of torch before 1.6"},
      {"module.pt", StatusCode::kUnsupported, "the global 'torch.nn.modules.linear.Linear' is not read: nothing in a file is called"},
      {"float8.pt", StatusCode::kUnsupported, "the global 'torch._utils._rebuild_tensor_v3' is not read"},
      {"expanded.pt", StatusCode::kUnsupported, "a tensor: shape [4, 3] with strides [0, 0] names elements more than once"},
      {"empty_tensor.pt", StatusCode::kCorrupt, "a tensor: its shape [0, 3] has a dimension of 0"},
      {"huge_int.pt", StatusCode::kUnsupported, "byte 13: an integer of 9 bytes is not read; the limit is 8"},
      {"protocol4.pt", StatusCode::kUnsupported, "byte 0: pickle protocol 4 is not read; expected 2, the default of torch.save"},
      {"set.pt", StatusCode::kUnsupported, "the global '__builtin__.set' is not read"},
      {"bytes.pt", StatusCode::kUnsupported, "the global '_codecs.encode' is not read"},
      {"script.pt", StatusCode::kUnsupported, "the file is a TorchScript program; save the module's state_dict instead"},
      {"big_endian.pt", StatusCode::kUnsupported, "its byte order is 'bigend'; expected 'little'"},
  };
  for (const Refused& each : cases) {
    SCOPED_TRACE(each.file);
    const auto file = golden(each.file);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().code(), each.code);
    EXPECT_NE(file.status().message().find(each.expected), std::string::npos) << file.status().message();
  }
}

TEST(TorchFile, ACheckpointIsADictOfTensorsAndNothingElse) {
  const auto expect = [](const char* name, const std::string& expected) {
    const auto file = TorchCheckpoint::open(data_path(std::string("torch/") + name));
    ASSERT_FALSE(file.ok()) << name;
    EXPECT_EQ(file.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(file.status().message().find(expected), std::string::npos) << file.status().message();
  };
  expect("bare.pt", "it holds a tensor; expected a dict of named tensors");
  expect("run.pt", "the entry 'epoch' is an integer; expected a tensor");
  expect("values.pt", "the entry 'none' is None; expected a tensor");
}

}  // namespace
}  // namespace aerie
