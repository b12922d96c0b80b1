#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "formats/printable.h"

namespace aerie {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF values are read as they lie in the file");

// The memory that all metadata may take. A vocabulary of 262,144 tokens with 512k merges takes about 40 MiB.
constexpr uint64_t kMaxMetadataBytes = 64ull << 20;
constexpr uint64_t kMaxKeyBytes = 65535;  // the format's own limit
constexpr uint64_t kMaxNameBytes = 64;    // the format's own limit
constexpr uint64_t kMaxTensors = 65536;   // the largest models have some thousands
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kSmallestKeyValue = 8 + 1 + 4 + 1;            // length, one byte of key, type, one byte of value
constexpr uint64_t kSmallestTensorInfo = 8 + 1 + 4 + 8 + 4 + 8;  // length, one byte of name, n_dims, one dim, type, offset
constexpr uint64_t kStringOverhead = sizeof(std::string);

enum class ValueType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64, kCount };
constexpr const char* kValueTypeNames[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
constexpr uint64_t kValueTypeBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // at least, for strings and arrays

std::optional<DType> dtype_of(uint32_t ggml_type) {
  switch (ggml_type) {
    case 0: return DType::kF32;
    case 1: return DType::kF16;
    case 2: return DType::kQ4_0;
    case 3: return DType::kQ4_1;
    case 6: return DType::kQ5_0;
    case 7: return DType::kQ5_1;
    case 8: return DType::kQ8_0;
    case 12: return DType::kQ4_K;
    case 13: return DType::kQ5_K;
    case 14: return DType::kQ6_K;
    case 24: return DType::kI8;
    case 25: return DType::kI16;
    case 26: return DType::kI32;
    case 27: return DType::kI64;
    case 28: return DType::kF64;
    case 30: return DType::kBF16;
    default: return std::nullopt;
  }
}

// Reads forward through the mapped file; nothing is handed out that does not lie in it.
class Cursor {
 public:
  explicit Cursor(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  template <class T>
  Status read(T& value, std::string_view what) {
    AERIE_TRY(need(sizeof value, what));
    std::memcpy(&value, bytes_.data() + position_, sizeof value);
    position_ += sizeof value;
    return Status();
  }

  Status read_string(std::string_view& text, uint64_t longest, std::string_view what) {
    uint64_t length;
    AERIE_TRY(read(length, what));
    if (length > longest) return corrupt("the {} at byte {} is {} bytes long; expected at most {}", what, position_, length, longest);
    AERIE_TRY(need(length, what));
    text = {reinterpret_cast<const char*>(bytes_.data() + position_), static_cast<size_t>(length)};
    position_ += length;
    return Status();
  }

 private:
  Status need(uint64_t count, std::string_view what) const {
    if (count <= remaining()) return Status();
    return corrupt("the file ends inside the {} at byte {}: {} bytes needed, {} left", what, position_, count, remaining());
  }

  std::span<const uint8_t> bytes_;
  uint64_t position_ = 0;
};

// Reads metadata values and keeps account of the memory they take.
class ValueReader {
 public:
  explicit ValueReader(Cursor& cursor) : cursor_(cursor) {}

  Status charge(uint64_t bytes) {
    if (bytes > kMaxMetadataBytes - used_) {
      return corrupt("the metadata is larger than the limit of {} MiB", kMaxMetadataBytes >> 20);
    }
    used_ += bytes;
    return Status();
  }

  Status read_type(ValueType& type) {
    uint32_t raw;
    AERIE_TRY(cursor_.read(raw, "value type"));
    if (raw >= static_cast<uint32_t>(ValueType::kCount)) {
      return corrupt("value type {} is unknown; expected 0 to {}", raw, static_cast<uint32_t>(ValueType::kCount) - 1);
    }
    type = static_cast<ValueType>(raw);
    return Status();
  }

  Status read_value(ValueType type, GgufValue& out) {
    switch (type) {
      case ValueType::kU8: return read_one<uint8_t, uint64_t>(out);
      case ValueType::kI8: return read_one<int8_t, int64_t>(out);
      case ValueType::kU16: return read_one<uint16_t, uint64_t>(out);
      case ValueType::kI16: return read_one<int16_t, int64_t>(out);
      case ValueType::kU32: return read_one<uint32_t, uint64_t>(out);
      case ValueType::kI32: return read_one<int32_t, int64_t>(out);
      case ValueType::kU64: return read_one<uint64_t, uint64_t>(out);
      case ValueType::kI64: return read_one<int64_t, int64_t>(out);
      case ValueType::kF32: return read_one<float, double>(out);
      case ValueType::kF64: return read_one<double, double>(out);
      case ValueType::kBool: {
        bool flag;
        AERIE_TRY(read_bool(flag));
        out.value = flag;
        return Status();
      }
      case ValueType::kString: {
        std::string text;
        AERIE_TRY(read_text(text));
        out.value = std::move(text);
        return Status();
      }
      case ValueType::kArray: return read_array(out);
      case ValueType::kCount: break;
    }
    return internal_error("value type not handled");
  }

 private:
  template <class Stored, class Wide>
  Status read_one(GgufValue& out) {
    Stored value;
    AERIE_TRY(cursor_.read(value, "value"));
    out.value = static_cast<Wide>(value);
    return Status();
  }

  Status read_bool(bool& flag) {
    uint8_t value;
    AERIE_TRY(cursor_.read(value, "bool value"));
    if (value > 1) return corrupt("a bool holds {}; expected 0 or 1", value);
    flag = value == 1;
    return Status();
  }

  Status read_text(std::string& text) {
    std::string_view view;
    AERIE_TRY(cursor_.read_string(view, kMaxMetadataBytes, "string value"));
    AERIE_TRY(charge(view.size() + kStringOverhead));
    text = view;
    return Status();
  }

  template <class Stored, class Wide>
  Status read_numbers(uint64_t count, GgufValue& out) {
    std::vector<Wide> values(count);
    for (Wide& wide : values) {
      Stored value;
      AERIE_TRY(cursor_.read(value, "array value"));
      wide = static_cast<Wide>(value);
    }
    out.value = std::move(values);
    return Status();
  }

  Status read_array(GgufValue& out) {
    ValueType type = ValueType::kCount;
    uint64_t count;
    AERIE_TRY(read_type(type));
    AERIE_TRY(cursor_.read(count, "array length"));
    const size_t index = static_cast<size_t>(type);
    if (type == ValueType::kArray) return unsupported("arrays of arrays are not read");
    if (count > cursor_.remaining() / kValueTypeBytes[index]) {
      return corrupt("an array of {} {} values does not fit in the {} bytes that remain", count, kValueTypeNames[index],
                     cursor_.remaining());
    }
    // Every number takes eight bytes once widened; a string is charged with its own length when read.
    if (type != ValueType::kString) AERIE_TRY(charge(count * 8));
    switch (type) {
      case ValueType::kU8: return read_numbers<uint8_t, uint64_t>(count, out);
      case ValueType::kI8: return read_numbers<int8_t, int64_t>(count, out);
      case ValueType::kU16: return read_numbers<uint16_t, uint64_t>(count, out);
      case ValueType::kI16: return read_numbers<int16_t, int64_t>(count, out);
      case ValueType::kU32: return read_numbers<uint32_t, uint64_t>(count, out);
      case ValueType::kI32: return read_numbers<int32_t, int64_t>(count, out);
      case ValueType::kU64: return read_numbers<uint64_t, uint64_t>(count, out);
      case ValueType::kI64: return read_numbers<int64_t, int64_t>(count, out);
      case ValueType::kF32: return read_numbers<float, double>(count, out);
      case ValueType::kF64: return read_numbers<double, double>(count, out);
      case ValueType::kBool: {
        std::vector<bool> flags(count);
        for (uint64_t i = 0; i < count; ++i) {
          bool flag;
          AERIE_TRY(read_bool(flag));
          flags[i] = flag;
        }
        out.value = std::move(flags);
        return Status();
      }
      case ValueType::kString: {
        if (count > kMaxMetadataBytes / kStringOverhead) return charge(kMaxMetadataBytes + 1);
        std::vector<std::string> strings(count);
        for (std::string& text : strings) AERIE_TRY(read_text(text));
        out.value = std::move(strings);
        return Status();
      }
      case ValueType::kArray:
      case ValueType::kCount: break;
    }
    return internal_error("array type not handled");
  }

  Cursor& cursor_;
  uint64_t used_ = 0;
};

struct Header {
  uint64_t tensors = 0;
  uint64_t key_values = 0;
};

Status read_header(Cursor& cursor, Header& header) {
  uint32_t magic, version;
  AERIE_TRY(cursor.read(magic, "magic number"));
  if (magic != 0x46554747) return corrupt("this is no GGUF file: it does not begin with the letters GGUF");
  AERIE_TRY(cursor.read(version, "version"));
  if (version != 2 && version != 3) {
    const bool swapped = version == 0x02000000 || version == 0x03000000;
    return unsupported("GGUF version {}{}; expected version 2 or 3, little-endian", version, swapped ? " (a big-endian file)" : "");
  }
  AERIE_TRY(cursor.read(header.tensors, "tensor count"));
  AERIE_TRY(cursor.read(header.key_values, "metadata count"));
  if (header.key_values > cursor.remaining() / kSmallestKeyValue) {
    return corrupt("{} metadata entries do not fit in the {} bytes that remain", header.key_values, cursor.remaining());
  }
  if (header.tensors > cursor.remaining() / kSmallestTensorInfo) {
    return corrupt("{} tensors do not fit in the {} bytes that remain", header.tensors, cursor.remaining());
  }
  return Status();
}

Status read_alignment(ValueType type, const GgufValue& value, uint64_t& alignment) {
  if (type != ValueType::kU32) return corrupt("expected type u32, found {}", kValueTypeNames[static_cast<size_t>(type)]);
  alignment = std::get<uint64_t>(value.value);
  if (!std::has_single_bit(alignment)) return corrupt("expected a power of two, found {}", alignment);
  return Status();
}

// A tensor as its entry describes it, before its data has been found.
struct TensorInfo {
  TensorView view;
  uint64_t offset = 0;  // from the start of the data section
  uint64_t bytes = 0;
};

Status read_shape_and_type(Cursor& cursor, TensorInfo& tensor) {
  uint32_t n_dims;
  AERIE_TRY(cursor.read(n_dims, "number of dimensions"));
  if (n_dims < 1 || n_dims > kMaxDims) return corrupt("{} dimensions; expected 1 to {}", n_dims, kMaxDims);
  std::vector<uint64_t>& shape = tensor.view.shape;
  shape.resize(n_dims);
  for (uint64_t& dim : shape) AERIE_TRY(cursor.read(dim, "dimension"));
  std::reverse(shape.begin(), shape.end());
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) {
    return corrupt("shape {} has a dimension of 0", tensor.view.shape_string());
  }

  uint32_t raw_type;
  AERIE_TRY(cursor.read(raw_type, "tensor type"));
  const std::optional<DType> type = dtype_of(raw_type);
  if (!type) return unsupported("GGML type {} is not read; use a file in Q4_0, Q4_1, Q8_0, Q4_K, Q6_K, F16 or BF16", raw_type);
  tensor.view.type = *type;
  AERIE_TRY(cursor.read(tensor.offset, "tensor offset"));

  const auto values = static_cast<uint64_t>(block_values(*type));
  if (shape.back() % values != 0) {
    return corrupt("rows of {} values are not whole blocks of {} ({} values each)", shape.back(), dtype_name(*type), values);
  }
  std::optional<uint64_t> bytes = checked_mul(shape.back() / values, static_cast<uint64_t>(block_bytes(*type)));
  for (size_t i = 0; bytes && i + 1 < shape.size(); ++i) bytes = checked_mul(*bytes, shape[i]);
  if (!bytes) return corrupt("shape {} is larger than 64 bits can count", tensor.view.shape_string());
  tensor.bytes = *bytes;
  return Status();
}

// Gives every tensor its bytes: aligned, inside the file, no two overlapping.
Status place_tensors(std::span<const uint8_t> file, uint64_t data_begin, uint64_t alignment, std::vector<TensorInfo>& tensors) {
  for (TensorInfo& tensor : tensors) {
    const auto end = checked_add(tensor.offset, tensor.bytes);
    const uint64_t available = data_begin <= file.size() ? file.size() - data_begin : 0;
    if (tensor.offset % alignment != 0) {
      return corrupt("tensor {}: its offset {} is not a multiple of the alignment {}", printable(tensor.view.name), tensor.offset,
                     alignment);
    }
    if (!end || *end > available) {
      return corrupt("tensor {}: its {} bytes at offset {} do not lie in the data section of {} bytes; the file is cut off or damaged",
                     printable(tensor.view.name), tensor.bytes, tensor.offset, available);
    }
    tensor.view.data = file.subspan(data_begin + tensor.offset, tensor.bytes);
  }
  std::vector<const TensorInfo*> by_offset;
  for (const TensorInfo& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const TensorInfo &before = *by_offset[i - 1], &after = *by_offset[i];
    if (before.offset + before.bytes > after.offset) {
      return corrupt("tensors {} and {} overlap: the first ends at offset {}, the second begins at {}", printable(before.view.name),
                     printable(after.view.name), before.offset + before.bytes, after.offset);
    }
  }
  return Status();
}

struct Contents {
  std::map<std::string, GgufValue> metadata;
  std::vector<TensorView> tensors;
  std::map<std::string, size_t> index;
};

Status read_metadata(Cursor& cursor, uint64_t count, Contents& contents, uint64_t& alignment) {
  ValueReader reader(cursor);
  for (uint64_t i = 0; i < count; ++i) {
    std::string_view key;
    AERIE_TRY(cursor.read_string(key, kMaxKeyBytes, "metadata key"));
    if (key.empty()) return corrupt("metadata entry {} has an empty key", i);
    const std::string context = "key " + printable(key);
    AERIE_TRY(reader.charge(key.size() + kStringOverhead + sizeof(GgufValue)).with_context(context));
    const auto [at, is_new] = contents.metadata.try_emplace(std::string(key));
    if (!is_new) return corrupt("{} appears twice", context);
    ValueType type = ValueType::kCount;
    AERIE_TRY(reader.read_type(type).with_context(context));
    AERIE_TRY(reader.read_value(type, at->second).with_context(context));
    if (key == "general.alignment") AERIE_TRY(read_alignment(type, at->second, alignment).with_context(context));
  }
  return Status();
}

Status read_contents(std::span<const uint8_t> file, Contents& contents) {
  Cursor cursor(file);
  Header header;
  AERIE_TRY(read_header(cursor, header));
  uint64_t alignment = 32;
  AERIE_TRY(read_metadata(cursor, header.key_values, contents, alignment));

  // Counted again: the metadata has been read since the header's counts were compared with the file.
  if (header.tensors > cursor.remaining() / kSmallestTensorInfo) {
    return corrupt("{} tensors do not fit in the {} bytes that remain", header.tensors, cursor.remaining());
  }
  if (header.tensors > kMaxTensors) return corrupt("the file has {} tensors; the limit is {}", header.tensors, kMaxTensors);
  std::vector<TensorInfo> tensors(header.tensors);
  for (uint64_t i = 0; i < header.tensors; ++i) {
    std::string_view name;
    AERIE_TRY(cursor.read_string(name, kMaxNameBytes, "tensor name"));
    if (name.empty()) return corrupt("tensor {} has an empty name", i);
    tensors[i].view.name = name;
    AERIE_TRY(read_shape_and_type(cursor, tensors[i]).with_context("tensor " + printable(name)));
    if (!contents.index.try_emplace(std::string(name), i).second) return corrupt("tensor {} appears twice", printable(name));
  }

  const uint64_t past = cursor.position() % alignment;
  const uint64_t data_begin = past == 0 ? cursor.position() : cursor.position() + (alignment - past);
  AERIE_TRY(place_tensors(file, data_begin, alignment, tensors));
  for (TensorInfo& tensor : tensors) contents.tensors.push_back(std::move(tensor.view));
  return Status();
}

struct KindName {
  const char* operator()(int64_t) const { return "a signed integer"; }
  const char* operator()(uint64_t) const { return "an unsigned integer"; }
  const char* operator()(double) const { return "a floating-point number"; }
  const char* operator()(bool) const { return "a bool"; }
  const char* operator()(const std::string&) const { return "a string"; }
  const char* operator()(const std::vector<int64_t>&) const { return "an array of signed integers"; }
  const char* operator()(const std::vector<uint64_t>&) const { return "an array of unsigned integers"; }
  const char* operator()(const std::vector<double>&) const { return "an array of floating-point numbers"; }
  const char* operator()(const std::vector<bool>&) const { return "an array of bools"; }
  const char* operator()(const std::vector<std::string>&) const { return "an array of strings"; }
};

Status wrong_kind(const std::string& path, const std::string& key, const char* expected, const GgufValue& found) {
  return corrupt("{}: key {} should hold {} but holds {}", path, printable(key), expected, std::visit(KindName(), found.value));
}

Expected<const GgufValue*> value_of(const GgufFile& file, const std::string& key) {
  const auto at = file.metadata().find(key);
  if (at == file.metadata().end()) return not_found("{}: there is no metadata key {}", file.path(), printable(key));
  return &at->second;
}

template <class T>
Expected<T> get_exactly(const GgufFile& file, const std::string& key, const char* expected) {
  AERIE_ASSIGN(const GgufValue* found, value_of(file, key));
  if (const T* value = std::get_if<T>(&found->value)) return *value;
  return wrong_kind(file.path(), key, expected, *found);
}

}  // namespace

