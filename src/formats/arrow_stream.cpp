#include "formats/arrow_stream.h"

#include <algorithm>
#include <optional>

#include "base/checked.h"
#include "formats/flat_table.h"
#include "formats/printable.h"

namespace aerie {
namespace {

constexpr std::string_view kFileMark("ARROW1\0\0", 8), kFileEnd("ARROW1");
constexpr uint32_t kContinuation = 0xffffffff;
constexpr uint64_t kPrefixBytes = 8;     // the continuation and the metadata's size
constexpr int kMaxDepth = 64;            // pyarrow's own limit
constexpr uint64_t kMaxFields = 65'536;  // visited, those below others too: metadata can name one many times

// ---- the metadata's numbers (format/Message.fbs and format/Schema.fbs of Apache Arrow)

constexpr int16_t kVersion5 = 4;
constexpr int16_t kLittleEndian = 0;
constexpr uint64_t kNodeBytes = 16, kBufferBytes = 16, kViewCountBytes = 8, kTableBytes = 4;
enum class Header : uint8_t { kSchema = 1, kDictionaryBatch = 2, kRecordBatch = 3 };
namespace message {
constexpr int kVersion = 0, kHeaderType = 1, kHeader = 2, kBodyLength = 3;
}
namespace schema_table {
constexpr int kEndianness = 0, kFields = 1;
}
namespace field_table {
constexpr int kName = 0, kTypeType = 2, kType = 3, kDictionary = 4, kChildren = 5;
}
namespace batch_table {
constexpr int kLength = 0, kNodes = 1, kBuffers = 2, kCompression = 3, kViewCounts = 4;
}

// Types by their number. `buffers`: a column's own, without its children's.
constexpr uint8_t kInt = 2, kBool = 6, kList = 12, kUnion = 14, kLargeList = 21;
struct TypeFacts {
  const char* name;
  uint64_t buffers;
  bool is_view = false;  // has more buffers, whose number each batch says
};
// clang-format off
constexpr TypeFacts kTypes[] = {
    {"nothing", 0}, {"null", 0}, {"int", 2}, {"float", 2}, {"binary", 3}, {"utf8", 3}, {"bool", 2}, {"decimal", 2}, {"date", 2},
    {"time", 2}, {"timestamp", 2}, {"interval", 2}, {"list", 2}, {"struct", 1}, {"union", 1}, {"fixed-size binary", 2},
    {"fixed-size list", 1}, {"map", 2}, {"duration", 2}, {"large binary", 3}, {"large utf8", 3}, {"large list", 2},
    {"run-end encoded", 0}, {"binary view", 2, true}, {"utf8 view", 2, true}, {"list view", 3}, {"large list view", 3}};
// clang-format on

Expected<uint8_t> type_of(const FlatTable& field) {
  AERIE_ASSIGN(const auto type, field.number<uint8_t>(field_table::kTypeType, 0));
  if (type == 0 || type >= std::size(kTypes)) return unsupported("its type has the number {}, which is not known", type);
  return type;
}

Expected<std::optional<ArrowInteger>> integer_of(const FlatTable& field) {
  AERIE_ASSIGN(const uint8_t type, type_of(field));
  if (type == kBool) return std::optional(ArrowInteger{1, false});
  if (type != kInt) return std::optional<ArrowInteger>();
  AERIE_ASSIGN(const FlatTable table, field.table(field_table::kType));
  AERIE_ASSIGN(const auto bits, table.number<int32_t>(0, 0));
  AERIE_ASSIGN(const auto is_signed, table.number<uint8_t>(1, 0));
  if (bits != 8 && bits != 16 && bits != 32 && bits != 64) return corrupt("its integers have {} bits", bits);
  if (bits == 64 && is_signed == 0) return std::optional<ArrowInteger>();
  return std::optional(ArrowInteger{static_cast<uint32_t>(bits), is_signed != 0});
}

std::string type_name(const FlatTable& field) {
  const auto type = type_of(field);
  return type.ok() ? kTypes[*type].name : "unknown";
}

// Adds what a column takes to `place`. `visited` counts fields of all columns.
Status step_over(const FlatTable& field, int depth, uint64_t& visited, ArrowPlace& place) {
  if (depth > kMaxDepth) return unsupported("it nests deeper than {} types", kMaxDepth);
  if (++visited > kMaxFields) return unsupported("the schema has more than {} fields", kMaxFields);
  if (field.has(field_table::kDictionary)) return unsupported("it is dictionary-encoded, which is not read; save it without");
  AERIE_ASSIGN(const uint8_t type, type_of(field));
  ++place.nodes;
  place.buffers += kTypes[type].buffers;
  place.views += kTypes[type].is_view ? 1 : 0;
  if (type == kUnion) {  // dense ones have offsets beside the types
    AERIE_ASSIGN(const FlatTable table, field.table(field_table::kType));
    AERIE_ASSIGN(const auto mode, table.number<int16_t>(0, 0));
    place.buffers += mode != 0 ? 1 : 0;
  }
  AERIE_ASSIGN(const FlatVector children, field.vector(field_table::kChildren, kTableBytes));
  for (uint64_t i = 0; i < children.size(); ++i) {
    AERIE_ASSIGN(const FlatTable child, children.table(i));
    AERIE_TRY(step_over(child, depth + 1, visited, place));
  }
  return Status();
}

struct ListType {
  ArrowInteger integer;
  uint64_t offset_bytes;
};

Expected<ListType> list_type(const FlatTable& field) {
  AERIE_ASSIGN(const uint8_t type, type_of(field));
  AERIE_ASSIGN(const FlatVector children, field.vector(field_table::kChildren, kTableBytes));
  std::string found = kTypes[type].name;
  if (type == kList || type == kLargeList) {
    if (children.size() != 1) return corrupt("it is a list with {} types of its elements", children.size());
    AERIE_ASSIGN(const FlatTable child, children.table(0));
    AERIE_ASSIGN(const auto integer, integer_of(child));
    if (integer) return ListType{*integer, type == kList ? sizeof(int32_t) : sizeof(int64_t)};
    found += " of " + (type_name(child) == "int" ? std::string("uint64") : type_name(child));
  }
  return unsupported("it is {}; expected a list or large list of integers (not uint64) or booleans", found);
}

std::string_view text(std::span<const uint8_t> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::string where(std::string_view column) { return "column " + printable(column); }

}  // namespace

int64_t ArrowIntegers::operator[](size_t i) const {
  const uint64_t at = begin_ + i;
  const auto value = [&]<class T>(T) -> int64_t { return number_at<T>({values_, (at + 1) * sizeof(T)}, at * sizeof(T)); };
  switch (type_.bits) {
    case 1: return (values_[at / 8] >> (at % 8)) & 1;
    case 8: return type_.is_signed ? value(int8_t{}) : value(uint8_t{});
    case 16: return type_.is_signed ? value(int16_t{}) : value(uint16_t{});
    case 32: return type_.is_signed ? value(int32_t{}) : value(uint32_t{});
    default: return value(int64_t{});
  }
}

Expected<ArrowStream> ArrowStream::open(const std::string& path, const std::vector<std::string>& columns) {
  AERIE_ASSIGN(MappedFile file, MappedFile::open(path));
  return read(std::move(file), columns);
}

Expected<ArrowStream> ArrowStream::read(MappedFile file, const std::vector<std::string>& columns) {
  ArrowStream out;
  out.file_ = std::move(file);
  for (const std::string& name : columns) out.columns_.emplace_back().name = name;
  AERIE_TRY(out.read_messages().with_context(out.path()));
  return out;
}

// A stream that was cut off between two messages lacks only its end mark, which the format lets writers leave out. Those that count
// here write it, and without it rows could be missing unseen.
Status ArrowStream::read_messages() {
  std::span<const uint8_t> rest = file_.bytes();
  const bool is_file = text(rest).starts_with(kFileMark);
  if (is_file) rest = rest.subspan(kFileMark.size());
  for (size_t message = 0;; ++message) {
    const uint64_t at = file_.bytes().size() - rest.size();
    if (rest.size() < kPrefixBytes) return corrupt("the stream has no end mark after {} messages; the file is cut off", message);
    if (const auto mark = number_at<uint32_t>(rest, 0); mark != kContinuation) {
      return corrupt("expected a message of an Arrow stream at byte {}, which begins with ffffffff, and found {:08x}", at, mark);
    }
    const auto size = number_at<int32_t>(rest, 4);
    rest = rest.subspan(kPrefixBytes);
    if (size == 0) break;
    const std::string context = fmt::format("message {} at byte {}", message, at);
    if (size < 0 || static_cast<uint64_t>(size) > rest.size()) {
      return corrupt("{}: its metadata has {} bytes, but {} follow; the file is cut off or damaged", context, size, rest.size());
    }
    const std::span<const uint8_t> metadata = rest.first(static_cast<uint64_t>(size));
    rest = rest.subspan(metadata.size());
    AERIE_TRY(read_message(metadata, rest).with_context(context));
  }
  if (!has_schema_) return corrupt("the stream ends without a schema");
  if (!is_file && !rest.empty()) return corrupt("{} bytes follow the stream's end", rest.size());
  if (is_file && !text(rest).ends_with(kFileEnd)) return corrupt("the file does not end with {}; it is cut off", kFileEnd);
  return Status();
}

// `rest`: what follows the metadata. The body is taken from it.
Status ArrowStream::read_message(std::span<const uint8_t> metadata, std::span<const uint8_t>& rest) {
  AERIE_ASSIGN(const FlatTable message, FlatTable::root(metadata));
  AERIE_ASSIGN(const auto version, message.number<int16_t>(message::kVersion, 0));
  if (version != kVersion5) {
    return unsupported("its metadata is of version {}; only 5, which Arrow writes since 1.0, is read", version + 1);
  }
  AERIE_ASSIGN(const auto type, message.number<uint8_t>(message::kHeaderType, 0));
  AERIE_ASSIGN(const FlatTable header, message.table(message::kHeader));
  AERIE_ASSIGN(const auto body_bytes, message.number<int64_t>(message::kBodyLength, 0));
  if (body_bytes < 0 || static_cast<uint64_t>(body_bytes) > rest.size()) {
    return corrupt("its body has {} bytes, but {} follow; the file is cut off or damaged", body_bytes, rest.size());
  }
  const std::span<const uint8_t> body = rest.first(static_cast<uint64_t>(body_bytes));
  rest = rest.subspan(body.size());
  const Header expected = has_schema_ ? Header::kRecordBatch : Header::kSchema;
  if (type != static_cast<uint8_t>(expected)) {
    return corrupt("it is of type {}; expected a {}", type, has_schema_ ? "record batch (3)" : "schema (1)");
  }
  return has_schema_ ? read_batch(header, body) : read_schema(header);
}

Status ArrowStream::read_schema(const FlatTable& schema) {
  AERIE_ASSIGN(const auto endianness, schema.number<int16_t>(schema_table::kEndianness, kLittleEndian));
  if (endianness != kLittleEndian) return unsupported("the stream is big-endian, which is not read");
  AERIE_ASSIGN(const FlatVector fields, schema.vector(schema_table::kFields, kTableBytes));
  uint64_t visited = 0;
  std::string names;
  for (uint64_t i = 0; i < fields.size(); ++i) {
    AERIE_ASSIGN(const FlatTable field, fields.table(i));
    AERIE_ASSIGN(const std::string_view name, field.string(field_table::kName));
    if (i < 12) names += (names.empty() ? "" : ", ") + printable(name);
    const auto wanted = std::find_if(columns_.begin(), columns_.end(), [&](const Column& column) { return column.name == name; });
    const ArrowPlace begin = end_;
    AERIE_TRY(step_over(field, 0, visited, end_).with_context(where(name)));
    if (wanted == columns_.end()) continue;
    if (wanted->is_found) return corrupt("{}: it is there twice", where(name));
    const auto type = list_type(field);
    if (!type.ok()) return type.status().with_context(where(name));
    *wanted = {wanted->name, true, type->integer, type->offset_bytes, begin};
  }
  for (const Column& column : columns_) {
    if (!column.is_found) return not_found("it has no {}; it has {}", where(column.name), names.empty() ? "none" : names);
  }
  has_schema_ = true;
  return Status();
}

struct ArrowStream::Batch {
  uint64_t rows;
  FlatVector nodes, buffers, view_counts;
  std::span<const uint8_t> body;

