#include "formats/trace_source.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <optional>

#include "formats/safetensors.h"
#include "formats/token_rows.h"
#include "formats/trace_tensors.h"
#include "formats/trace_torch.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

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

// ---- speculators: hs_ROW.safetensors, and the rows' masks in the files of its data set

// The Arrow rows that belong to a folder of states: beside them, or where it is the hidden_states of a data set's folder.
Expected<std::optional<TokenRows>> find_rows(const fs::path& state_file) {
  std::error_code error;
  const fs::path folder = fs::absolute(state_file, error).lexically_normal().parent_path();
  if (error) return io_error("{}: its folder cannot be told: {}", state_file.string(), error.message());
  AERIE_ASSIGN(auto rows, TokenRows::find(folder.string()));
  if (rows || folder.filename() != "hidden_states") return rows;
  return TokenRows::find(folder.parent_path().string());
}

class SpeculatorsSource : public TraceSource {
 public:
  static Expected<std::unique_ptr<TraceSource>> open(std::vector<std::pair<int, std::string>> rows, const Options& options) {
    auto source = std::make_unique<SpeculatorsSource>();
    source->rows_ = std::move(rows);
    if (!options.rows.empty()) {
      AERIE_ASSIGN(source->token_rows_, TokenRows::open(options.rows));
    } else {
      auto found = find_rows(source->rows_.front().second);
      // Rows without a mask, or of which a file is not there, are no reason not to do without.
      const bool is_excused = options.without_mask && found.status().code() == StatusCode::kNotFound;
      if (!found.ok() && !is_excused) return found.status();
      if (found.ok()) source->token_rows_ = *std::move(found);
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
          "the states of a speculators data set have no mask, and its rows lie neither beside them nor in the folder above hidden_states: "
          "give the folder that datasets saved them to, or JSON lines of input_ids and loss_mask, or take every token for an answer's");
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
