// The target architectures that are known. A new one is one file beside llama.cpp, a line here and a line in registry.cpp.
#pragma once

#include "models/target.h"

namespace aerie {

/// The sizes that every architecture writes under its own prefix ("llama.block_count", ...), each checked for its range.
Expected<TargetConfig> read_target_config(const GgufFile& file, const std::string& prefix);

Expected<std::unique_ptr<Target>> load_llama(const GgufFile& file, const TargetOptions& options, ThreadPool& pool);

}  // namespace aerie
