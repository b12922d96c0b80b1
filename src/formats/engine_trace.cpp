#include "formats/engine_trace.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "base/file_io.h"
#include "formats/json_text.h"
#include "formats/printable.h"
#include "formats/safetensors.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "aerie-engine-trace";
constexpr uint64_t kMaxManifestBytes = 1 << 20, kMaxLinesBytes = uint64_t{256} << 20;
constexpr std::string_view kPrefix = "request_", kLines = ".jsonl", kTensors = ".safetensors";
constexpr int kMaxStep = 1024, kMaxTop = 4096, kMaxWidth = 1 << 24;
constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

std::string path_of(const std::string& folder, int number, std::string_view suffix) {
  return (fs::path(folder) / fmt::format("{}{}{}", kPrefix, number, suffix)).string();
}

std::optional<int> number_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kLines)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kLines.size());
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 0 || fmt::format_int(number).str() != digits)
    return std::nullopt;
  return number;
}

/// The requests whose lines are there; those are written last, so that their tensors are there too.
Expected<std::vector<int>> list_requests(const std::string& folder) {
  std::vector<int> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (const auto number = number_of(it->path().filename().string())) out.push_back(*number);
  }
  if (error) return io_error("{}: cannot be listed: {}", folder, error.message());
  std::sort(out.begin(), out.end());
  return out;
}

Expected<EngineTraceManifest> read_manifest(const std::string& folder) {
  const std::string path = (fs::path(folder) / "engine.json").string();
  AERIE_ASSIGN(const std::string text, read_file(path, kMaxManifestBytes));
  auto parsed = parse_json(text, 8);
  if (!parsed.ok()) return parsed.status().with_context(path);
  const json& root = *parsed;
  const auto string_at = [&](const char* key) {
    return root.contains(key) && root[key].is_string() ? root[key].get<std::string>() : std::string();
  };
  if (!root.is_object() || string_at("format") != kFormat) return corrupt("{}: expected an object whose format is {}", path, kFormat);
  const auto version = root.find("format_version");
  if (version == root.end() || !version->is_number_unsigned()) return corrupt("{}: key format_version is missing, or no number", path);
  if (version->get<uint64_t>() != EngineTraceManifest::kFormatVersion) {
    return unsupported("{}: format_version is {}; this program reads {}", path, version->get<uint64_t>(),
                       EngineTraceManifest::kFormatVersion);
  }
  if (string_at("engine").empty()) return corrupt("{}: key engine should name the engine and its version", path);
  return EngineTraceManifest{string_at("engine"), string_at("drafter")};
}

Expected<int32_t> read_count(const json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_unsigned() || at->get<uint64_t>() > static_cast<uint64_t>(kMost)) {
    return corrupt("key {} should hold an integer from 0 to {}", key, kMost);
  }
  return at->get<int32_t>();
}

Expected<std::vector<int32_t>> read_list(const json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_array()) return corrupt("key {} should hold a list", key);
  std::vector<int32_t> out;
  for (const json& value : *at) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(kMost))
      return corrupt("{}[{}] is no token id", key, out.size());
    out.push_back(value.get<int32_t>());
  }
  return out;
}

Status read_line(std::string_view line, bool first, EngineRequest& out) {
  AERIE_ASSIGN(const json object, parse_json(line, 8));
  if (!object.is_object()) return corrupt("expected a JSON object");
  if (first) {
    AERIE_ASSIGN(out.tokens, read_list(object, "token_ids"));
    AERIE_ASSIGN(out.prompt, read_count(object, "prompt_tokens"));
    AERIE_ASSIGN(out.cached, read_count(object, "cached_tokens"));
    return {};
  }
  EngineCycle& cycle = out.cycles.emplace_back();
  AERIE_ASSIGN(cycle.newest, read_count(object, "newest"));
  AERIE_ASSIGN(cycle.accepted, read_count(object, "accepted"));
  AERIE_ASSIGN(cycle.drafts, read_list(object, "drafts"));
  return {};
}

Status read_lines(const std::string& path, EngineRequest& out) {
  AERIE_ASSIGN(const std::string text, read_file(path, kMaxLinesBytes));
  if (text.empty() || text.back() != '\n') return corrupt("{}: it is cut off: the last line does not end", path);
  size_t number = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    const Status status = read_line(std::string_view(text).substr(begin, end - begin), number == 0, out);
    if (!status.ok()) return status.with_context(fmt::format("{}: line {}", path, number + 1));
    begin = end + 1;
  }
  return {};
}

/// The integers [n] of a tensor, from 0 to `most`.
Expected<std::vector<int32_t>> read_integers(const SafetensorsFile& file, const char* name, uint64_t n, int32_t most) {
  AERIE_ASSIGN(const TensorView* tensor, file.find(name));
  if (tensor->element_count() != n)
    return corrupt("{}: {} has the shape {}, expected {} values", file.path(), name, tensor->shape_string(), n);
  auto values = to_integers(*tensor);
  if (!values.ok()) return values.status().with_context(file.path() + ": " + name);
  std::vector<int32_t> out;
  for (const int64_t value : *values) {
    if (value < 0 || value > most) return corrupt("{}: {}[{}] is {}, expected 0 to {}", file.path(), name, out.size(), value, most);
    out.push_back(static_cast<int32_t>(value));
  }
  return out;
}

