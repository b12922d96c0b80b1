// The streaming format of Apache Arrow (https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format), as the package
// `datasets` saves data sets: the columns whose rows are lists of integers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"

namespace aerie {

class FlatTable;

struct ArrowInteger {
  uint32_t bits = 0;  // 8 to 64; 1: booleans, bit by bit
  bool is_signed = false;
};

/// What lies before a column in each record batch, where nodes and buffers of all columns follow each other.
struct ArrowPlace {
  uint64_t nodes = 0;
  uint64_t buffers = 0;  // without those of views, whose number each batch says
  uint64_t views = 0;
};

/// The integers of one list, as they lie in the file.
class ArrowIntegers {
 public:
  /// Those from number `begin` on of `values`.
  ArrowIntegers(ArrowInteger type, const uint8_t* values, uint64_t begin, uint64_t count)
      : type_(type), values_(values), begin_(begin), count_(count) {}

  size_t size() const { return count_; }
  int64_t operator[](size_t i) const;

 private:
  ArrowInteger type_;
  const uint8_t* values_;
  uint64_t begin_, count_;
};

/// Chosen columns of a stream (or of a file of the format with the mark ARROW1, read as the stream that it holds). Movable; reading is
/// thread-safe. What is kept in memory is smaller than the file's metadata.
class ArrowStream {
 public:
  /// `columns` are lists or large lists of int8 to int64, uint8 to uint32 or booleans; the others are stepped over, whatever their type.
  /// kNotFound: no file, or no such column. kUnsupported: a column of another type, one with nulls, compressed buffers, dictionaries,
  /// big-endian files, metadata before version 5. kCorrupt: a stream without its end, whatever does not lie within the file, and all
  /// that contradicts itself.
  static Expected<ArrowStream> open(const std::string& path, const std::vector<std::string>& columns);
  static Expected<ArrowStream> read(MappedFile file, const std::vector<std::string>& columns);

  const std::string& path() const { return file_.path(); }
  uint64_t rows() const { return rows_; }
  /// Row `row` < rows() of column `column` of those asked for. kCorrupt where its offsets leave the column.
  Expected<ArrowIntegers> list(size_t column, uint64_t row) const;

 private:
  struct Column {
    std::string name;
    bool is_found = false;
    ArrowInteger type;
    uint64_t offset_bytes = 0;
    ArrowPlace place;
  };
  // A column's part of one record batch.
  struct Part {
    const uint8_t* offsets;
    const uint8_t* values;
    uint64_t count;  // of values
  };
  struct Batch;

  Status read_messages();
  Status read_message(std::span<const uint8_t> metadata, std::span<const uint8_t>& rest);
  Status read_schema(const FlatTable& schema);
  Status read_batch(const FlatTable& table, std::span<const uint8_t> body);
  static Expected<Part> place_column(const Batch& batch, const Column& column);

  MappedFile file_;
  std::vector<Column> columns_;
  bool has_schema_ = false;
  ArrowPlace end_;  // of all columns
  uint64_t rows_ = 0;
  std::vector<uint64_t> begins_;  // the first row of each batch
  std::vector<Part> parts_;       // of the batches in turn, in each the columns
};

}  // namespace aerie
