// Checkpoints in pieces that a test can damage before they are written.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "gtest/gtest.h"

namespace aerie {

/// A checkpoint in pieces that a test can damage before it is written.
struct Parts {
  struct Tensor {
    DType type;
    std::vector<uint64_t> shape;
    std::vector<uint8_t> data;
  };
  nlohmann::json config;
  std::map<std::string, Tensor> tensors;

  nlohmann::json& layer() { return config["transformer_layer_config"]; }

  void set_i64(const std::string& name, const std::vector<int64_t>& values) {
    std::vector<uint8_t> bytes(values.size() * 8);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensors[name] = {DType::kI64, {values.size()}, std::move(bytes)};
  }
  void set_zeros(const std::string& name, std::vector<uint64_t> shape, DType type = DType::kBF16) {
    uint64_t count = static_cast<uint64_t>(block_bytes(type));
    for (const uint64_t dim : shape) count *= dim;
    tensors[name] = {type, std::move(shape), std::vector<uint8_t>(count, 0)};
  }
  void write(const std::string& folder) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/config.json") << config.dump();
    std::vector<TensorView> views;
    for (const auto& [name, tensor] : tensors) views.push_back({name, tensor.type, tensor.shape, tensor.data});
    const Status status = write_safetensors(folder + "/model.safetensors", views);
    ASSERT_TRUE(status.ok()) << status.message();
  }
};

inline Parts parts_of(const std::string& folder) {
  Parts out;
  out.config = nlohmann::json::parse(std::ifstream(folder + "/config.json"));
  auto file = SafetensorsFile::open(folder + "/model.safetensors");
  EXPECT_TRUE(file.ok()) << file.status().message();
  for (const TensorView& tensor : file->tensors()) {
    out.tensors[tensor.name] = {tensor.type, tensor.shape, std::vector<uint8_t>(tensor.data.begin(), tensor.data.end())};
  }
  return out;
}

}  // namespace aerie
