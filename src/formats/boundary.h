// The words for a target's states. Boundary b is its residual stream after b blocks; see docs/architecture.md.
#pragma once

#include <string>

namespace aerie {

/// A tap that is no boundary: the target's last state after its final norm, what its own head reads.
inline constexpr int kFinalNormed = -1;

/// "embed" for boundary 0, "boundary 2" for boundary 2, "the normed final state" for kFinalNormed.
std::string boundary_name(int boundary);

}  // namespace aerie
