#include "formats/torch_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "base/checked.h"
#include "base/gzip.h"
#include "base/mapped_file.h"
#include "formats/printable.h"
#include "formats/zip.h"

namespace aerie {

struct TorchContents {
  MappedFile file;
  PickleGraph graph;
  std::vector<TensorView> views;             // of graph.tensors
  std::vector<std::vector<uint8_t>> copies;  // of those that are not contiguous
};

namespace {

constexpr std::array<uint8_t, 4> kZipBegin = {'P', 'K', 3, 4};
constexpr std::array<uint8_t, 2> kGzipBegin = {0x1f, 0x8b};
// The format before torch 1.6 is a row of pickles, the first of which is the integer 0x1950a86a20f9469cfc6c.
constexpr std::array<uint8_t, 14> kLegacyBegin = {0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
constexpr uint64_t kMinInflatedBytes = 1 << 20;

template <size_t N>
bool begins_with(std::span<const uint8_t> file, const std::array<uint8_t, N>& begin) {
  return file.size() >= N && std::equal(begin.begin(), begin.end(), file.begin());
}

// The archive's entries without the folder that they all lie in, which has the name of the file that was first written.
Expected<std::map<std::string_view, std::span<const uint8_t>>> read_records(std::span<const uint8_t> file) {
  AERIE_ASSIGN(const std::vector<ZipEntry> entries, read_zip(file));
  constexpr std::string_view kPickle = "/data.pkl";
  std::optional<std::string_view> folder;
  for (const ZipEntry& entry : entries) {
    if (!entry.name.ends_with(kPickle)) continue;
    const std::string_view parent = entry.name.substr(0, entry.name.size() - kPickle.size());
    if (parent.find('/') != std::string_view::npos) continue;
    if (folder) return corrupt("the archive has a data.pkl in {} and in {}; expected one", printable(*folder), printable(parent));
    folder = parent;
  }
  if (!folder) return unsupported("the archive has no data.pkl, so torch.save did not write it");
  std::map<std::string_view, std::span<const uint8_t>> records;
  const ZipEntry* compressed = nullptr;
  for (const ZipEntry& entry : entries) {
    if (!entry.name.starts_with(*folder) || !entry.name.substr(folder->size()).starts_with('/')) continue;
    records.emplace(entry.name.substr(folder->size() + 1), entry.data);
    if (entry.method != 0) compressed = &entry;
  }
  if (records.contains("constants.pkl")) return unsupported("the file is a TorchScript program; save the module's state_dict instead");
  if (compressed != nullptr) {
    return unsupported("the entry {} is compressed (method {}); torch.save compresses nothing: save the file again with it",
                       printable(compressed->name), compressed->method);
  }
  return records;
}

// The bytes of each storage.
Expected<std::vector<std::span<const uint8_t>>> find_storages(const PickleGraph& graph,
                                                              const std::map<std::string_view, std::span<const uint8_t>>& records) {
  std::vector<std::span<const uint8_t>> out;
  for (const PickleStorage& storage : graph.storages) {
    const auto record = records.find("data/" + std::string(storage.key));
    if (record == records.end()) return corrupt("storage {} has no record in the archive", printable(storage.key));
    const auto bytes = checked_mul(storage.count, static_cast<uint64_t>(block_bytes(storage.type)));
    if (!bytes || *bytes != record->second.size()) {
      return corrupt("storage {} of {} {} values has a record of {} bytes", printable(storage.key), storage.count, dtype_name(storage.type),
                     record->second.size());
    }
    out.push_back(record->second);
  }
  return out;
}

bool is_contiguous(const PickleTensor& tensor) {
  uint64_t expected = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] == 1) continue;  // never stepped over, so its stride has no meaning
    if (tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

// The tensor's elements in the order of its indices. `first` is the address of element 0; the pickle's reader has checked that
// all of them lie in the storage.
std::vector<uint8_t> gather(const PickleTensor& tensor, const uint8_t* first, size_t width, size_t bytes) {
  std::vector<uint8_t> out(bytes);
  std::vector<uint64_t> index(tensor.shape.size(), 0);
  uint64_t at = 0;
  for (size_t written = 0; written < bytes; written += width) {
    std::memcpy(out.data() + written, first + at * width, width);
    for (size_t dim = index.size(); dim-- > 0;) {
      at += tensor.strides[dim];
      if (++index[dim] < tensor.shape[dim]) break;
      at -= tensor.strides[dim] * tensor.shape[dim];
      index[dim] = 0;
    }
  }
  return out;
}

Status read_tensors(const std::vector<std::span<const uint8_t>>& storages, TorchContents& out) {
  uint64_t budget = out.file.bytes().size();
  for (const PickleTensor& tensor : out.graph.tensors) {
    TensorView view;
    view.type = out.graph.storages[tensor.storage].type;
    view.shape = tensor.shape;
    const auto width = static_cast<uint64_t>(block_bytes(view.type));
    // No element is named twice, so this is at most the storage's size.
    const uint64_t bytes = view.element_count() * width;
    const std::span<const uint8_t> storage = storages[tensor.storage].subspan(tensor.offset * width);
    if (is_contiguous(tensor)) {
      view.data = storage.first(bytes);
    } else {
      if (bytes > budget) {
        return resource_error("tensors that are not contiguous take more bytes than the file has; save tensor.contiguous()");
      }
      budget -= bytes;
      out.copies.push_back(gather(tensor, storage.data(), width, bytes));
      view.data = out.copies.back();
    }
    out.views.push_back(std::move(view));
  }
  return Status();
}

Status read_contents(TorchContents& out) {
  const std::span<const uint8_t> file = out.file.bytes();
  if (begins_with(file, kLegacyBegin)) {
    return unsupported("the file has the format of torch before 1.6; load it and save it again with a newer torch, or as safetensors");
  }
  if (!begins_with(file, kZipBegin)) return corrupt("the file is no zip archive, as torch.save writes them");
  AERIE_ASSIGN(const auto records, read_records(file));
  if (const auto order = records.find("byteorder"); order != records.end()) {
    const std::string_view text(reinterpret_cast<const char*>(order->second.data()), order->second.size());
    if (text != "little") return unsupported("its byte order is {}; expected 'little'", printable(text));
  }
  auto graph = read_torch_pickle(records.at("data.pkl"));
  if (!graph.ok()) return graph.status().with_context("data.pkl");
  out.graph = std::move(*graph);
  AERIE_ASSIGN(const auto storages, find_storages(out.graph, records));
  return read_tensors(storages, out);
}

}  // namespace

bool looks_like_torch(std::span<const uint8_t> file) {
  return begins_with(file, kZipBegin) || begins_with(file, kGzipBegin) || begins_with(file, kLegacyBegin);
}

std::optional<bool> TorchValue::boolean() const { return kind() == PickleKind::kBool ? std::optional(item_.integer != 0) : std::nullopt; }

std::optional<int64_t> TorchValue::integer() const { return kind() == PickleKind::kInt ? std::optional(item_.integer) : std::nullopt; }

std::optional<double> TorchValue::real() const { return kind() == PickleKind::kFloat ? std::optional(item_.real) : std::nullopt; }

std::optional<std::string_view> TorchValue::string() const {
  return kind() == PickleKind::kString ? std::optional(contents_->graph.string(item_)) : std::nullopt;
}

const TensorView* TorchValue::tensor() const { return kind() == PickleKind::kTensor ? &contents_->views[item_.index] : nullptr; }

size_t TorchValue::size() const {
  switch (kind()) {
    case PickleKind::kList:
    case PickleKind::kTuple: return contents_->graph.sequences[item_.index].size();
    case PickleKind::kDict: return contents_->graph.dicts[item_.index].items.size();
    default: return 0;
  }
}

TorchValue TorchValue::at(size_t i) const {
  const PickleGraph& graph = contents_->graph;
  return {contents_, kind() == PickleKind::kDict ? graph.dicts[item_.index].items[i].second : graph.sequences[item_.index][i]};
}

TorchValue TorchValue::key_at(size_t i) const { return {contents_, contents_->graph.dicts[item_.index].items[i].first}; }

std::optional<TorchValue> TorchValue::find(std::string_view key) const {
  if (kind() != PickleKind::kDict) return std::nullopt;
  const PickleGraph& graph = contents_->graph;
  const PickleDict& dict = graph.dicts[item_.index];
  const auto before = [&](uint32_t i, std::string_view wanted) {
    const PickleItem& each = dict.items[i].first;
    return each.kind == PickleKind::kInt || graph.string(each) < wanted;
  };
  const auto found = std::lower_bound(dict.sorted.begin(), dict.sorted.end(), key, before);
  if (found == dict.sorted.end() || graph.string(dict.items[*found].first) != key) return std::nullopt;
  return TorchValue(contents_, dict.items[*found].second);
}

Expected<TorchFile> TorchFile::open(const std::string& path) {
  auto contents = std::make_shared<TorchContents>();
  AERIE_ASSIGN(contents->file, MappedFile::open(path));
  if (const uint64_t packed = contents->file.bytes().size(); begins_with(contents->file.bytes(), kGzipBegin)) {
    AERIE_ASSIGN(std::string content, read_maybe_gzip(path, std::max(kMinInflatedBytes, packed * kMaxInflation)));
    contents->file = MappedFile::from_memory(path, std::move(content));
  }
  AERIE_TRY(read_contents(*contents).with_context(path));
  TorchFile file;
  file.contents_ = std::move(contents);
  return file;
}

Expected<TorchFile> TorchFile::from_memory(const std::string& name, std::string content) {
  auto contents = std::make_shared<TorchContents>();
  contents->file = MappedFile::from_memory(name, std::move(content));
  AERIE_TRY(read_contents(*contents).with_context(name));
  TorchFile file;
  file.contents_ = std::move(contents);
  return file;
}

const std::string& TorchFile::path() const { return contents_->file.path(); }

TorchValue TorchFile::root() const { return {contents_.get(), contents_->graph.root}; }

Expected<TorchCheckpoint> TorchCheckpoint::open(const std::string& path) {
  AERIE_ASSIGN(const TorchFile file, TorchFile::open(path));
  return from_file(file);
}

Expected<TorchCheckpoint> TorchCheckpoint::from_file(const TorchFile& file) {
  TorchCheckpoint out;
  out.path_ = file.path();
  out.keep(file.contents_);
  const TorchValue root = file.root();
  if (root.kind() != PickleKind::kDict || root.size() == 0) {
    return unsupported("{}: it holds {}; expected a dict of named tensors", out.path_,
                       root.kind() == PickleKind::kDict ? "an empty dict" : root.kind_name());
  }
  for (size_t i = 0; i < root.size(); ++i) {
    const std::optional<std::string_view> name = root.key_at(i).string();
    if (!name) return unsupported("{}: a key is {}; expected the name of a tensor", out.path_, root.key_at(i).kind_name());
    const TorchValue value = root.at(i);
    if (value.tensor() == nullptr) {
      const bool deeper = value.kind() == PickleKind::kDict && value.size() > 0 && value.at(0).tensor() != nullptr;
      return unsupported("{}: the entry {} is {}; expected a tensor{}", out.path_, printable(*name), value.kind_name(),
                         deeper ? " (a checkpoint of a training run: save that dict alone)" : "");
    }
    TensorView tensor = *value.tensor();
    tensor.name = *name;
    out.add(std::move(tensor));  // a dict has each key once
  }
  return out;
}

}  // namespace aerie
