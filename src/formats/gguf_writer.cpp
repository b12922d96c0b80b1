#include "formats/gguf_writer.h"

#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/file_io.h"
#include "formats/printable.h"

namespace aerie {
namespace {

constexpr uint64_t kAlignment = 32;  // the format's default
constexpr size_t kMaxNameBytes = 63;

// Type numbers of metadata values.
constexpr uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10;

uint32_t ggml_type(DType type) {
  switch (type) {
    case DType::kF32: return 0;
    case DType::kF16: return 1;
    case DType::kQ4_0: return 2;
    case DType::kQ4_1: return 3;
    case DType::kQ5_0: return 6;
    case DType::kQ5_1: return 7;
    case DType::kQ8_0: return 8;
    case DType::kQ4_K: return 12;
    case DType::kQ5_K: return 13;
    case DType::kQ6_K: return 14;
    case DType::kI8: return 24;
    case DType::kI16: return 25;
    case DType::kI32: return 26;
    case DType::kI64: return 27;
    case DType::kF64: return 28;
    case DType::kBF16: return 30;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E8M0:
    case DType::kU8:
    case DType::kBool: break;
  }
  return UINT32_MAX;
}

class Bytes {
 public:
  template <class T>
  void number(T value) {
    const auto* from = reinterpret_cast<const uint8_t*>(&value);
    out_.insert(out_.end(), from, from + sizeof value);
  }
  void string(const std::string& text) {
    number<uint64_t>(text.size());
    out_.insert(out_.end(), text.begin(), text.end());
  }
  void align() { out_.resize((out_.size() + kAlignment - 1) / kAlignment * kAlignment, 0); }
  const std::vector<uint8_t>& bytes() const { return out_; }

 private:
  std::vector<uint8_t> out_;
};

struct WriteValue {
  Bytes& out;

  void operator()(uint32_t v) const { plain(kU32, v); }
  void operator()(int32_t v) const { plain(kI32, v); }
  void operator()(uint64_t v) const { plain(kU64, v); }
  void operator()(float v) const { plain(kF32, v); }
  void operator()(bool v) const { plain(kBool, static_cast<uint8_t>(v ? 1 : 0)); }
  void operator()(const std::string& v) const {
    out.number(kString);
    out.string(v);
  }
  void operator()(const std::vector<int32_t>& v) const { array(kI32, v); }
  void operator()(const std::vector<uint32_t>& v) const { array(kU32, v); }
  void operator()(const std::vector<float>& v) const { array(kF32, v); }
  void operator()(const std::vector<std::string>& v) const {
    begin_array(kString, v.size());
    for (const std::string& text : v) out.string(text);
  }

 private:
  template <class T>
  void plain(uint32_t type, T value) const {
    out.number(type);
    out.number(value);
  }
  void begin_array(uint32_t type, size_t count) const {
    out.number(kArray);
    out.number(type);
    out.number<uint64_t>(count);
  }
  template <class T>
  void array(uint32_t type, const std::vector<T>& values) const {
    begin_array(type, values.size());
    for (const T value : values) out.number(value);
  }
};

Status check_tensor(const TensorView& tensor) {
  const std::string shown = printable(tensor.name);
  if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes)
    return invalid_argument("tensor {}: a name has 1 to {} bytes", shown, kMaxNameBytes);
  if (ggml_type(tensor.type) == UINT32_MAX) return invalid_argument("tensor {}: GGUF has no type {}", shown, dtype_name(tensor.type));
  if (tensor.shape.empty() || tensor.shape.size() > 4)
    return invalid_argument("tensor {}: it has {} dimensions, expected 1 to 4", shown, tensor.shape.size());
  const auto values = static_cast<uint64_t>(block_values(tensor.type));
  std::optional<uint64_t> bytes = tensor.shape.back() % values == 0
                                      ? checked_mul(tensor.shape.back() / values, static_cast<uint64_t>(block_bytes(tensor.type)))
                                      : std::nullopt;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) bytes = bytes ? checked_mul(*bytes, tensor.shape[i]) : bytes;
  if (!bytes || *bytes == 0 || *bytes != tensor.data.size()) {
    return invalid_argument("tensor {}: {} of shape {} does not fill the {} bytes given", shown, dtype_name(tensor.type),
                            tensor.shape_string(), tensor.data.size());
  }
  return {};
}

