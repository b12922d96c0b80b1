#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "base/checked.h"
#include "base/file_io.h"
#include "formats/json_text.h"
#include "formats/printable.h"

namespace aerie {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr uint64_t kMaxIndexBytes = 64ull << 20;
constexpr size_t kMaxTensors = 200'000;  // in one file; the shards of the largest models hold some thousands
constexpr size_t kMaxMetadata = 10'000;
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxNameBytes = 4096;

struct PlainType {
  const char* name;
  DType type;
};
constexpr PlainType kPlainTypes[] = {
    {"F64", DType::kF64},        {"F32", DType::kF32},        {"F16", DType::kF16},       {"BF16", DType::kBF16}, {"I64", DType::kI64},
    {"I32", DType::kI32},        {"I16", DType::kI16},        {"I8", DType::kI8},         {"U8", DType::kU8},     {"BOOL", DType::kBool},
    {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2}, {"F8_E8M0", DType::kF8E8M0}};

std::optional<DType> plain_type(const std::string& name) {
  for (const PlainType& known : kPlainTypes) {
    if (name == known.name) return known.type;
  }
  return std::nullopt;
}

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
};

// Takes the header apart while it is parsed, so that a hostile one of 100 MB never becomes a tree in memory and nesting is
// bounded by the states below: { name: { "dtype": "", "shape": [..], "data_offsets": [..] }, "__metadata__": { "": "" } }.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  Status status;
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart: state_ = State::kRoot; return true;
      case State::kRoot:
        state_ = key_ == "__metadata__" ? State::kMetadata : State::kTensor;
        if (state_ == State::kTensor) {
          if (entries.size() == kMaxTensors) return fail("the file has more than {} tensors", kMaxTensors);
          entries.emplace_back().name = key_;
        }
        fields_.clear();
        return true;
      default: return fail("an object where none belongs");
    }
  }

  bool end_object() override {
    switch (state_) {
      case State::kTensor: {
        const Entry& entry = entries.back();
        state_ = State::kRoot;
        if (entry.dtype.empty()) return fail("it has no dtype");
        if (!entry.has_shape) return fail("it has no shape");
        if (entry.offsets.size() != 2) return fail("data_offsets holds {} numbers; expected 2", entry.offsets.size());
        return true;
      }
      case State::kMetadata: state_ = State::kRoot; return true;
      default: state_ = State::kEnd; return true;
    }
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || (field_ != "shape" && field_ != "data_offsets")) return fail("an array where none belongs");
    if (field_ == "shape") entries.back().has_shape = true;
    state_ = State::kNumbers;
    return true;
  }

  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }

  bool key(string_t& name) override {
    if (name.size() > kMaxNameBytes) return fail("the name {} is longer than {} bytes", printable(name), kMaxNameBytes);
    if (state_ == State::kRoot) {
      key_ = name;
      if (name.empty()) return fail("a tensor has an empty name");
      return names_.insert(name).second || fail("it appears twice");
    }
    field_ = name;
    return fields_.insert(name).second || fail("its field {} appears twice", printable(name));
  }

  bool string(string_t& text) override {
    if (state_ == State::kMetadata) {
      if (metadata.size() == kMaxMetadata) return fail("it has more than {} entries", kMaxMetadata);
      metadata[field_] = text;
      return true;
    }
    if (state_ != State::kTensor || field_ != "dtype") return fail("the string {} where none belongs", printable(text));
    if (text.empty()) return fail("its dtype is empty");
    entries.back().dtype = text;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kNumbers) return fail("the number {} where none belongs", value);
    std::vector<uint64_t>& numbers = field_ == "shape" ? entries.back().shape : entries.back().offsets;
    const size_t most = field_ == "shape" ? kMaxDims : 2;
    if (numbers.size() == most) return fail("its {} has more than {} numbers", field_, most);
    numbers.push_back(value);
    return true;
  }

  bool number_integer(number_integer_t value) override { return fail("the number {}; expected one that is not negative", value); }
  bool number_float(number_float_t, const string_t& text) override { return fail("the number {}; expected an integer", printable(text)); }
  bool boolean(bool) override { return fail("a boolean where none belongs"); }
  bool null() override { return fail("a null where none belongs"); }
  bool binary(binary_t&) override { return fail("a binary value"); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    status = corrupt("the header is no valid JSON at its byte {}", position);
    return false;
  }

 private:
  enum class State { kStart, kRoot, kTensor, kMetadata, kNumbers, kEnd };

  template <class... Args>
  bool fail(fmt::format_string<Args...> format, Args&&... args) {
    status = corrupt(format, std::forward<Args>(args)...);
    status = status.with_context(key_.empty() ? "header" : "tensor " + printable(key_));
    return false;
  }

  State state_ = State::kStart;
  std::string key_;
  std::string field_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
};