Expected<const TensorView*> find_matrix(const SafetensorsFile& file, const char* name, uint64_t most_columns) {
  AERIE_ASSIGN(const TensorView* tensor, file.find(name));
  if (tensor->shape.size() != 2 || tensor->shape[1] > most_columns) {
    return corrupt("{}: {} has the shape {}, expected two dimensions, the second at most {}", file.path(), name, tensor->shape_string(),
                   most_columns);
  }
  return tensor;
}

Status read_rows(const SafetensorsFile& file, int32_t cycles, EngineRequest& out) {
  AERIE_ASSIGN(const TensorView* features, find_matrix(file, "rows.feature", kMaxWidth));
  const uint64_t n = features->shape[0];
  AERIE_ASSIGN(const auto tokens, read_integers(file, "rows.token", n, kMost));
  AERIE_ASSIGN(const auto positions, read_integers(file, "rows.position", n, kMost));
  AERIE_ASSIGN(const auto at, read_integers(file, "rows.cycle", n, std::max(0, cycles - 1)));
  for (size_t i = 0; i < tokens.size(); ++i) out.rows.push_back({tokens[i], positions[i], at[i]});
  out.width = static_cast<int>(features->shape[1]);
  if (features->type == DType::kBF16) {
    out.features.resize(features->element_count());
    std::memcpy(out.features.data(), features->data.data(), features->data.size());
    return {};
  }
  auto values = to_float(*features);
  if (!values.ok()) return values.status().with_context(file.path() + ": rows.feature");
  std::transform(values->begin(), values->end(), std::back_inserter(out.features), f32_to_bf16);
  return {};
}

Status read_steps(const SafetensorsFile& file, int32_t cycles, EngineRequest& out) {
  AERIE_ASSIGN(const TensorView* top, find_matrix(file, "steps.top_tokens", kMaxTop));
  const uint64_t n = top->shape[0];
  AERIE_ASSIGN(const auto at, read_integers(file, "steps.cycle", n, std::max(0, cycles - 1)));
  AERIE_ASSIGN(const auto steps, read_integers(file, "steps.step", n, kMaxStep));
  AERIE_ASSIGN(const auto tokens, read_integers(file, "steps.token", n, kMost));
  AERIE_ASSIGN(const auto positions, read_integers(file, "steps.position", n, kMost));
  for (size_t i = 0; i < at.size(); ++i) out.steps.push_back({at[i], steps[i], tokens[i], positions[i]});
  out.top = static_cast<int>(top->shape[1]);
  AERIE_ASSIGN(out.top_tokens, read_integers(file, "steps.top_tokens", top->element_count(), kMost));
  AERIE_ASSIGN(const TensorView* logits, file.find("steps.top_logits"));
  if (logits->shape != top->shape) {
    return corrupt("{}: steps.top_logits has the shape {}, steps.top_tokens {}", file.path(), logits->shape_string(), top->shape_string());
  }
  AERIE_ASSIGN(out.top_logits, to_float(*logits));
  return {};
}

}  // namespace

Status EngineRequest::check() const {
  const auto count = static_cast<int32_t>(std::min<size_t>(tokens.size(), static_cast<size_t>(kMost)));
  if (prompt > count) return invalid_argument("prompt_tokens is {}, but there are {} tokens", prompt, tokens.size());
  if (cached > prompt) return invalid_argument("cached_tokens is {}, but the prompt has {}", cached, prompt);
  if (width < 0 || features.size() != rows.size() * static_cast<size_t>(width)) {
    return invalid_argument("{} rows of width {} have {} feature values", rows.size(), width, features.size());
  }
  const size_t kept = steps.size() * static_cast<size_t>(std::max(0, top));
  if (top_tokens.size() != kept || top_logits.size() != kept) {
    return invalid_argument("{} steps of {} logits have {} tokens and {} logits", steps.size(), top, top_tokens.size(), top_logits.size());
  }
  for (size_t c = 0; c < cycles.size(); ++c) {
    const EngineCycle& cycle = cycles[c];
    if (cycle.newest >= count || cycle.newest < 0)
      return invalid_argument("cycle {} begins at token {}, but there are {}", c, cycle.newest, tokens.size());
    if (c > 0 && cycle.newest <= cycles[c - 1].newest)
      return invalid_argument("cycle {} begins at token {}, the one before it at {}", c, cycle.newest, cycles[c - 1].newest);
    if (cycle.accepted < 0 || static_cast<size_t>(cycle.accepted) > cycle.drafts.size()) {
      return invalid_argument("cycle {} accepted {} of {} drafts", c, cycle.accepted, cycle.drafts.size());
    }
  }
  return {};
}

