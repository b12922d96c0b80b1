#include "formats/token_rows.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file_io.h"
#include "formats/json_text.h"
#include "formats/printable.h"

namespace aerie {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLineBytes = size_t{64} << 20;
constexpr uint64_t kMaxStateBytes = 16 << 20;
constexpr const char* kIds = "input_ids";
constexpr const char* kMask = "loss_mask";

// `ids` and `marks` are integers by position. `where` names their row.
template <class Integers>
Expected<std::vector<uint8_t>> checked_mask(const Integers& ids, const Integers& marks, const std::vector<int32_t>& tokens,
                                            const std::string& where) {
  bool are_same = ids.size() == tokens.size();
  for (size_t i = 0; are_same && i < tokens.size(); ++i) are_same = ids[i] == tokens[i];
  if (!are_same) {
    return corrupt("{}: its {} are not the tokens of the states ({} and {} tokens): the two are of different data sets", where, kIds,
                   ids.size(), tokens.size());
  }
  if (marks.size() != tokens.size()) return corrupt("{}: {} has {} values for {} tokens", where, kMask, marks.size(), tokens.size());
  std::vector<uint8_t> mask;
  mask.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t mark = marks[i];
    if (mark != 0 && mark != 1) return corrupt("{}: {} at position {} is {}; expected 0 or 1", where, kMask, i, mark);
    mask.push_back(static_cast<uint8_t>(mark));
  }
  return mask;
}

// The shards' names in the order of their rows. Nothing that state.json says can point outside its folder.
Expected<std::vector<std::string>> shards_of_state(const std::string& path) {
  AERIE_ASSIGN(const std::string text, read_file(path, kMaxStateBytes));
  const auto parsed = parse_json(text);
  if (!parsed.ok()) return parsed.status().with_context(path);
  const nlohmann::json& state = *parsed;
  const auto files = state.is_object() ? state.find("_data_files") : state.end();
  if (!state.is_object() || files == state.end() || !files->is_array()) {
    return corrupt("{}: expected an object with _data_files, the list of the data set's shards", path);
  }
  if (const auto indices = state.find("_indices_data_files"); indices != state.end() && !indices->empty()) {
    return unsupported(
        "{}: the rows have an order of their own (_indices_data_files), which is not read; save the data set again with "
        "datasets 2 or later, or after flatten_indices()",
        path);
  }
  std::vector<std::string> shards;
  std::set<std::string> seen;
  for (const auto& file : *files) {
    const auto name = file.is_object() ? file.find("filename") : file.end();
    if (!file.is_object() || name == file.end() || !name->is_string()) {
      return corrupt("{}: _data_files: shard {} has no filename", path, shards.size());
    }
    const auto& shard = shards.emplace_back(name->get<std::string>());
    if (!is_plain_file_name(shard)) return corrupt("{}: the shard {} is no plain file name in this folder", path, printable(shard));
    if (!seen.insert(shard).second) return corrupt("{}: the shard {} is named twice", path, printable(shard));
  }
  return shards;
}

struct ShardNumber {
  int index;
  int count;
  friend auto operator<=>(const ShardNumber&, const ShardNumber&) = default;
};

// Of data-INDEX-of-COUNT.arrow.
std::optional<ShardNumber> shard_number(std::string_view name) {
  ShardNumber out{};
  const auto take = [&name](std::string_view expected) {
    const bool is_there = name.starts_with(expected);
    if (is_there) name.remove_prefix(expected.size());
    return is_there;
  };
  const auto number = [&name](int& value) {
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
    name.remove_prefix(static_cast<size_t>(end - name.data()));
    return error == std::errc() && value >= 0;
  };
  const bool is_shard = take("data-") && number(out.index) && take("-of-") && number(out.count) && name == ".arrow";
  return is_shard ? std::optional(out) : std::nullopt;
}