// Turns an entry into a view of its bytes; its offsets must span precisely what its shape and type take.
Status place(const Entry& entry, std::span<const uint8_t> data, TensorView& view) {
  const std::optional<DType> type = plain_type(entry.dtype);
  if (!type) {
    return unsupported("dtype {} is not read; expected F32, F16, BF16, F64, I8, U8, I16, I32, I64, BOOL or an F8", printable(entry.dtype));
  }
  view.name = entry.name;
  view.type = *type;
  view.shape = entry.shape;
  std::optional<uint64_t> bytes = static_cast<uint64_t>(block_bytes(*type));
  for (const uint64_t dim : entry.shape) {
    if (dim == 0) return corrupt("shape {} has a dimension of 0", view.shape_string());
    if (bytes) bytes = checked_mul(*bytes, dim);
  }
  if (!bytes) return corrupt("shape {} is larger than 64 bits can count", view.shape_string());
  const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin > end || end > data.size()) {
    return corrupt("data_offsets [{}, {}] do not lie in the {} bytes of data; the file is cut off or damaged", begin, end, data.size());
  }
  if (end - begin != *bytes) {
    return corrupt("{} of shape {} takes {} bytes but data_offsets [{}, {}] span {}", entry.dtype, view.shape_string(), *bytes, begin, end,
                   end - begin);
  }
  view.data = data.subspan(begin, end - begin);
  return Status();
}

Status read_file_contents(std::span<const uint8_t> file, std::vector<TensorView>& tensors, std::map<std::string, std::string>& metadata) {
  uint64_t header_bytes;
  if (file.size() < sizeof header_bytes) return corrupt("the file has {} bytes; a safetensors file has at least 8", file.size());
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  file = file.subspan(sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes) return corrupt("the header is {} bytes long; the limit is {}", header_bytes, kMaxHeaderBytes);
  if (header_bytes > file.size()) return corrupt("the header is {} bytes long but only {} bytes follow", header_bytes, file.size());
  const char* text = reinterpret_cast<const char*>(file.data());
  HeaderReader reader;
  if (header_bytes == 0 || text[0] != '{') return corrupt("the header does not begin with an opening brace");
  Json::sax_parse(text, text + header_bytes, &reader);
  AERIE_TRY(reader.status);

  const std::span<const uint8_t> data = file.subspan(header_bytes);
  std::sort(reader.entries.begin(), reader.entries.end(), [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
  uint64_t expected = 0;
  for (const Entry& entry : reader.entries) {
    const std::string context = "tensor " + printable(entry.name);
    TensorView view;
    AERIE_TRY(place(entry, data, view).with_context(context));
    if (entry.offsets[0] != expected) {
      return corrupt("{}: its data begins at offset {} but the data before it ends at {}; expected neither gap nor overlap", context,
                     entry.offsets[0], expected);
    }
    expected = entry.offsets[1];
    tensors.push_back(std::move(view));
  }
  if (expected != data.size()) return corrupt("the tensors end at offset {} but the file holds {} bytes of data", expected, data.size());
  metadata = std::move(reader.metadata);
  return Status();
}

}  // namespace

// `named`: the tensors that an index says are in this part.
Status SafetensorsFile::add_part(MappedFile part, const std::set<std::string>* named) {
  std::vector<TensorView> tensors;
  std::map<std::string, std::string> metadata;
  AERIE_TRY(read_file_contents(part.bytes(), tensors, metadata).with_context(part.path()));
  size_t found = 0;
  for (TensorView& tensor : tensors) {
    if (named) found += named->count(tensor.name);
    const std::string name = tensor.name;
    if (!add(std::move(tensor))) return corrupt("{}: tensor {} is also in another shard", part.path(), printable(name));
  }
  if (named && found != named->size()) {
    for (const std::string& name : *named) {
      if (!has(name)) return corrupt("{}: the index says that tensor {} is in this file, but it is not", part.path(), printable(name));
    }
    return corrupt("{}: the index names tensors of this file that lie in another shard", part.path());
  }
  metadata_.merge(metadata);
  keep(std::make_shared<const MappedFile>(std::move(part)));
  return Status();
}

Expected<SafetensorsFile> SafetensorsFile::read(MappedFile file) {
  SafetensorsFile out;
  out.path_ = file.path();
  AERIE_TRY(out.add_part(std::move(file), nullptr));
  return out;
}

Expected<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  if (!path.ends_with(".index.json")) {
    AERIE_ASSIGN(MappedFile file, MappedFile::open(path));
    return read(std::move(file));
  }
  SafetensorsFile out;
  out.path_ = path;
  AERIE_ASSIGN(const auto shards, read_shard_index(path));
  for (const auto& [shard, names] : shards) {
    AERIE_ASSIGN(MappedFile part, MappedFile::open((std::filesystem::path(path).parent_path() / shard).string()));
    AERIE_TRY(out.add_part(std::move(part), &names));
  }
  return out;
}

