// The token rows of a speculators data set, whose state files hold no mask. Private to src/formats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "formats/arrow_stream.h"

namespace aerie {

/// Rows of `input_ids` and `loss_mask`, found once and read when they are asked for. Movable; reading is thread-safe.
class TokenRows {
 public:
  /// `path`: JSON lines, or a folder as `datasets` saves one.
  static Expected<TokenRows> open(const std::string& path);
  /// The Arrow rows of a folder: the shards that its state.json names, in this order, or else data-*-of-*.arrow. None when it has no
  /// Arrow files; what open() refuses is an error.
  static Expected<std::optional<TokenRows>> find(const std::string& folder);

  const std::string& path() const { return path_; }
  /// The mask of row `row`, whose tokens must be `tokens`. kNotFound when there is no such row.
  Expected<std::vector<uint8_t>> mask(size_t row, const std::vector<int32_t>& tokens) const;

 private:
  static Expected<TokenRows> of_lines(const std::string& path);
  Expected<std::vector<uint8_t>> mask_in_lines(size_t row, const std::vector<int32_t>& tokens, const std::string& where) const;
  Expected<std::vector<uint8_t>> mask_in_shards(size_t row, const std::vector<int32_t>& tokens, const std::string& where) const;
  std::string_view text() const;

  std::string path_;
  std::vector<size_t> begins_;  // of lines that are not blank, in the file; or of the shards, in rows
  size_t rows_ = 0;
  MappedFile lines_;
  std::vector<ArrowStream> shards_;  // none: lines
};

}  // namespace aerie
