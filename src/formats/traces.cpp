#include "formats/traces.h"

#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/checked.h"
#include "base/file_io.h"
#include "formats/printable.h"
#include "formats/safetensors.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStates = "hidden_states";
constexpr const char* kTokens = "token_ids";
constexpr const char* kMask = "loss_mask";
constexpr const char* kSourceKey = "aerie.source";
constexpr uint64_t kMaxManifestBytes = 1 << 20;
constexpr std::string_view kRowPrefix = "hs_", kRowSuffix = ".safetensors", kTemporary = ".tmp.";

std::string row_path(const std::string& folder, int row) {
  return (fs::path(folder) / fmt::format("{}{}{}", kRowPrefix, row, kRowSuffix)).string();
}

std::string manifest_path(const std::string& folder) { return (fs::path(folder) / "manifest.json").string(); }

// A number in the one way that we would write it: no sign, no leading zero.
std::optional<int> canonical_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 || fmt::format_int(number).str() != text) return std::nullopt;
  return number;
}

std::optional<int> row_of(std::string_view name) {
  if (!name.starts_with(kRowPrefix) || !name.ends_with(kRowSuffix) || name.size() < kRowPrefix.size() + kRowSuffix.size()) {
    return std::nullopt;
  }
  return canonical_number(name.substr(kRowPrefix.size(), name.size() - kRowPrefix.size() - kRowSuffix.size()));
}

// True for a temporary of ours (see write_file_atomically) whose writer is no longer running.
bool is_leftover(std::string_view name) {
  const size_t at = name.rfind(kTemporary);
  if (at == std::string_view::npos) return false;
  const std::string_view base = name.substr(0, at);
  const std::optional<int> pid = canonical_number(name.substr(at + kTemporary.size()));
  if (!pid || *pid == 0 || (base != "manifest.json" && !row_of(base))) return false;
  return *pid == ::getpid() || (::kill(*pid, 0) != 0 && errno == ESRCH);
}

struct Listing {
  std::set<int> rows;
  std::vector<fs::path> leftovers;
};

Expected<Listing> list_folder(const std::string& folder) {
  Listing listing;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const auto row = row_of(name)) listing.rows.insert(*row);
    if (is_leftover(name)) listing.leftovers.push_back(it->path());
  }
  if (error) return io_error("{}: cannot be listed: {}", folder, error.message());
  return listing;
}

Expected<TraceManifest> read_manifest_file(const std::string& folder) {
  const std::string path = manifest_path(folder);
  AERIE_ASSIGN(const std::string text, read_file(path, kMaxManifestBytes));
  auto manifest = TraceManifest::from_json(text);
  if (!manifest.ok()) return manifest.status().with_context(path);
  return manifest;
}

Status check_same_generation(const TraceManifest& mine, const TraceManifest& theirs) {
  if (mine.generation == theirs.generation) return Status();
  return invalid_argument("generation differs: {} here, {} there; write rows with other settings into another folder", mine.generation,
                          theirs.generation);
}

Status check_trace(const Trace& trace, const TraceManifest& manifest) {
  const size_t length = trace.length();
  if (length == 0) return corrupt("the row has no tokens");
  if (trace.slots != manifest.slots() || trace.hidden != manifest.target.hidden) {
    return corrupt("a position holds {} states of {} values; the manifest says {} of {}", trace.slots, trace.hidden, manifest.slots(),
                   manifest.target.hidden);
  }
  if (trace.mask.size() != length) return corrupt("{} has {} values for {} tokens", kMask, trace.mask.size(), length);
  const size_t row_values = static_cast<size_t>(trace.slots) * static_cast<size_t>(trace.hidden);
  if (trace.states.size() / row_values != length || trace.states.size() % row_values != 0) {
    return corrupt("{} has {} values; {} tokens of {} states of {} take {}", kStates, trace.states.size(), length, trace.slots,
                   trace.hidden, length * row_values);
  }
  for (size_t i = 0; i < length; ++i) {
    if (trace.tokens[i] < 0 || trace.tokens[i] >= manifest.target.vocab) {
      return corrupt("{} at position {} is {}; expected 0 to {}", kTokens, i, trace.tokens[i], manifest.target.vocab - 1);
    }
    if (trace.mask[i] > 1) return corrupt("{} at position {} is {}; expected 0 or 1", kMask, i, trace.mask[i]);
  }
  // An exponent of all ones is infinity or NaN. Compilers turn the largest into vectors, but no search that may end early.
  uint16_t largest = 0;
  for (const uint16_t state : trace.states) largest = std::max<uint16_t>(largest, state & 0x7fff);
  if (largest < 0x7f80) return {};
  const auto bad = std::find_if(trace.states.begin(), trace.states.end(), [](uint16_t state) { return (state & 0x7f80) == 0x7f80; });
  const size_t at = static_cast<size_t>(bad - trace.states.begin());
  return corrupt("{} at position {}, slot {}, is not finite", kStates, at / row_values,
                 at % row_values / static_cast<size_t>(trace.hidden));
}

TensorView view_of(const char* name, DType type, std::vector<uint64_t> shape, const void* data, size_t bytes) {
  return {name, type, std::move(shape), {static_cast<const uint8_t*>(data), bytes}};
}

Expected<const TensorView*> find_typed(const SafetensorsFile& file, const char* name, DType type, size_t dims) {
  AERIE_ASSIGN(const TensorView* tensor, file.find(name));
  if (tensor->type != type || tensor->shape.size() != dims) {
    return corrupt("{}: {} is {} of shape {}; expected {} of {} dimensions", file.path(), name, dtype_name(tensor->type),
                   tensor->shape_string(), dtype_name(type), dims);
  }
  return tensor;
}

