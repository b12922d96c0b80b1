// Tables of FlatBuffers (https://flatbuffers.dev/internals), read without generated code. Private to src/formats.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "formats/bytes_at.h"

namespace aerie {

class FlatVector;

/// A table of a buffer, which must outlive it. Every offset is compared with the buffer before it is followed. All lead forward, so
/// nothing holds itself; but a thing can be named many times, so who descends has to bound how much he visits. Errors are kCorrupt.
class FlatTable {
 public:
  static Expected<FlatTable> root(std::span<const uint8_t> buffer);

  bool has(int field) const { return place(field) != 0; }
  /// `absent`: the schema's default, which writers leave out.
  template <class T>
  Expected<T> number(int field, T absent) const {
    const uint64_t at = place(field);
    if (at == 0) return absent;
    if (!fits(table_, at, sizeof(T))) return out_of_table(field);
    return number_at<T>(table_, at);
  }
  /// An error when it is absent.
  Expected<FlatTable> table(int field) const;
  /// Empty when it is absent.
  Expected<std::string_view> string(int field) const;
  /// Elements of `width` bytes; those that are tables have 4. Empty when it is absent.
  Expected<FlatVector> vector(int field, uint64_t width) const;

 private:
  friend class FlatVector;

  static Expected<FlatTable> at(std::span<const uint8_t> buffer, uint64_t begin);
  /// Where in the table the field lies; 0 when it is absent.
  uint64_t place(int field) const;
  /// Where in the buffer that begins which the field refers to; 0 when it is absent.
  Expected<uint64_t> target(int field) const;
  static Status out_of_table(int field) { return corrupt("field {} of a table of its metadata lies outside it", field); }

  std::span<const uint8_t> buffer_, table_, vtable_;
};

class FlatVector {
 public:
  FlatVector() = default;
  uint64_t size() const { return size_; }
  /// The number at byte `offset` of element `i`, both of which the caller has checked.
  template <class T>
  T number(uint64_t i, uint64_t offset = 0) const {
    return number_at<T>(buffer_, begin_ + i * width_ + offset);
  }
  Expected<FlatTable> table(uint64_t i) const;

 private:
  friend class FlatTable;

  std::span<const uint8_t> buffer_;
  uint64_t begin_ = 0, size_ = 0, width_ = 0;
};

}  // namespace aerie
