#include "formats/trace_torch.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <limits>

#include "formats/torch_file.h"
#include "formats/trace_tensors.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxHidden = 1 << 20;

/// Who stores what under which names. `aux` holds the drafter's feature, `final` one state after the last block.
struct Format {
  const char* name;
  const char* aux;  // null: none is stored
  const char* final;
  StateSlot::Norm norm;
};
constexpr std::array<Format, 4> kFormats = {{
    // Where both stand, boundary N itself is taken.
    {"Model-Optimizer", "aux_hidden_states", "hidden_states_prenorm", StateSlot::Norm::kRaw},
    // Dumps through HF hold the normed state, those through vLLM the raw one, and nothing says which.
    {"Model-Optimizer", "aux_hidden_states", "hidden_states", StateSlot::Norm::kUnknown},
    // Its trainer applies nothing but the head to it.
    {"SpecForge", "aux_hidden_state", "hidden_state", StateSlot::Norm::kNormed},
    {"SafeAILab", nullptr, "hidden_state", StateSlot::Norm::kUnknown},
}};

const TensorView* tensor_of(const TorchFile& file, const char* key) {
  const auto value = file.root().find(key);
  return value ? value->tensor() : nullptr;
}

const Format* format_of(const TorchFile& file) {
  for (const Format& format : kFormats) {
    if ((format.aux == nullptr || tensor_of(file, format.aux)) && tensor_of(file, format.final)) return &format;
  }
  return nullptr;
}

std::string keys_of(const TorchValue& root) {
  std::string keys;
  for (size_t i = 0; i < std::min<size_t>(root.size(), 12); ++i) {
    const auto key = root.kind() == PickleKind::kDict ? root.key_at(i).string() : std::nullopt;
    if (key && key->size() < 64) keys += (keys.empty() ? "" : ", ") + std::string(*key);
  }
  return keys.empty() ? "no named values" : keys;
}

class TorchSource : public TraceSource {
 public:
  static Expected<std::unique_ptr<TraceSource>> open(std::vector<std::string> files) {
    auto source = std::make_unique<TorchSource>();
    source->files_ = std::move(files);
    AERIE_ASSIGN(const TorchFile first, TorchFile::open(source->files_.front()));
    const Status known = source->learn(first);
    if (!known.ok()) return known.with_context(first.path());
    return std::unique_ptr<TraceSource>(std::move(source));
  }

  std::string format() const override { return format_->name; }
  size_t size() const override { return files_.size(); }

  Expected<Conversation> read(size_t i) const override {
    AERIE_ASSIGN(const TorchFile file, TorchFile::open(files_[i]));
    Conversation out;
    out.id = fs::path(files_[i]).filename().string();
    AERIE_TRY(fill(file, out).with_context(files_[i]));
    return out;
  }

 private:
  // The slots and widths, which all files share.
  Status learn(const TorchFile& file) {
    format_ = format_of(file);
    if (format_ == nullptr) {
      return unsupported(
          "it is no trace that is known: it holds {}; expected input_ids with hidden_state and aux_hidden_state (SpecForge), "
          "hidden_states and aux_hidden_states (Model-Optimizer), or hidden_state (SafeAILab)",
          keys_of(file.root()));
    }
    AERIE_ASSIGN(const Extent final, extent_of({format_->final, tensor_of(file, format_->final)}));
    if (final.width > kMaxHidden) return corrupt("{} has {} values a position; the limit is {}", format_->final, final.width, kMaxHidden);
    hidden_ = static_cast<int>(final.width);
    if (format_->aux != nullptr) {
      AERIE_ASSIGN(const Extent aux, extent_of({format_->aux, tensor_of(file, format_->aux)}));
      if (aux.width % final.width != 0) {
        return corrupt("{} has {} values a position; expected a multiple of {}, the width of {}", format_->aux, aux.width, final.width,
                       format_->final);
      }
      for (int i = 0; i < static_cast<int>(aux.width / final.width); ++i)
        slots_.push_back({StateSlot::Kind::kAux, i, StateSlot::Norm::kRaw});
    }
    slots_.push_back({StateSlot::Kind::kFinal, 0, format_->norm});
    return Status();
  }

  Status fill(const TorchFile& file, Conversation& out) const {
    if (const Format* found = format_of(file); found != format_) {
      return corrupt("it is {} but the first file is a trace of {} with {}", found ? std::string("a trace of ") + found->name : "no trace",
                     format_->name, format_->final);
    }
    const TensorView* tokens = tensor_of(file, "input_ids");
    if (tokens == nullptr) return corrupt("it has no tensor input_ids; it holds {}", keys_of(file.root()));
    Trace& trace = out.trace;
    AERIE_ASSIGN(trace.tokens, read_numbers("input_ids", *tokens, std::numeric_limits<int32_t>::max()));
    std::vector<StateTensor> parts;
    if (format_->aux != nullptr) parts.push_back({format_->aux, tensor_of(file, format_->aux)});
    parts.push_back({format_->final, tensor_of(file, format_->final)});
    AERIE_ASSIGN(const Extent final, extent_of(parts.back()));
    if (final.width != static_cast<uint64_t>(hidden_)) {
      return corrupt("{} has {} values a position; the first file has {}", format_->final, final.width, hidden_);
    }
    AERIE_TRY(read_states(parts, hidden_, trace));
    if (static_cast<size_t>(trace.slots) != slots_.size()) {
      return corrupt("it has {} states a position; the first file has {}", trace.slots, slots_.size());
    }
    const TensorView* mask = tensor_of(file, "loss_mask");
    out.has_mask = mask != nullptr;
    if (mask == nullptr) {
      trace.mask.assign(trace.length(), 1);
      return Status();
    }
    AERIE_ASSIGN(const auto marks, read_numbers("loss_mask", *mask, 1));
    if (marks.size() != trace.length()) return corrupt("loss_mask has {} values for {} tokens", marks.size(), trace.length());
    trace.mask.assign(marks.begin(), marks.end());
    return Status();
  }

  std::vector<std::string> files_;
  const Format* format_ = nullptr;
};

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Digits compare as numbers: data_9 before data_10.
bool natural_less(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const auto number = [](const std::string& text, size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return std::string_view(text).substr(begin, at - begin);
    };
    const std::string_view x = number(a, i), y = number(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  return a.size() - i < b.size() - j || (a.size() - i == b.size() - j && a < b);
}

}  // namespace

Expected<std::vector<std::string>> list_torch_traces(const std::string& folder) {
  std::vector<std::string> checkpoints, others;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it.depth() >= 1) it.disable_recursion_pending();
    const std::string name = it->path().filename().string();
    if (name.starts_with("data_") && (name.ends_with(".ckpt") || name.ends_with(".ckpt.gz"))) checkpoints.push_back(it->path().string());
    if (it.depth() == 0 && name.ends_with(".pt")) others.push_back(it->path().string());
  }
  if (error) return io_error("{}: cannot be listed: {}", folder, error.message());
  std::vector<std::string>& found = checkpoints.empty() ? others : checkpoints;
  std::sort(found.begin(), found.end(), natural_less);
  return found;
}

Expected<std::unique_ptr<TraceSource>> open_torch_traces(std::vector<std::string> files) { return TorchSource::open(std::move(files)); }

}  // namespace aerie