Expected<EngineTraceWriter> EngineTraceWriter::open(const std::string& folder, const EngineTraceManifest& manifest) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return io_error("{}: cannot be created: {}", folder, error.message());
  AERIE_ASSIGN(const std::vector<int> numbers, list_requests(folder));
  EngineTraceWriter out;
  out.folder_ = folder;
  out.next_ = numbers.empty() ? 0 : numbers.back() + 1;
  const auto present = read_manifest(folder);
  if (present.ok()) {
    if (present->engine != manifest.engine || present->drafter != manifest.drafter) {
      return invalid_argument("{}: it holds the trace of {} with {}, not of {} with {}: use another folder", folder,
                              printable(present->engine), printable(present->drafter), manifest.engine, manifest.drafter);
    }
    return out;
  }
  if (present.status().code() != StatusCode::kNotFound) return present.status();
  const nlohmann::ordered_json root = {{"format", kFormat},
                                       {"format_version", EngineTraceManifest::kFormatVersion},
                                       {"engine", manifest.engine},
                                       {"drafter", manifest.drafter}};
  AERIE_TRY(
      write_file_atomically((fs::path(folder) / "engine.json").string(), root.dump(2, ' ', false, json::error_handler_t::replace) + "\n"));
  return out;
}

Status EngineTraceWriter::write(const EngineRequest& request) {
  AERIE_TRY(request.check());
  const auto column = [](const auto& list, auto member) {
    std::vector<int64_t> out;
    for (const auto& entry : list) out.push_back(entry.*member);
    return out;
  };
  const std::vector<std::pair<const char*, std::vector<int64_t>>> columns = {
      {"rows.token", column(request.rows, &EngineRow::token)},         {"rows.position", column(request.rows, &EngineRow::position)},
      {"rows.cycle", column(request.rows, &EngineRow::cycle)},         {"steps.cycle", column(request.steps, &EngineStep::cycle)},
      {"steps.step", column(request.steps, &EngineStep::step)},        {"steps.token", column(request.steps, &EngineStep::token)},
      {"steps.position", column(request.steps, &EngineStep::position)}};
  std::vector<TensorView> tensors;
  const auto add = [&](const char* name, DType type, std::vector<uint64_t> shape, const void* data, size_t bytes) {
    if (bytes == 0) return;
    tensors.push_back({name, type, std::move(shape), {static_cast<const uint8_t*>(data), bytes}});
  };
  for (const auto& [name, values] : columns) add(name, DType::kI64, {values.size()}, values.data(), values.size() * sizeof(int64_t));
  const std::vector<int64_t> top(request.top_tokens.begin(), request.top_tokens.end());
  const uint64_t steps = request.steps.size(), kept = static_cast<uint64_t>(request.top);
  add("steps.top_tokens", DType::kI64, {steps, kept}, top.data(), top.size() * sizeof(int64_t));
  add("steps.top_logits", DType::kF32, {steps, kept}, request.top_logits.data(), request.top_logits.size() * sizeof(float));
  add("rows.feature", DType::kBF16, {request.rows.size(), static_cast<uint64_t>(request.width)}, request.features.data(),
      request.features.size() * sizeof(uint16_t));
  AERIE_TRY(write_safetensors(path_of(folder_, next_, kTensors), tensors));

  std::string lines =
      json{{"token_ids", request.tokens}, {"prompt_tokens", request.prompt}, {"cached_tokens", request.cached}}.dump() + "\n";
  for (const EngineCycle& cycle : request.cycles) {
    lines += json{{"newest", cycle.newest}, {"drafts", cycle.drafts}, {"accepted", cycle.accepted}}.dump() + "\n";
  }
  AERIE_TRY(write_file_atomically(path_of(folder_, next_, kLines), lines));
  ++next_;
  return {};
}

Expected<EngineTraceReader> EngineTraceReader::open(const std::string& folder) {
  EngineTraceReader out;
  out.folder_ = folder;
  AERIE_ASSIGN(out.manifest_, read_manifest(folder));
  AERIE_ASSIGN(out.numbers_, list_requests(folder));
  if (out.numbers_.empty()) return not_found("{}: it holds no request_*.jsonl", folder);
  return out;
}

Expected<EngineRequest> EngineTraceReader::read(size_t i) const {
  EngineRequest out;
  const std::string lines = path_of(folder_, numbers_[i], kLines);
  AERIE_TRY(read_lines(lines, out));
  if (const Status sound = out.check(); !sound.ok()) return corrupt("{}: {}", lines, sound.message());  // before the cycles are counted on
  AERIE_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path_of(folder_, numbers_[i], kTensors)));
  const auto cycles = static_cast<int32_t>(out.cycles.size());
  // Nothing was fed, or nothing drafted: the tensors are left out.
  const auto any = [&](std::string_view group) {
    return std::any_of(file.tensors().begin(), file.tensors().end(), [&](const TensorView& t) { return t.name.starts_with(group); });
  };
  if (any("rows.")) AERIE_TRY(read_rows(file, cycles, out));
  if (any("steps.")) AERIE_TRY(read_steps(file, cycles, out));
  if (const Status sound = out.check(); !sound.ok()) return corrupt("{}: {}", lines, sound.message());
  return out;
}

}  // namespace aerie
