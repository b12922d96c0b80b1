// Python's string operations on marked text. Positions and lengths count characters.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "text/jinja_value.h"

namespace aerie::jinja {

enum class Case { kUpper, kLower };

/// Simple case mapping of Unicode (one character to one, but for 'ß', which is 'SS' in capitals as in Python).
Text map_case(const Text& text, Case to);
Text capitalize(const Text& text);
/// str.title: a capital after every character that is no letter.
Text title_words(const Text& text);

/// `chars` null: white space.
Text strip(const Text& text, const std::string* chars, bool left, bool right);
/// str.split / str.rsplit; `separator` null: runs of white space; `limit` < 0: no limit. The separator must not be empty.
std::vector<Text> split(const Text& text, const std::string* separator, int64_t limit, bool from_right);
std::vector<Text> split_lines(const Text& text);
/// str.replace; an empty `old_text` matches between all characters. nullopt when the result exceeds `max_bytes`.
std::optional<Text> replace(const Text& text, const std::string& old_text, const Text& new_text, int64_t limit, size_t max_bytes);

/// Where each character starts, and the end.
std::vector<size_t> character_offsets(const std::string& bytes);

/// The indices that the slice [start:stop:step] of a sequence of `length` names; step is not 0.
std::vector<int64_t> slice_indices(int64_t length, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step);

}  // namespace aerie::jinja
