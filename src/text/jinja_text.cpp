#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/jinja_text.h"

#include <pcre2.h>

#include <algorithm>

#include "text/utf8.h"

namespace aerie::jinja {
namespace {

bool is_ascii(const std::string& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string map_bytes(std::string bytes, Case to) {
  if (is_ascii(bytes)) {
    for (char& c : bytes) {
      if (to == Case::kUpper ? (c >= 'a' && c <= 'z') : (c >= 'A' && c <= 'Z')) c ^= 0x20;
    }
    return bytes;
  }
  if (to == Case::kUpper) {
    for (size_t at = 0; (at = bytes.find("ß", at)) != std::string::npos;) bytes.replace(at, 2, "SS");
  }
  // PCRE2 carries Unicode's case tables: its substitution maps a whole match.
  static const pcre2_code* const pattern = [] {
    int error = 0;
    PCRE2_SIZE offset = 0;
    const auto source = reinterpret_cast<PCRE2_SPTR>("(?s).+");
    return pcre2_compile(source, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  }();
  const char* replacement = to == Case::kUpper ? "\\U$0" : "\\L$0";
  std::string out(3 * bytes.size() + 1, '\0');
  PCRE2_SIZE length = out.size();
  const int done = pcre2_substitute(pattern, reinterpret_cast<PCRE2_SPTR>(bytes.data()), bytes.size(), 0,
                                    PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_EXTENDED | PCRE2_NO_UTF_CHECK, nullptr, nullptr,
                                    reinterpret_cast<PCRE2_SPTR>(replacement), PCRE2_ZERO_TERMINATED,
                                    reinterpret_cast<PCRE2_UCHAR*>(out.data()), &length);
  if (done < 0) return bytes;
  out.resize(length);
  return out;
}

/// Calls use(begin, end) for every stretch of equally marked bytes.
template <class Use>
void for_each_stretch(const Text& text, Use&& use) {
  const std::string& marks = text.marks();
  for (size_t begin = 0; begin < marks.size();) {
    const size_t found = marks.find(marks[begin] == Text::kInput ? Text::kTemplate : Text::kInput, begin);
    const size_t end = found == std::string::npos ? marks.size() : found;
    use(begin, end);
    begin = end;
  }
}

/// The form of one character at the start of a title.
Text capital(const Text& character) {
  return character.bytes() == "ß" ? Text("Ss", character.marks()[0]) : map_case(character, Case::kUpper);
}

bool is_space_at(const std::string& bytes, size_t at) { return is_python_space(utf8_next(std::string_view(bytes).substr(at)).code); }

}  // namespace

Text map_case(const Text& text, Case to) {
  Text out;
  for_each_stretch(
      text, [&](size_t begin, size_t end) { out.append(map_bytes(text.bytes().substr(begin, end - begin), to), text.marks()[begin]); });
  return out;
}

Text capitalize(const Text& text) {
  if (text.empty()) return text;
  const size_t first = utf8_next(text.bytes()).length;
  Text out = capital(text.substr(0, first));
  out.append(map_case(text.substr(first), Case::kLower));
  return out;
}

Text title_words(const Text& text) {
  Text out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_next(std::string_view(text.bytes()).substr(at)).length;
    const Text character = text.substr(at, length);
    const Text upper = capital(character);
    const Text lower = map_case(character, Case::kLower);
    out.append(inside ? lower : upper);
    inside = upper.bytes() != lower.bytes();  // a letter with case
    at += length;
  }
  return out;
}

std::vector<size_t> character_offsets(const std::string& bytes) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < bytes.size(); at += utf8_next(std::string_view(bytes).substr(at)).length) offsets.push_back(at);
  offsets.push_back(bytes.size());
  return offsets;
}

