#include "formats/boundary.h"

#include <fmt/core.h>

namespace aerie {

std::string boundary_name(int boundary) {
  if (boundary == kFinalNormed) return "the normed final state";
  return boundary == 0 ? "embed" : fmt::format("boundary {}", boundary);
}

}  // namespace aerie
