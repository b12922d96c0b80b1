// JSON from files and requests, parsed with limits.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/status.h"

namespace aerie {

/// A value takes some 20 times the bytes of its shortest text, so this and not the text's size bounds the memory of a tree.
inline constexpr size_t kMaxJsonValues = 1'000'000;

/// Parses `text`. kResource when it holds more than kMaxJsonValues values. kCorrupt when it is no valid JSON, nests deeper than
/// `max_depth`, or an object repeats a key (of which readers would silently keep one). Nothing is thrown. The caller bounds the text's
/// size.
Expected<nlohmann::json> parse_json(std::string_view text, int max_depth = 64);

/// The shortest decimal that reads back as the same float32: 1e-05 rather than 9.999999747378752e-06.
double shortest_decimal(float value);

}  // namespace aerie
