#include "formats/flat_table.h"

namespace aerie {
namespace {

constexpr uint64_t kVtableHead = 4;  // its own size and the table's, 16 bits each
constexpr uint64_t kOffsetBytes = 4;

Status out_of_buffer(uint64_t at, uint64_t size) {
  return corrupt("an offset of its metadata leads to byte {} of {}; the file is damaged", at, size);
}

}  // namespace

Expected<FlatTable> FlatTable::root(std::span<const uint8_t> buffer) {
  if (!fits(buffer, 0, kOffsetBytes)) return corrupt("its metadata has {} bytes; expected at least {}", buffer.size(), kOffsetBytes);
  return at(buffer, number_at<uint32_t>(buffer, 0));
}

// A table begins with how far before it its vtable lies, which may also be behind it.
Expected<FlatTable> FlatTable::at(std::span<const uint8_t> buffer, uint64_t begin) {
  if (!fits(buffer, begin, kOffsetBytes)) return out_of_buffer(begin, buffer.size());
  const int64_t vtable = static_cast<int64_t>(begin) - number_at<int32_t>(buffer, begin);
  if (vtable < 0 || !fits(buffer, static_cast<uint64_t>(vtable), kVtableHead)) return corrupt("a table of its metadata has no vtable");
  const auto vtable_at = static_cast<uint64_t>(vtable);
  const uint64_t vtable_bytes = number_at<uint16_t>(buffer, vtable_at), bytes = number_at<uint16_t>(buffer, vtable_at + 2);
  if (vtable_bytes < kVtableHead || !fits(buffer, vtable_at, vtable_bytes) || bytes < kOffsetBytes || !fits(buffer, begin, bytes)) {
    return corrupt("a table of its metadata has {} bytes and a vtable of {}, which do not lie in the {} bytes there are", bytes,
                   vtable_bytes, buffer.size());
  }
  FlatTable out;
  out.buffer_ = buffer;
  out.table_ = buffer.subspan(begin, bytes);
  out.vtable_ = buffer.subspan(vtable_at, vtable_bytes);
  return out;
}

uint64_t FlatTable::place(int field) const {
  const uint64_t entry = kVtableHead + 2 * static_cast<uint64_t>(field);
  return fits(vtable_, entry, 2) ? number_at<uint16_t>(vtable_, entry) : 0;
}

Expected<uint64_t> FlatTable::target(int field) const {
  const uint64_t place = this->place(field);
  if (place == 0) return uint64_t{0};
  if (!fits(table_, place, kOffsetBytes)) return out_of_table(field);
  const auto in_buffer = static_cast<uint64_t>(table_.data() - buffer_.data()) + place;
  const uint64_t at = in_buffer + number_at<uint32_t>(buffer_, in_buffer);
  if (!fits(buffer_, at, kOffsetBytes)) return out_of_buffer(at, buffer_.size());
  return at;
}

Expected<FlatTable> FlatTable::table(int field) const {
  AERIE_ASSIGN(const uint64_t begin, target(field));
  if (begin == 0) return corrupt("field {} of a table of its metadata is missing", field);
  return at(buffer_, begin);
}

Expected<std::string_view> FlatTable::string(int field) const {
  AERIE_ASSIGN(const FlatVector text, vector(field, 1));
  return std::string_view(reinterpret_cast<const char*>(text.buffer_.data()) + text.begin_, text.size());
}

Expected<FlatVector> FlatTable::vector(int field, uint64_t width) const {
  FlatVector out;
  AERIE_ASSIGN(const uint64_t at, target(field));
  if (at == 0) return out;
  out.buffer_ = buffer_;
  out.begin_ = at + kOffsetBytes;
  out.size_ = number_at<uint32_t>(buffer_, at);
  out.width_ = width;
  if (fits(buffer_, out.begin_, out.size_ * width)) return out;
  return corrupt("a vector of its metadata has {} elements of {} bytes, but {} bytes remain", out.size_, width,
                 buffer_.size() - out.begin_);
}

Expected<FlatTable> FlatVector::table(uint64_t i) const {
  const uint64_t place = begin_ + i * width_;
  return FlatTable::at(buffer_, place + number_at<uint32_t>(buffer_, place));
}

}  // namespace aerie
