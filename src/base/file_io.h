// Whole files: read with a size limit, written so that a crash or a full disk never leaves a half-written one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace aerie {

/// Whether `name`, put behind a folder, names something in this folder itself and nowhere else.
bool is_plain_file_name(std::string_view name);

/// The whole file, refused when larger than `max_bytes`.
Expected<std::string> read_file(const std::string& path, uint64_t max_bytes);

/// Receives pieces of a file in order.
using WriteSink = std::function<Status(std::span<const uint8_t>)>;

/// Lets `producer` write into `path`.tmp.PID, syncs it and renames it over `path`. On any error the temporary is removed
/// and `path` is as it was.
Status write_file_atomically(const std::string& path, const std::function<Status(const WriteSink&)>& producer);
Status write_file_atomically(const std::string& path, std::string_view content);

/// SHA-256 of a file as 64 hex digits (FIPS 180-4).
Expected<std::string> sha256_file(const std::string& path);
std::string sha256_hex(std::span<const uint8_t> bytes);

}  // namespace aerie