Text strip(const Text& text, const std::string* chars, bool left, bool right) {
  const std::string& bytes = text.bytes();
  const auto strips = [&](size_t begin, size_t length) {
    if (chars == nullptr) return is_space_at(bytes, begin);
    const std::string_view character = std::string_view(bytes).substr(begin, length);
    return chars->find(character) != std::string::npos;
  };
  size_t begin = 0;
  while (left && begin < bytes.size()) {
    const size_t length = utf8_next(std::string_view(bytes).substr(begin)).length;
    if (!strips(begin, length)) break;
    begin += length;
  }
  size_t end = bytes.size();
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(bytes[last]) & 0xC0) == 0x80) --last;
    if (!strips(last, end - last)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

std::vector<Text> split(const Text& text, const std::string* separator, int64_t limit, bool from_right) {
  const std::string& bytes = text.bytes();
  std::vector<std::pair<size_t, size_t>> cuts;  // separators as [begin, end)
  if (separator != nullptr) {
    for (size_t at = 0; (at = bytes.find(*separator, at)) != std::string::npos; at += separator->size())
      cuts.emplace_back(at, at + separator->size());
    if (from_right && limit >= 0) {  // overlapping matches are found from the other end
      cuts.clear();
      for (size_t end = bytes.size(); end >= separator->size() && static_cast<int64_t>(cuts.size()) < limit;) {
        const size_t at = bytes.rfind(*separator, end - separator->size());
        if (at == std::string::npos) break;
        cuts.emplace_back(at, at + separator->size());
        end = at;
      }
      std::reverse(cuts.begin(), cuts.end());
    }
  } else {
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = utf8_next(std::string_view(bytes).substr(at)).length;
      if (is_space_at(bytes, at)) {
        if (!cuts.empty() && cuts.back().second == at) {
          cuts.back().second = at + length;
        } else {
          cuts.emplace_back(at, at + length);
        }
      }
      at += length;
    }
  }
  size_t begin = 0;
  size_t end = bytes.size();
  if (separator == nullptr) {
    // White space at the ends separates nothing; but where a limit stops the search before it, it stays.
    const bool keeps_front = limit >= 0 && from_right;
    const bool keeps_back = limit >= 0 && !from_right;
    if (!keeps_front && !cuts.empty() && cuts.front().first == 0) {
      begin = cuts.front().second;
      cuts.erase(cuts.begin());
    }
    if (!keeps_back && !cuts.empty() && cuts.back().second == end) {
      end = cuts.back().first;
      cuts.pop_back();
    }
    if (begin >= end) return {};
  }
  if (limit >= 0 && static_cast<int64_t>(cuts.size()) > limit) {
    if (from_right) {
      cuts.erase(cuts.begin(), cuts.end() - limit);
    } else {
      cuts.resize(static_cast<size_t>(limit));
    }
  }
  std::vector<Text> parts;
  for (const auto& [cut_begin, cut_end] : cuts) {
    if (separator != nullptr || cut_begin > begin) parts.push_back(text.substr(begin, cut_begin - begin));
    begin = cut_end;
  }
  if (separator != nullptr || begin < end) parts.push_back(text.substr(begin, end - begin));
  return parts;
}

std::vector<Text> split_lines(const Text& text) {
  std::vector<Text> lines;
  const std::string& bytes = text.bytes();
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_next(std::string_view(bytes).substr(at));
    const bool breaks = (step.code >= 0x0A && step.code <= 0x0D) || (step.code >= 0x1C && step.code <= 0x1E) || step.code == 0x85 ||
                        step.code == 0x2028 || step.code == 0x2029;
    const size_t end = at;
    at += step.length;
    if (!breaks) continue;
    if (step.code == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    lines.push_back(text.substr(begin, end - begin));
    begin = at;
  }
  if (begin < bytes.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::optional<Text> replace(const Text& text, const std::string& old_text, const Text& new_text, int64_t limit, size_t max_bytes) {
  const std::string& bytes = text.bytes();
  Text out;
  size_t at = 0;
  for (int64_t done = 0; limit < 0 || done < limit; ++done) {
    if (old_text.empty()) {
      out.append(new_text);
      if (at == bytes.size() || out.size() > max_bytes) break;
      const size_t length = utf8_next(std::string_view(bytes).substr(at)).length;
      out.append(text.substr(at, length));
      at += length;
      continue;
    }
    const size_t found = bytes.find(old_text, at);
    if (found == std::string::npos) break;
    out.append(text.substr(at, found - at));
    out.append(new_text);
    at = found + old_text.size();
    if (out.size() > max_bytes) break;
  }
  out.append(text.substr(at));
  if (out.size() > max_bytes) return std::nullopt;
  return out;
}

std::vector<int64_t> slice_indices(int64_t length, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step) {
  const int64_t lowest = step > 0 ? 0 : -1;
  const int64_t highest = step > 0 ? length : length - 1;
  const auto place = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound) return otherwise;
    return std::clamp(*bound < 0 ? *bound + length : *bound, lowest, highest);
  };
  const int64_t from = place(start, step > 0 ? lowest : highest);
  const int64_t to = place(stop, step > 0 ? highest : lowest);
  std::vector<int64_t> indices;
  // Counted, not compared after adding: a huge step must not overflow.
  const uint64_t distance =
      step > 0 ? (to > from ? static_cast<uint64_t>(to - from) : 0) : (from > to ? static_cast<uint64_t>(from - to) : 0);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const uint64_t count = distance == 0 ? 0 : (distance - 1) / stride + 1;
  for (uint64_t i = 0; i < count; ++i) indices.push_back(from + static_cast<int64_t>(i) * step);
  return indices;
}

}  // namespace aerie::jinja
