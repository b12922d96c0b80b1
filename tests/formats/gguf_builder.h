// Builds small GGUF files for tests, valid unless a test makes them otherwise.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aerie {

class GgufBytes {
 public:
  template <class T>
  GgufBytes& number(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& string(std::string_view text) {
    number<uint64_t>(text.size());
    out_ += text;
    return *this;
  }
  GgufBytes& raw(std::string_view bytes) {
    out_ += bytes;
    return *this;
  }
  const std::string& bytes() const { return out_; }

 private:
  std::string out_;
};

// Type numbers of metadata values.
inline constexpr uint32_t kGgufU8 = 0, kGgufU32 = 4, kGgufI32 = 5, kGgufF32 = 6, kGgufBool = 7, kGgufString = 8, kGgufArray = 9,
                          kGgufU64 = 10, kGgufF64 = 12;
// Type numbers of tensors.
inline constexpr uint32_t kGgmlF32 = 0, kGgmlF16 = 1, kGgmlQ4_0 = 2, kGgmlQ8_0 = 8;

struct GgufBuilder {
  struct KeyValue {
    std::string key;
    uint32_t type;
    std::string value;
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // innermost first, as in the file
    uint32_t type;
    uint64_t offset;
    std::string data;
    std::optional<uint32_t> n_dims;  // what the file says, if not dims.size()
  };

  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count, kv_count;  // what the file says, if not the truth
  uint64_t alignment = 32;                         // of the data section; the key is the test's own affair
  std::vector<KeyValue> key_values;
  std::vector<Tensor> tensors;

  template <class T>
  GgufBuilder& add(const std::string& key, uint32_t type, T value) {
    key_values.push_back({key, type, GgufBytes().number(value).bytes()});
    return *this;
  }
  GgufBuilder& add_string(const std::string& key, std::string_view value) {
    key_values.push_back({key, kGgufString, GgufBytes().string(value).bytes()});
    return *this;
  }
  /// An array whose header says `count` values of `type`, followed by `values`.
  GgufBuilder& add_array(const std::string& key, uint32_t type, uint64_t count, const std::string& values) {
    key_values.push_back({key, kGgufArray, GgufBytes().number(type).number(count).raw(values).bytes()});
    return *this;
  }
  GgufBuilder& add_tensor(Tensor tensor) {
    tensors.push_back(std::move(tensor));
    return *this;
  }

  std::string build() const {
    GgufBytes out;
    out.number(magic).number(version).number<uint64_t>(tensor_count.value_or(tensors.size()));
    out.number<uint64_t>(kv_count.value_or(key_values.size()));
    for (const KeyValue& kv : key_values) out.string(kv.key).number(kv.type).raw(kv.value);
    for (const Tensor& tensor : tensors) {
      out.string(tensor.name).number<uint32_t>(tensor.n_dims.value_or(static_cast<uint32_t>(tensor.dims.size())));
      for (const uint64_t dim : tensor.dims) out.number(dim);
      out.number(tensor.type).number(tensor.offset);
    }
    std::string file = out.bytes();
    if (tensors.empty()) return file;
    const size_t data_begin = (file.size() + alignment - 1) / alignment * alignment;
    for (const Tensor& tensor : tensors) {
      if (tensor.offset > 4096) continue;  // a hostile offset: its data is nowhere
      const size_t end = data_begin + tensor.offset + tensor.data.size();
      if (file.size() < end) file.resize(end, '\0');
      std::memcpy(file.data() + data_begin + tensor.offset, tensor.data.data(), tensor.data.size());
    }
    return file;
  }
};

/// Two tensors and a value of several types; its last byte belongs to the last tensor.
inline GgufBuilder small_gguf() {
  GgufBuilder builder;
  builder.add_string("general.architecture", "test").add<uint32_t>("count", kGgufU32, 7).add<float>("eps", kGgufF32, 1e-5f);
  builder.add_array("words", kGgufString, 2, GgufBytes().string("one").string("two").bytes());
  builder.add_array("flags", kGgufBool, 2, std::string("\1\0", 2));
  builder.add_array("ids", kGgufI32, 2, GgufBytes().number<int32_t>(-1).number<int32_t>(5).bytes());
  const float values[6] = {0, 1, 2, 3, 4, 5};
  builder.add_tensor({"a", {3, 2}, kGgmlF32, 0, {reinterpret_cast<const char*>(values), sizeof values}, {}});
  builder.add_tensor({"b", {32, 1}, kGgmlQ4_0, 32, std::string(18, '\x11'), {}});
  return builder;
}

}  // namespace aerie