Expected<Trace> read_trace(const SafetensorsFile& file, const TraceManifest& manifest) {
  AERIE_ASSIGN(const TensorView* tokens, find_typed(file, kTokens, DType::kI64, 1));
  AERIE_ASSIGN(const TensorView* states, find_typed(file, kStates, DType::kBF16, 3));
  AERIE_ASSIGN(const TensorView* mask, find_typed(file, kMask, DType::kU8, 1));
  if (file.tensors().size() != 3) {
    return corrupt("{}: it holds {} tensors; expected {}, {} and {} alone", file.path(), file.tensors().size(), kTokens, kStates, kMask);
  }
  const auto source = file.metadata().find(kSourceKey);
  if (source != file.metadata().end() && source->second != manifest.source_id()) {
    return corrupt("{}: this row comes from another data set: its source is {} but the manifest's is {}", file.path(),
                   printable(source->second), manifest.source_id());
  }
  const uint64_t length = tokens->shape[0], slots = static_cast<uint64_t>(manifest.slots());
  const auto hidden = static_cast<uint64_t>(manifest.target.hidden);
  if (states->shape != std::vector<uint64_t>{length, slots, hidden} || mask->shape[0] != length) {
    return corrupt("{}: {} tokens go with {} [{}, {}, {}] and {} [{}] but found {} and {}", file.path(), length, kStates, length, slots,
                   hidden, kMask, length, states->shape_string(), mask->shape_string());
  }
  Trace trace;
  trace.slots = manifest.slots();
  trace.hidden = manifest.target.hidden;
  trace.tokens.resize(length);
  for (uint64_t i = 0; i < length; ++i) {
    int64_t token;
    std::memcpy(&token, tokens->data.data() + i * sizeof token, sizeof token);
    if (token < 0 || token >= manifest.target.vocab) {
      return corrupt("{}: {} at position {} is {}; expected 0 to {}", file.path(), kTokens, i, token, manifest.target.vocab - 1);
    }
    trace.tokens[i] = static_cast<int32_t>(token);
  }
  trace.mask.assign(mask->data.begin(), mask->data.end());
  trace.states.resize(states->data.size() / 2);
  std::memcpy(trace.states.data(), states->data.data(), states->data.size());
  AERIE_TRY(check_trace(trace, manifest).with_context(file.path()));
  return trace;
}

}  // namespace

std::vector<uint16_t> Trace::states_of(std::span<const int> chosen) const {
  std::vector<uint16_t> out;
  out.reserve(length() * chosen.size() * static_cast<size_t>(hidden));
  for (size_t t = 0; t < length(); ++t) {
    for (const int slot : chosen) {
      const std::span<const uint16_t> one = state(t, slot);
      out.insert(out.end(), one.begin(), one.end());
    }
  }
  return out;
}

Expected<TraceWriter> TraceWriter::open(const std::string& folder, const TraceManifest& manifest) {
  AERIE_TRY(manifest.check().with_context(folder));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return io_error("{}: cannot be created: {}", folder, error.message());
  AERIE_ASSIGN(Listing listing, list_folder(folder));

  TraceWriter writer;
  writer.folder_ = folder;
  writer.rows_ = std::move(listing.rows);
  const auto present = read_manifest_file(folder);
  if (present.ok()) {
    AERIE_TRY(manifest.check_same_source(*present).with_context(folder));
    AERIE_TRY(check_same_generation(manifest, *present).with_context(folder));
    writer.manifest_ = *present;
  } else if (present.status().code() != StatusCode::kNotFound) {
    return present.status();
  } else if (!writer.rows_.empty()) {
    return invalid_argument("{}: it has rows but no manifest.json to say which target they come from; use another folder", folder);
  } else {
    AERIE_TRY(write_file_atomically(manifest_path(folder), manifest.to_json()));
    writer.manifest_ = manifest;
  }
  for (const fs::path& leftover : listing.leftovers) fs::remove(leftover, error);
  return writer;
}

Status TraceWriter::write_row(int row, const Trace& trace) {
  const std::string path = row_path(folder_, row);
  if (row < 0) return invalid_argument("{}: row numbers begin at 0", path);
  const Status fits = check_trace(trace, manifest_);
  if (!fits.ok()) return invalid_argument("{}: {}", path, fits.message());
  const uint64_t length = trace.length(), slots = static_cast<uint64_t>(trace.slots), hidden = static_cast<uint64_t>(trace.hidden);
  const std::vector<int64_t> tokens(trace.tokens.begin(), trace.tokens.end());
  // Widest values first, so that every tensor lies aligned in the file.
  const std::vector<TensorView> tensors = {
      view_of(kTokens, DType::kI64, {length}, tokens.data(), tokens.size() * sizeof tokens[0]),
      view_of(kStates, DType::kBF16, {length, slots, hidden}, trace.states.data(), trace.states.size() * sizeof trace.states[0]),
      view_of(kMask, DType::kU8, {length}, trace.mask.data(), trace.mask.size())};
  AERIE_TRY(write_safetensors(path, tensors, {{kSourceKey, manifest_.source_id()}}));
  rows_.insert(row);
  return Status();
}

Expected<TraceReader> TraceReader::open(const std::string& folder) {
  TraceReader reader;
  reader.folder_ = folder;
  AERIE_ASSIGN(reader.manifest_, read_manifest_file(folder));
  AERIE_ASSIGN(const Listing listing, list_folder(folder));
  reader.rows_.assign(listing.rows.begin(), listing.rows.end());
  return reader;
}

Expected<Trace> TraceReader::read(int row) const {
  AERIE_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(row_path(folder_, row)));
  return read_trace(file, manifest_);
}

}  // namespace aerie
