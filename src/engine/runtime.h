// Everything that is loaded once: target, drafter, tokenizer, chat template and the threads that compute.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/thread_pool.h"
#include "eagle3/drafter.h"
#include "engine/draft_length.h"
#include "formats/gguf.h"
#include "models/target.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace aerie {

struct RuntimeOptions {
  std::string target;   // GGUF file
  std::string drafter;  // folder, or empty for none
  OpenOptions reading;  // what the drafter's files do not say; the target's facts are added
  int threads = 0;      // 0: as many as this process may use
  std::string isa;      // empty: the best of this machine
  Precision precision = Precision::kServed;
  int context = 0;     // tokens of a sequence at most; 0: what the model was made for
  int max_rows = 512;  // rows of one forward: bounds memory and the chunks a prompt is cut into
};

/// One loaded pair of models. Not thread-safe: one generation, capture or benchmark at a time.
class Runtime {
 public:
  /// Refuses a drafter that does not fit the target, naming both sizes.
  static Expected<std::unique_ptr<Runtime>> load(const RuntimeOptions& options);

  const GgufFile& file() const { return file_; }
  ThreadPool& pool() { return *pool_; }
  Target& target() { return *target_; }
  const Target& target() const { return *target_; }
  const Drafter* drafter() const { return drafter_ ? &*drafter_ : nullptr; }
  /// What reading the drafter had to say.
  const std::vector<Finding>& drafter_findings() const { return drafter_findings_; }
  CpuOps& draft_ops() { return *draft_ops_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  /// Null when the target's file has no chat template.
  const ChatTemplate* chat_template() const { return chat_template_ ? &*chat_template_ : nullptr; }
  double load_seconds() const { return load_seconds_; }
  /// Chooses the number of drafts; what it has learned of the drafter's acceptance goes on from one generation to the next. Measures
  /// the machine when first asked for; needs a drafter.
  Expected<DraftLength*> draft_length();

 private:
  explicit Runtime(GgufFile file) : file_(std::move(file)) {}

  GgufFile file_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Target> target_;
  std::optional<Drafter> drafter_;
  std::vector<Finding> drafter_findings_;
  std::optional<CpuOps> draft_ops_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  std::optional<DraftLength> draft_length_;
  double load_seconds_ = 0;
};

/// The target's sizes, embedding table and output matrix, as a drafter borrows them. Both must outlive the result.
TargetTables tables_of(Target& target, ThreadPool& pool);

/// The kernels of that name ("avx2"); "": the best of this machine. kInvalidArgument or kUnsupported says which there are.
Expected<const kernels::Kernels*> choose_kernels(const std::string& isa);
/// The number of threads as asked; 0: the cores this process may use. kInvalidArgument beyond four times these.
Expected<int> choose_threads(int asked);

/// Adds the target's architecture and depth to what is known about its drafter.
Status add_target_facts(const GgufFile& target, OpenOptions& known);

/// A path as given, or the file behind a known model's name ("smollm2"). kNotFound says where it was looked for.
Expected<std::string> resolve_target(const std::string& path_or_name);
Expected<std::string> resolve_drafter(const std::string& path_or_name);

}  // namespace aerie