template <class Narrow, class Wide>
Expected<GgufMeta> narrow_all(const std::vector<Wide>& values) {
  std::vector<Narrow> out;
  out.reserve(values.size());
  for (const Wide value : values) {
    if (!std::in_range<Narrow>(value)) return unsupported("{} does not fit in 32 bits", value);
    out.push_back(static_cast<Narrow>(value));
  }
  return GgufMeta(std::move(out));
}

struct Narrow {
  Expected<GgufMeta> operator()(int64_t v) const {
    if (!std::in_range<int32_t>(v)) return unsupported("{} does not fit in 32 bits", v);
    return GgufMeta(static_cast<int32_t>(v));
  }
  Expected<GgufMeta> operator()(uint64_t v) const {
    if (!std::in_range<uint32_t>(v)) return GgufMeta(v);
    return GgufMeta(static_cast<uint32_t>(v));
  }
  Expected<GgufMeta> operator()(double v) const { return GgufMeta(static_cast<float>(v)); }
  Expected<GgufMeta> operator()(bool v) const { return GgufMeta(v); }
  Expected<GgufMeta> operator()(const std::string& v) const { return GgufMeta(v); }
  Expected<GgufMeta> operator()(const std::vector<int64_t>& v) const { return narrow_all<int32_t>(v); }
  Expected<GgufMeta> operator()(const std::vector<uint64_t>& v) const { return narrow_all<uint32_t>(v); }
  Expected<GgufMeta> operator()(const std::vector<double>& v) const { return GgufMeta(std::vector<float>(v.begin(), v.end())); }
  Expected<GgufMeta> operator()(const std::vector<bool>&) const { return unsupported("an array of bools is not copied"); }
  Expected<GgufMeta> operator()(const std::vector<std::string>& v) const { return GgufMeta(v); }
};

}  // namespace

Expected<GgufMeta> narrow_gguf_value(const GgufValue& value) { return std::visit(Narrow(), value.value); }

Status write_gguf(const std::string& path, const GgufMetadata& metadata, const std::vector<TensorView>& tensors) {
  Bytes head;
  head.number<uint32_t>(0x46554747);
  head.number<uint32_t>(3);
  head.number<uint64_t>(tensors.size());
  head.number<uint64_t>(metadata.size());
  std::set<std::string> names;
  for (const auto& [key, value] : metadata) {
    if (key.empty() || key == "general.alignment" || !names.insert(key).second) {
      return invalid_argument("{}: the key {} is empty, given twice, or the writer's own", path, printable(key));
    }
    head.string(key);
    std::visit(WriteValue{head}, value);
  }
  names.clear();
  uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    AERIE_TRY(check_tensor(tensor).with_context(path));
    if (!names.insert(tensor.name).second) return invalid_argument("{}: tensor {} is given twice", path, printable(tensor.name));
    head.string(tensor.name);
    head.number(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i > 0; --i) head.number<uint64_t>(tensor.shape[i - 1]);  // innermost first
    head.number(ggml_type(tensor.type));
    head.number<uint64_t>(offset);
    offset += (tensor.data.size() + kAlignment - 1) / kAlignment * kAlignment;
  }
  head.align();
  return write_file_atomically(path, [&](const WriteSink& sink) -> Status {
    static constexpr uint8_t kZeros[kAlignment] = {};
    AERIE_TRY(sink(head.bytes()));
    for (const TensorView& tensor : tensors) {
      AERIE_TRY(sink(tensor.data));
      const size_t past = tensor.data.size() % kAlignment;
      if (past != 0) AERIE_TRY(sink({kZeros, kAlignment - past}));
    }
    return Status();
  });
}

}  // namespace aerie