Expected<GgufFile> GgufFile::open(const std::string& path) {
  AERIE_ASSIGN(MappedFile mapped, MappedFile::open(path));
  return read(std::move(mapped));
}

Expected<GgufFile> GgufFile::read(MappedFile mapped) {
  Contents contents;
  AERIE_TRY(read_contents(mapped.bytes(), contents).with_context(mapped.path()));
  GgufFile file;
  file.file_ = std::move(mapped);
  file.metadata_ = std::move(contents.metadata);
  file.tensors_ = std::move(contents.tensors);
  file.index_ = std::move(contents.index);
  return file;
}

Expected<uint32_t> GgufFile::get_u32(const std::string& key) const {
  AERIE_ASSIGN(const GgufValue* found, value_of(*this, key));
  if (const auto* value = std::get_if<uint64_t>(&found->value)) {
    if (std::in_range<uint32_t>(*value)) return static_cast<uint32_t>(*value);
    return corrupt("{}: key {} holds {}, which does not fit in 32 bits", path(), printable(key), *value);
  }
  if (const auto* value = std::get_if<int64_t>(&found->value)) {
    if (std::in_range<uint32_t>(*value)) return static_cast<uint32_t>(*value);
    return corrupt("{}: key {} holds {}; expected 0 to {}", path(), printable(key), *value, std::numeric_limits<uint32_t>::max());
  }
  return wrong_kind(path(), key, "an integer", *found);
}

