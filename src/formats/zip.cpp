#include "formats/zip.h"

#include <algorithm>
#include <optional>

#include "formats/bytes_at.h"
#include "formats/printable.h"

namespace aerie {
namespace {

// Signatures and sizes without names, extra fields and comments.
constexpr uint32_t kLocalHeader = 0x04034b50, kDirectoryEntry = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kEnd64Locator = 0x07064b50;
constexpr uint64_t kLocalHeaderBytes = 30, kDirectoryEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kEnd64LocatorBytes = 20;
constexpr uint64_t kMaxCommentBytes = 0xffff;
constexpr uint16_t kEncrypted = 1 << 0;
constexpr uint16_t kExtraZip64 = 1;
constexpr uint16_t kIn64Bits16 = 0xffff;  // the value stands in the zip64 record
constexpr uint32_t kIn64Bits32 = 0xffffffff;

std::string_view text(std::span<const uint8_t> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

struct Directory {
  uint64_t entries;
  uint64_t bytes;
  uint64_t offset;
  uint64_t end;  // where the records begin that follow the directory
};

Status cut_off() { return corrupt("the archive has no end record; the file is cut off or no zip archive"); }

// The end record is the last thing in the file but for a comment of a length that it names.
std::optional<uint64_t> find_end(std::span<const uint8_t> archive) {
  if (archive.size() < kEndBytes) return std::nullopt;
  const uint64_t last = archive.size() - kEndBytes;
  for (uint64_t back = 0; back <= std::min(last, kMaxCommentBytes); ++back) {
    const uint64_t at = last - back;
    if (number_at<uint32_t>(archive, at) == kEnd && number_at<uint16_t>(archive, at + 20) == back) return at;
  }
  return std::nullopt;
}

Expected<Directory> find_directory(std::span<const uint8_t> archive) {
  const std::optional<uint64_t> end = find_end(archive);
  if (!end) return cut_off();
  Directory out{number_at<uint16_t>(archive, *end + 10), number_at<uint32_t>(archive, *end + 12), number_at<uint32_t>(archive, *end + 16),
                *end};
  bool parts = number_at<uint16_t>(archive, *end + 4) != 0 || number_at<uint16_t>(archive, *end + 6) != 0 ||
               number_at<uint16_t>(archive, *end + 8) != out.entries;
  const bool in_64_bits = out.entries == kIn64Bits16 || out.bytes == kIn64Bits32 || out.offset == kIn64Bits32;
  if (*end >= kEnd64LocatorBytes && number_at<uint32_t>(archive, *end - kEnd64LocatorBytes) == kEnd64Locator) {
    const uint64_t locator = *end - kEnd64LocatorBytes;
    const uint64_t at = number_at<uint64_t>(archive, locator + 8);
    if (!fits(archive.first(locator), at, kEnd64Bytes) || number_at<uint32_t>(archive, at) != kEnd64) {
      return corrupt("the zip64 end record is not at offset {}, where its locator says", at);
    }
    out = {number_at<uint64_t>(archive, at + 32), number_at<uint64_t>(archive, at + 40), number_at<uint64_t>(archive, at + 48), at};
    parts = number_at<uint32_t>(archive, locator + 4) != 0 || number_at<uint32_t>(archive, at + 16) != 0 ||
            number_at<uint32_t>(archive, at + 20) != 0 || number_at<uint64_t>(archive, at + 24) != out.entries;
  } else if (in_64_bits) {
    return corrupt("the directory's place is said to be in a zip64 record, but there is none");
  }
  if (parts) return unsupported("the archive is one part of several");
  if (!fits(archive.first(out.end), out.offset, out.bytes)) {
    return corrupt("the directory of {} bytes at offset {} does not lie in the {} bytes before the end record", out.bytes, out.offset,
                   out.end);
  }
  if (out.entries > out.bytes / kDirectoryEntryBytes) {
    return corrupt("the directory of {} bytes cannot hold {} entries", out.bytes, out.entries);
  }
  return out;
}

// Of sizes and offsets that do not fit 32 bits, the zip64 extra field holds those, and only those, in this order.
Status widen(std::span<const uint8_t> extra, uint64_t& size, uint64_t& stored_size, uint64_t& offset) {
  while (extra.size() >= 4) {
    const uint16_t id = number_at<uint16_t>(extra, 0), bytes = number_at<uint16_t>(extra, 2);
    if (!fits(extra, 4, bytes)) break;
    std::span<const uint8_t> field = extra.subspan(4, bytes);
    extra = extra.subspan(4u + bytes);
    if (id != kExtraZip64) continue;
    for (uint64_t* value : {&size, &stored_size, &offset}) {
      if (*value != kIn64Bits32) continue;
      if (field.size() < 8) return corrupt("its zip64 field is too short");
      *value = number_at<uint64_t>(field, 0);
      field = field.subspan(8);
    }
    return Status();
  }
  return corrupt("its size or place is said to be in a zip64 field, but there is none");
}

struct Placed {
  ZipEntry entry;
  uint64_t begin;  // of its local header
  uint64_t end;    // of its data
};

// `entry` is one record of the directory, its name and extra field included; `body` is what lies before the directory.
Status place(std::span<const uint8_t> entry, std::span<const uint8_t> body, Placed& out) {
  const uint16_t flags = number_at<uint16_t>(entry, 8);
  const uint16_t name_bytes = number_at<uint16_t>(entry, 28), extra_bytes = number_at<uint16_t>(entry, 30);
  uint64_t stored_size = number_at<uint32_t>(entry, 20), size = number_at<uint32_t>(entry, 24), offset = number_at<uint32_t>(entry, 42);
  if ((flags & kEncrypted) != 0) return unsupported("it is encrypted");
  if (number_at<uint16_t>(entry, 34) != 0 && number_at<uint16_t>(entry, 34) != kIn64Bits16) return unsupported("it lies in another part");
  if (size == kIn64Bits32 || stored_size == kIn64Bits32 || offset == kIn64Bits32) {
    AERIE_TRY(widen(entry.subspan(kDirectoryEntryBytes + name_bytes, extra_bytes), size, stored_size, offset));
  }
  out.entry.method = number_at<uint16_t>(entry, 10);
  if (out.entry.method == 0 && size != stored_size) return corrupt("it is stored, yet takes {} bytes and has {}", stored_size, size);
  if (!fits(body, offset, kLocalHeaderBytes) || number_at<uint32_t>(body, offset) != kLocalHeader) {
    return corrupt("its header is not at offset {}, where the directory says", offset);
  }
  const uint64_t local_name = number_at<uint16_t>(body, offset + 26);
  const uint64_t begin = offset + kLocalHeaderBytes + local_name + number_at<uint16_t>(body, offset + 28);
  if (!fits(body, begin, stored_size)) {
    return corrupt("its {} bytes at offset {} do not lie in the {} bytes before the directory", stored_size, begin, body.size());
  }
  if (text(body.subspan(offset + kLocalHeaderBytes, local_name)) != out.entry.name) return corrupt("its header bears another name");
  out.entry.data = body.subspan(begin, stored_size);
  out.begin = offset;
  out.end = begin + stored_size;
  return Status();
}

}  // namespace

Expected<std::vector<ZipEntry>> read_zip(std::span<const uint8_t> archive) {
  AERIE_ASSIGN(const Directory directory, find_directory(archive));
  const std::span<const uint8_t> body = archive.first(directory.offset);
  std::span<const uint8_t> records = archive.subspan(directory.offset, directory.bytes);
  std::vector<Placed> placed;
  placed.reserve(directory.entries);
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (records.size() < kDirectoryEntryBytes || number_at<uint32_t>(records, 0) != kDirectoryEntry) {
      return corrupt("the directory names {} entries but holds {}", directory.entries, i);
    }
    const uint64_t bytes =
        kDirectoryEntryBytes + number_at<uint16_t>(records, 28) + number_at<uint16_t>(records, 30) + number_at<uint16_t>(records, 32);
    if (bytes > records.size()) return corrupt("entry {} of the directory is cut off", i);
    Placed next{};
    next.entry.name = text(records.subspan(kDirectoryEntryBytes, number_at<uint16_t>(records, 28)));
    AERIE_TRY(place(records.first(bytes), body, next).with_context("entry " + printable(next.entry.name)));
    placed.push_back(next);
    records = records.subspan(bytes);
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < placed.size(); ++i) {
    if (placed[i].begin < placed[i - 1].end) {
      return corrupt("the entries {} and {} overlap", printable(placed[i - 1].entry.name), printable(placed[i].entry.name));
    }
  }
  std::vector<ZipEntry> entries;
  entries.reserve(placed.size());
  for (const Placed& each : placed) entries.push_back(each.entry);
  std::sort(entries.begin(), entries.end(), [](const ZipEntry& a, const ZipEntry& b) { return a.name < b.name; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].name == entries[i - 1].name) return corrupt("the entry {} is there twice", printable(entries[i].name));
  }
  return entries;
}

}  // namespace aerie
