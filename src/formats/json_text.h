// JSON from files and requests, parsed with limits.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/status.h"

namespace aerie {

/// Parses `text`. kCorrupt when it is no valid JSON, nests deeper than `max_depth`, or an object repeats a key (of which
/// readers would silently keep one). Nothing is thrown. The caller bounds the text's size.
Expected<nlohmann::json> parse_json(std::string_view text, int max_depth = 64);

}  // namespace aerie
