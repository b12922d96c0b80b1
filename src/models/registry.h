// The target architectures that are known. A new one is one file beside llama.cpp, a line here and a line in registry.cpp.
#pragma once

#include "models/target.h"

namespace aerie {

// Bounds that no real model comes near; beyond them sizes would overflow ints or a hostile file would ask for the machine.
inline constexpr int kMaxTargetBlocks = 1024, kMaxTargetWidth = 1 << 18, kMaxTargetHeads = 4096, kMaxTargetVocab = 1 << 22,
                     kMaxTargetContext = 1 << 24;

/// kCorrupt: heads that cannot share the kv heads evenly, a norm's epsilon or a RoPE base that is not positive. `path` is named.
Status check_target_config(const TargetConfig& config, const std::string& path);

/// The sizes that every architecture writes under its own prefix ("llama.block_count", ...), each checked for its range.
Expected<TargetConfig> read_target_config(const GgufFile& file, const std::string& prefix);

Expected<std::unique_ptr<Target>> load_llama(const GgufFile& file, const TargetOptions& options, ThreadPool& pool);

}  // namespace aerie
