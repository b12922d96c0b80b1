#include "formats/trace_source.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/mapped_file.h"
#include "formats/json_text.h"
#include "formats/printable.h"
#include "formats/safetensors.h"
#include "formats/trace_tensors.h"
#include "formats/trace_torch.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLineBytes = size_t{64} << 20;
constexpr int32_t kMostTokens = std::numeric_limits<int32_t>::max();

// ---- Aerie's own folders

class AerieSource : public TraceSource {
 public:
  explicit AerieSource(TraceReader reader) : reader_(std::move(reader)) {
    const TraceManifest& manifest = reader_.manifest();
    hidden_ = manifest.target.hidden;
    for (const int tap : manifest.taps) slots_.push_back({StateSlot::Kind::kBoundary, tap, StateSlot::Norm::kRaw});
    slots_.push_back({StateSlot::Kind::kBoundary, manifest.target.blocks, StateSlot::Norm::kRaw});
  }

  std::string format() const override { return "Aerie"; }
  const TraceManifest* manifest() const override { return &reader_.manifest(); }
  size_t size() const override { return reader_.rows().size(); }
  Expected<Conversation> read(size_t i) const override {
    const int row = reader_.rows()[i];
    AERIE_ASSIGN(Trace trace, reader_.read(row));
    return Conversation{std::to_string(row), std::move(trace), true};
  }

 private:
  TraceReader reader_;
};

// ---- speculators: hs_ROW.safetensors, and the rows' masks in JSON lines

// The lines of a JSON lines file, found once and parsed when they are asked for.
class TokenRows {
 public:
  static Expected<TokenRows> open(const std::string& path) {
    TokenRows rows;
    AERIE_ASSIGN(rows.file_, MappedFile::open(path));
    const std::string_view text = rows.text();
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      if (text.find_first_not_of(" \t\r", begin) < end) rows.begins_.push_back(begin);
      begin = end + 1;
    }
    return rows;
  }

  const std::string& path() const { return file_.path(); }

  /// The mask of row `row`, whose tokens must be `tokens`.
  Expected<std::vector<uint8_t>> mask(size_t row, const std::vector<int32_t>& tokens) const {
    if (row >= begins_.size()) return not_found("{}: it has {} rows, but there are states of row {}", path(), begins_.size(), row);
    const std::string_view text = this->text();
    const std::string_view line = text.substr(begins_[row], std::min(text.find('\n', begins_[row]), text.size()) - begins_[row]);
    const std::string where = fmt::format("{}: row {}", path(), row);
    if (line.size() > kMaxLineBytes) return resource_error("{}: the line is longer than {} bytes", where, kMaxLineBytes);
    auto parsed = parse_json(line);
    if (!parsed.ok()) return parsed.status().with_context(where);
    const auto numbers = [&](const char* key) -> Expected<std::vector<int64_t>> {
      const auto found = parsed->is_object() ? parsed->find(key) : parsed->end();
      if (!parsed->is_object() || found == parsed->end() || !found->is_array()) {
        return corrupt("{}: expected an object whose {} is a list of integers", where, key);
      }
      std::vector<int64_t> out;
      for (const auto& value : *found) {
        if (!value.is_number_integer()) return corrupt("{}: {} at position {} is no integer", where, key, out.size());
        out.push_back(value.get<int64_t>());
      }
      return out;
    };
    AERIE_ASSIGN(const std::vector<int64_t> ids, numbers("input_ids"));
    AERIE_ASSIGN(const std::vector<int64_t> marks, numbers("loss_mask"));
    if (!std::equal(ids.begin(), ids.end(), tokens.begin(), tokens.end())) {
      return corrupt("{}: its input_ids are not the tokens of the states ({} and {} tokens): the two are of different data sets", where,
                     ids.size(), tokens.size());
    }
    if (marks.size() != tokens.size()) return corrupt("{}: loss_mask has {} values for {} tokens", where, marks.size(), tokens.size());
    std::vector<uint8_t> mask;
    for (const int64_t mark : marks) {
      if (mark != 0 && mark != 1) return corrupt("{}: loss_mask at position {} is {}; expected 0 or 1", where, mask.size(), mark);
      mask.push_back(static_cast<uint8_t>(mark));
    }
    return mask;
  }

 private:
  std::string_view text() const { return {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()}; }

  MappedFile file_;
  std::vector<size_t> begins_;  // of lines that are not blank
};

