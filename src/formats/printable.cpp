#include "formats/printable.h"

#include <fmt/format.h>

namespace aerie {

std::string printable(std::string_view text) { return "'" + printable_bare(text) + "'"; }

std::string printable_bare(std::string_view text) {
  constexpr size_t kLongest = 100;
  std::string out;
  for (const char c : text.substr(0, kLongest)) {
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text.size() > kLongest ? out + "..." : out;
}

}  // namespace aerie