Expected<float> GgufFile::get_f32(const std::string& key) const {
  AERIE_ASSIGN(const double value, get_exactly<double>(*this, key, "a floating-point number"));
  if (value > std::numeric_limits<float>::max() || value < std::numeric_limits<float>::lowest() || value != value) {
    return corrupt("{}: key {} holds {}, which is no finite 32-bit number", path(), printable(key), value);
  }
  return static_cast<float>(value);
}

Expected<bool> GgufFile::get_bool(const std::string& key) const { return get_exactly<bool>(*this, key, "a bool"); }

Expected<std::string> GgufFile::get_string(const std::string& key) const { return get_exactly<std::string>(*this, key, "a string"); }

Expected<std::vector<std::string>> GgufFile::get_strings(const std::string& key) const {
  return get_exactly<std::vector<std::string>>(*this, key, "an array of strings");
}

Expected<std::vector<int32_t>> GgufFile::get_i32s(const std::string& key) const {
  AERIE_ASSIGN(const GgufValue* found, value_of(*this, key));
  std::vector<int32_t> out;
  const auto narrow = [&](const auto& values) -> Status {
    out.reserve(values.size());
    for (const auto value : values) {
      if (!std::in_range<int32_t>(value)) {
        return corrupt("{}: key {} holds {}, which does not fit in 32 bits", path(), printable(key), value);
      }
      out.push_back(static_cast<int32_t>(value));
    }
    return Status();
  };
  if (const auto* values = std::get_if<std::vector<int64_t>>(&found->value)) {
    AERIE_TRY(narrow(*values));
  } else if (const auto* unsigned_values = std::get_if<std::vector<uint64_t>>(&found->value)) {
    AERIE_TRY(narrow(*unsigned_values));
  } else {
    return wrong_kind(path(), key, "an array of integers", *found);
  }
  return out;
}

Expected<const TensorView*> GgufFile::find(const std::string& tensor_name) const {
  const auto at = index_.find(tensor_name);
  if (at == index_.end()) return not_found("{}: there is no tensor {}", path(), printable(tensor_name));
  return &tensors_[at->second];
}

}  // namespace aerie
