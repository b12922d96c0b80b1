// Names that come from files, made safe to print in an error.
#pragma once

#include <string>
#include <string_view>

namespace aerie {

/// `text` in single quotes, bytes outside printable ASCII as \xHH, cut after 100 bytes.
std::string printable(std::string_view text);
/// The same without the quotes, for names that stand by themselves.
std::string printable_bare(std::string_view text);

}  // namespace aerie