  // Buffers of the first `views` views, beyond what every view has.
  Expected<uint64_t> view_buffers(uint64_t views) const {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < views; ++i) {
      const auto count = view_counts.number<int64_t>(i);
      if (count < 0 || static_cast<uint64_t>(count) > buffers.size()) return corrupt("a view has {} buffers", count);
      sum += static_cast<uint64_t>(count);
    }
    return sum;
  }

  Expected<std::span<const uint8_t>> buffer(uint64_t i, const char* what, std::optional<uint64_t> bytes) const {
    const auto offset = buffers.number<int64_t>(i), length = buffers.number<int64_t>(i, sizeof(int64_t));
    if (offset < 0 || length < 0 || !fits(body, static_cast<uint64_t>(offset), static_cast<uint64_t>(length))) {
      return corrupt("the buffer of its {} has {} bytes at {}, which do not lie in the body of {} bytes", what, length, offset,
                     body.size());
    }
    if (!bytes || *bytes > static_cast<uint64_t>(length)) {
      return corrupt("its {} take {} bytes, but their buffer has {}", what, bytes ? fmt::to_string(*bytes) : "more than 64 bits count of",
                     length);
    }
    return body.subspan(static_cast<uint64_t>(offset), *bytes);
  }

  // How many there are of `what`, none of them null.
  Expected<uint64_t> length(uint64_t node, const char* what) const {
    const auto count = nodes.number<int64_t>(node), nulls = nodes.number<int64_t>(node, sizeof(int64_t));
    if (count < 0 || nulls < 0 || nulls > count) return corrupt("it has {} {}, {} of them null", count, what, nulls);
    if (nulls > 0)
      return unsupported("{} of its {} {} are null; every row has to have its list, and every list its values", nulls, count, what);
    return static_cast<uint64_t>(count);
  }
};

// A list has its node, its validity and its offsets, then the node, the validity and the values of what it lists.
Expected<ArrowStream::Part> ArrowStream::place_column(const Batch& batch, const Column& column) {
  AERIE_ASSIGN(const uint64_t lists, batch.length(column.place.nodes, "lists"));
  if (lists != batch.rows) return corrupt("it has {} lists, but the batch has {} rows", lists, batch.rows);
  AERIE_ASSIGN(const uint64_t count, batch.length(column.place.nodes + 1, "values"));
  AERIE_ASSIGN(const uint64_t view_buffers, batch.view_buffers(column.place.views));
  const uint64_t first = column.place.buffers + view_buffers;
  // Of no lists, the offsets may be left out.
  const auto offset_bytes = lists == 0 ? uint64_t{0} : checked_mul(lists + 1, column.offset_bytes);
  AERIE_ASSIGN(const auto offsets, batch.buffer(first + 1, "offsets", offset_bytes));
  const auto value_bytes = column.type.bits == 1 ? count / 8 + (count % 8 != 0 ? 1 : 0) : checked_mul(count, column.type.bits / 8);
  AERIE_ASSIGN(const auto values, batch.buffer(first + 3, "values", value_bytes));
  return Part{offsets.data(), values.data(), count};
}

Status ArrowStream::read_batch(const FlatTable& table, std::span<const uint8_t> body) {
  if (table.has(batch_table::kCompression)) {
    AERIE_ASSIGN(const FlatTable compression, table.table(batch_table::kCompression));
    AERIE_ASSIGN(const auto codec, compression.number<int8_t>(0, 0));
    return unsupported("its buffers are compressed ({}), which is not read; save the data set without compression",
                       codec == 0   ? "LZ4"
                       : codec == 1 ? "ZSTD"
                                    : fmt::format("codec {}", codec));
  }
  AERIE_ASSIGN(const auto rows, table.number<int64_t>(batch_table::kLength, 0));
  if (rows < 0) return corrupt("the record batch has {} rows", rows);
  Batch batch;
  batch.rows = static_cast<uint64_t>(rows);
  batch.body = body;
  AERIE_ASSIGN(batch.nodes, table.vector(batch_table::kNodes, kNodeBytes));
  AERIE_ASSIGN(batch.buffers, table.vector(batch_table::kBuffers, kBufferBytes));
  AERIE_ASSIGN(batch.view_counts, table.vector(batch_table::kViewCounts, kViewCountBytes));
  if (batch.nodes.size() != end_.nodes || batch.view_counts.size() != end_.views) {
    return corrupt("the record batch has {} nodes and {} counts of views; expected {} and {}, by the schema", batch.nodes.size(),
                   batch.view_counts.size(), end_.nodes, end_.views);
  }
  AERIE_ASSIGN(const uint64_t view_buffers, batch.view_buffers(end_.views));
  if (batch.buffers.size() != end_.buffers + view_buffers) {
    return corrupt("the record batch has {} buffers; expected {}, by the schema", batch.buffers.size(), end_.buffers + view_buffers);
  }
  for (const Column& column : columns_) {
    const auto part = place_column(batch, column);
    if (!part.ok()) return part.status().with_context(where(column.name));
    parts_.push_back(*part);
  }
  begins_.push_back(rows_);
  const auto sum = checked_add(rows_, batch.rows);
  if (!sum) return corrupt("the record batches have more rows than 64 bits can count");
  rows_ = *sum;
  return Status();
}

Expected<ArrowIntegers> ArrowStream::list(size_t column, uint64_t row) const {
  const auto batch = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), row) - begins_.begin()) - 1;
  const uint64_t bytes = columns_[column].offset_bytes, at = (row - begins_[batch]) * bytes;
  const Part& part = parts_[batch * columns_.size() + column];
  const std::span<const uint8_t> offsets(part.offsets, at + 2 * bytes);
  const bool is_large = bytes == sizeof(int64_t);
  const int64_t begin = is_large ? number_at<int64_t>(offsets, at) : number_at<int32_t>(offsets, at);
  const int64_t end = is_large ? number_at<int64_t>(offsets, at + bytes) : number_at<int32_t>(offsets, at + bytes);
  if (begin < 0 || end < begin || static_cast<uint64_t>(end) > part.count) {
    return corrupt("{}: row {}: {}: its list spans [{}, {}) of {} values", path(), row, where(columns_[column].name), begin, end,
                   part.count);
  }
  return ArrowIntegers(columns_[column].type, part.values, static_cast<uint64_t>(begin), static_cast<uint64_t>(end - begin));
}

}  // namespace aerie