// A shard is a plain file name: nothing in an index can point outside its folder.
Expected<std::map<std::string, std::set<std::string>>> read_shard_index(const std::string& path) {
  AERIE_ASSIGN(const std::string text, read_file(path, kMaxIndexBytes));
  const auto fail = [&](const std::string& message) { return corrupt("{}: {}", path, message); };
  auto parsed = parse_json(text);
  if (!parsed.ok()) return parsed.status().with_context(path);
  const Json& root = *parsed;
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (!root.is_object() || map == root.end() || !map->is_object() || map->empty()) {
    return fail("expected an object with a weight_map that names at least one tensor");
  }
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string()) return fail(fmt::format("weight_map: the shard of {} is no string", printable(name)));
    const auto& file = shard.get_ref<const std::string&>();
    if (!is_plain_file_name(file)) {
      return fail(fmt::format("weight_map: the shard {} of {} is no plain file name in this folder", printable(file), printable(name)));
    }
    shards[file].insert(name);
  }
  return shards;
}

Status write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    const std::string context = fmt::format("{}: tensor {}", path, printable(tensor.name));
    if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes || tensor.name == "__metadata__") {
      return invalid_argument("{}: this is no name for a tensor", context);
    }
    if (!plain_type(dtype_name(tensor.type))) {
      return invalid_argument("{}: safetensors files hold plain types, not {}", context, dtype_name(tensor.type));
    }
    if (tensor.shape.size() > kMaxDims) {
      return invalid_argument("{}: it has {} dimensions; the limit is {}", context, tensor.shape.size(), kMaxDims);
    }
    std::optional<uint64_t> bytes = static_cast<uint64_t>(block_bytes(tensor.type));
    for (const uint64_t dim : tensor.shape) bytes = bytes ? checked_mul(*bytes, dim) : bytes;
    if (!bytes || *bytes == 0 || *bytes != tensor.data.size()) {
      return invalid_argument("{}: {} of shape {} does not fill the {} bytes given", context, dtype_name(tensor.type),
                              tensor.shape_string(), tensor.data.size());
    }
    if (header.contains(tensor.name)) return invalid_argument("{}: it is given twice", context);
    header[tensor.name] = {{"dtype", dtype_name(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }

  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    return invalid_argument("{}: a name or a metadata value is no valid UTF-8", path);
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return invalid_argument("{}: the header would be {} bytes; the limit is {}", path, text.size(), kMaxHeaderBytes);
  }
  const uint64_t header_bytes = text.size();
  return write_file_atomically(path, [&](const WriteSink& sink) -> Status {
    AERIE_TRY(sink({reinterpret_cast<const uint8_t*>(&header_bytes), sizeof header_bytes}));
    AERIE_TRY(sink({reinterpret_cast<const uint8_t*>(text.data()), text.size()}));
    for (const TensorView& tensor : tensors) AERIE_TRY(sink(tensor.data));
    return Status();
  });
}

}  // namespace aerie
