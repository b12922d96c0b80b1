// Zip archives, of which only entries that are stored and not compressed have a use here: torch.save compresses nothing
// (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, zip64 included).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace aerie {

/// Name and data point into the archive.
struct ZipEntry {
  std::string_view name;
  std::span<const uint8_t> data;  // as it lies there
  uint16_t method = 0;            // how it is compressed; 0: not at all
};

/// The entries of the archive's directory, by name. Since nothing is unpacked, no archive is larger inside than outside.
/// kUnsupported: encrypted entries, archives in several parts. kCorrupt: an archive that is cut off, entries that
/// overlap or leave the archive, a name that is given twice or differs from the one before its data. Checksums are not
/// compared: torch can be told to write none (`set_crc32_options`).
Expected<std::vector<ZipEntry>> read_zip(std::span<const uint8_t> archive);

}  // namespace aerie