class SpeculatorsSource : public TraceSource {
 public:
  static Expected<std::unique_ptr<TraceSource>> open(std::vector<std::pair<int, std::string>> rows, const Options& options) {
    auto source = std::make_unique<SpeculatorsSource>();
    source->rows_ = std::move(rows);
    if (!options.rows.empty()) {
      AERIE_ASSIGN(source->token_rows_, TokenRows::open(options.rows));
    }
    source->without_mask_ = options.without_mask;
    AERIE_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(source->rows_.front().second));
    AERIE_ASSIGN(const TensorView* states, states_of(file));
    const uint64_t slots = states->shape[1];
    if (slots > kMaxSlots || states->shape[2] > kMaxHidden) {
      return corrupt("{}: hidden_states has shape {}; expected [T, states, width]", file.path(), states->shape_string());
    }
    for (int i = 0; i + 1 < static_cast<int>(slots); ++i) source->slots_.push_back({StateSlot::Kind::kAux, i, StateSlot::Norm::kRaw});
    source->slots_.push_back({StateSlot::Kind::kFinal, 0, StateSlot::Norm::kRaw});
    source->hidden_ = static_cast<int>(states->shape[2]);
    return std::unique_ptr<TraceSource>(std::move(source));
  }

  std::string format() const override { return "speculators"; }
  size_t size() const override { return rows_.size(); }

  Expected<Conversation> read(size_t i) const override {
    const auto& [row, path] = rows_[i];
    AERIE_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path));
    Conversation out;
    out.id = std::to_string(row);
    AERIE_TRY(fill(file, row, out).with_context(path));
    return out;
  }

 private:
  static constexpr uint64_t kMaxSlots = 1 << 14, kMaxHidden = 1 << 20;

  static Expected<const TensorView*> states_of(const SafetensorsFile& file) {
    AERIE_ASSIGN(const TensorView* states, file.find("hidden_states"));
    if (states->shape.size() == 3) return states;
    return corrupt("{}: hidden_states has shape {}; expected [T, states, width]", file.path(), states->shape_string());
  }

  Status fill(const SafetensorsFile& file, int row, Conversation& out) const {
    AERIE_ASSIGN(const TensorView* tokens, file.find("token_ids"));
    AERIE_ASSIGN(out.trace.tokens, read_numbers("token_ids", *tokens, kMostTokens));
    AERIE_ASSIGN(const TensorView* states, states_of(file));
    if (states->shape[1] != slots_.size() || states->shape[2] != static_cast<uint64_t>(hidden_)) {
      return corrupt("hidden_states has shape {}; the first row has {} states of {} values", states->shape_string(), slots_.size(),
                     hidden_);
    }
    TensorView flat = *states;
    flat.shape = {states->shape[0], states->shape[1] * states->shape[2]};
    AERIE_TRY(read_states({{"hidden_states", &flat}}, hidden_, out.trace));
    if (file.has("loss_mask")) {
      AERIE_ASSIGN(const auto mask, read_numbers("loss_mask", **file.find("loss_mask"), 1));
      out.trace.mask.assign(mask.begin(), mask.end());
      if (mask.size() == out.trace.length()) return Status();
      return corrupt("loss_mask has {} values for {} tokens", mask.size(), out.trace.length());
    }
    if (token_rows_) {
      AERIE_ASSIGN(out.trace.mask, token_rows_->mask(static_cast<size_t>(row), out.trace.tokens));
      return Status();
    }
    if (!without_mask_) {
      return invalid_argument(
          "the states of a speculators data set have no mask: give its rows as JSON lines of input_ids and loss_mask "
          "(datasets.load_from_disk(FOLDER).to_json(FILE) writes them), or take every token for an answer's");
    }
    out.has_mask = false;
    out.trace.mask.assign(out.trace.length(), 1);
    return Status();
  }

  std::vector<std::pair<int, std::string>> rows_;  // ascending
  std::optional<TokenRows> token_rows_;
  bool without_mask_ = false;
};

std::optional<int> state_row(std::string_view name) {
  constexpr std::string_view kPrefix = "hs_", kSuffix = ".safetensors";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || name.size() <= kPrefix.size() + kSuffix.size()) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  int row = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), row);
  if (error != std::errc() || end != digits.data() + digits.size() || row < 0) return std::nullopt;
  return row;
}

Expected<std::vector<std::pair<int, std::string>>> state_files(const fs::path& folder) {
  std::vector<std::pair<int, std::string>> rows;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (const auto row = state_row(it->path().filename().string())) rows.emplace_back(*row, it->path().string());
  }
  if (error) return io_error("{}: cannot be listed: {}", folder.string(), error.message());
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace

std::string StateSlot::name() const {
  switch (kind) {
    case Kind::kBoundary: return boundary_name(number);
    case Kind::kAux: return fmt::format("aux {}", number);
    case Kind::kFinal: break;
  }
  return norm == Norm::kRaw ? "final (before the norm)" : norm == Norm::kNormed ? "final (after the norm)" : "final (norm unknown)";
}

Expected<std::unique_ptr<TraceSource>> TraceSource::open(const std::string& path, const Options& options) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return not_found("{}: there are no traces here", path);
  if (!fs::is_directory(status)) return open_torch_traces({path});
  if (fs::exists(fs::path(path) / "manifest.json", error)) {
    AERIE_ASSIGN(TraceReader reader, TraceReader::open(path));
    return std::unique_ptr<TraceSource>(std::make_unique<AerieSource>(std::move(reader)));
  }
  AERIE_ASSIGN(auto rows, state_files(path));
  if (rows.empty() && fs::is_directory(fs::path(path) / "hidden_states", error)) {
    AERIE_ASSIGN(rows, state_files(fs::path(path) / "hidden_states"));
  }
  if (!rows.empty()) return SpeculatorsSource::open(std::move(rows), options);
  AERIE_ASSIGN(std::vector<std::string> files, list_torch_traces(path));
  if (!files.empty()) return open_torch_traces(std::move(files));
  return not_found(
      "{}: it holds no traces that are read; expected Aerie's manifest.json, hs_*.safetensors (speculators), data_*.ckpt or "
      "data_*.ckpt.gz (SpecForge, SafeAILab), or *.pt (Model-Optimizer)",
      path);
}

}  // namespace aerie
