// A drafter opened to be computed on stored features: no sequences and no tokenizer, and its target only where it shares its tables.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/thread_pool.h"
#include "eagle3/drafter.h"
#include "formats/gguf.h"
#include "models/target.h"

namespace aerie {

struct StandaloneOptions {
  std::string drafter;  // folder or file, or the name of a known model's
  std::string target;   // GGUF file or known name; empty: none, which a drafter with tables of its own can do without
  OpenOptions reading;  // what the files do not say; the target's facts are added where one is given
  int threads = 0;      // 0: as many as this process may use
  std::string isa;      // empty: the best of this machine
  DraftPrecision precision = DraftPrecision::kServed;
};

/// What a drafter that shares nothing with its target may be created with: the sizes that its spec states, and no limit for its taps.
/// kInvalidArgument names the tables of one that does.
Expected<TargetTables> tables_without_target(const DraftSpec& spec);

/// Not thread-safe: it has one set of operations.
class StandaloneDrafter {
 public:
  /// Without a target, a drafter that shares a table of it is refused, naming the table. With one, a drafter that does not fit it.
  static Expected<std::unique_ptr<StandaloneDrafter>> load(const StandaloneOptions& options);

  /// What was read, its findings included.
  const DraftCheckpoint& checkpoint() const { return checkpoint_; }
  const Drafter& drafter() const { return *drafter_; }
  CpuOps& ops() { return *ops_; }

 private:
  StandaloneDrafter() = default;

  std::optional<GgufFile> file_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Target> target_;
  DraftCheckpoint checkpoint_;
  std::optional<CpuOps> ops_;
  std::optional<Drafter> drafter_;
};

}  // namespace aerie
