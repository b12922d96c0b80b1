// File names of the speculators dialect, shared by its reader and its writer.
#pragma once

#include <string>

namespace aerie::speculators {

/// The name in the file of a canonical tensor ("layers.0.q" is "layers.0.self_attn.q_proj.weight").
std::string file_name(const std::string& canonical);

}  // namespace aerie::speculators
