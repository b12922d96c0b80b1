// Text files that may be gzip-compressed.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace aerie {

/// The whole file, decompressed if it is gzip (by its content, not its name); refused when it unpacks to more than `max_bytes`.
Expected<std::string> read_maybe_gzip(const std::string& path, uint64_t max_bytes);

}  // namespace aerie