// The names of a folder's shards in the order of their rows; none when it has no Arrow files. Without state.json the names count the
// shards, and one that is missing would shift the rows of those behind it.
Expected<std::vector<std::string>> list_shards(const std::string& folder) {
  std::vector<std::pair<ShardNumber, std::string>> numbered;
  bool has_arrow = false;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    has_arrow = has_arrow || name.ends_with(".arrow");
    if (const auto number = shard_number(name)) numbered.emplace_back(*number, name);
  }
  if (error) return io_error("{}: cannot be listed: {}", folder, error.message());
  const fs::path state = fs::path(folder) / "state.json";
  if (has_arrow && fs::exists(state, error)) return shards_of_state(state.string());
  std::sort(numbered.begin(), numbered.end());
  std::vector<std::string> shards;
  for (const auto& [number, name] : numbered) {
    const ShardNumber expected{static_cast<int>(shards.size()), static_cast<int>(numbered.size())};
    if (number != expected) {
      return corrupt("{}: it has {} shards, but number {} of them is {}: some are missing, or of another data set", folder, expected.count,
                     expected.index, printable(name));
    }
    shards.push_back(name);
  }
  return shards;
}

}  // namespace

Expected<TokenRows> TokenRows::open(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return of_lines(path);
  AERIE_ASSIGN(auto rows, find(path));
  if (rows) return *std::move(rows);
  return not_found("{}: it holds no token rows; expected a folder of datasets' save_to_disk (state.json, data-*-of-*.arrow)", path);
}

Expected<std::optional<TokenRows>> TokenRows::find(const std::string& folder) {
  AERIE_ASSIGN(const std::vector<std::string> shards, list_shards(folder));
  if (shards.empty()) return std::optional<TokenRows>();
  TokenRows out;
  out.path_ = folder;
  for (const std::string& shard : shards) {
    AERIE_ASSIGN(ArrowStream stream, ArrowStream::open((fs::path(folder) / shard).string(), {kIds, kMask}));
    out.begins_.push_back(out.rows_);
    out.rows_ += stream.rows();  // each takes some bytes of its file
    out.shards_.push_back(std::move(stream));
  }
  return std::optional(std::move(out));
}

Expected<TokenRows> TokenRows::of_lines(const std::string& path) {
  TokenRows rows;
  rows.path_ = path;
  AERIE_ASSIGN(rows.lines_, MappedFile::open(path));
  const std::string_view text = rows.text();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (text.find_first_not_of(" \t\r", begin) < end) rows.begins_.push_back(begin);
    begin = end + 1;
  }
  rows.rows_ = rows.begins_.size();
  return rows;
}

std::string_view TokenRows::text() const { return {reinterpret_cast<const char*>(lines_.bytes().data()), lines_.bytes().size()}; }

Expected<std::vector<uint8_t>> TokenRows::mask(size_t row, const std::vector<int32_t>& tokens) const {
  if (row >= rows_) return not_found("{}: it has {} rows, but there are states of row {}", path(), rows_, row);
  const std::string where = fmt::format("{}: row {}", path(), row);
  return shards_.empty() ? mask_in_lines(row, tokens, where) : mask_in_shards(row, tokens, where);
}

Expected<std::vector<uint8_t>> TokenRows::mask_in_shards(size_t row, const std::vector<int32_t>& tokens, const std::string& where) const {
  const auto shard = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), row) - begins_.begin()) - 1;
  const size_t in_shard = row - begins_[shard];
  AERIE_ASSIGN(const ArrowIntegers ids, shards_[shard].list(0, in_shard));
  AERIE_ASSIGN(const ArrowIntegers marks, shards_[shard].list(1, in_shard));
  return checked_mask(ids, marks, tokens, where);
}

Expected<std::vector<uint8_t>> TokenRows::mask_in_lines(size_t row, const std::vector<int32_t>& tokens, const std::string& where) const {
  const std::string_view text = this->text();
  const std::string_view line = text.substr(begins_[row], std::min(text.find('\n', begins_[row]), text.size()) - begins_[row]);
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
  AERIE_ASSIGN(const std::vector<int64_t> ids, numbers(kIds));
  AERIE_ASSIGN(const std::vector<int64_t> marks, numbers(kMask));
  return checked_mask(ids, marks, tokens, where);
}

}  // namespace aerie
