// Hidden-state traces whoever wrote them: Aerie, speculators, SpecForge, Model-Optimizer or SafeAILab/EAGLE (docs/formats.md).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/traces.h"

namespace aerie {

/// What is known of one state slot. Most formats do not say which boundary a slot holds.
struct StateSlot {
  enum class Kind { kBoundary, kAux, kFinal };
  enum class Norm { kRaw, kNormed, kUnknown };

  Kind kind = Kind::kAux;
  int number = 0;          // the boundary; or which of the aux states, in the order of the drafter's feature
  Norm norm = Norm::kRaw;  // of kFinal: whether the target's final norm has been applied. Boundary N is not normed

  /// "boundary 2", "aux 0", "final (norm unknown)".
  std::string name() const;
};

/// One conversation. Position i holds the states after token i was read.
struct Conversation {
  std::string id;        // for people: the row's number or the file's name
  Trace trace;           // slots in the order of TraceSource::slots()
  bool has_mask = true;  // false: nothing was stored, and the mask is all ones
};

/// Conversations of one target, read one at a time. Thread-safe.
class TraceSource {
 public:
  struct Options {
    /// The token rows of a speculators data set, whose state files have no mask: a folder of Arrow files as `datasets` saves them, or JSON
    /// lines with `input_ids` and `loss_mask`, line i for row i. Empty: the Arrow files beside the states, or in the folder above where
    /// these lie in its hidden_states.
    std::string rows;
    /// Takes every token for the target's own where the mask lies in a file that is not given. Without it that is an error.
    bool without_mask = false;
  };

  /// `path` is a folder, or one file of torch.save. The format is told by its files and the keys of the first one.
  /// kUnsupported says which formats there are; kNotFound when there is nothing to read.
  static Expected<std::unique_ptr<TraceSource>> open(const std::string& path, const Options& options);
  static Expected<std::unique_ptr<TraceSource>> open(const std::string& path) { return open(path, Options()); }
  virtual ~TraceSource() = default;

  /// "Aerie", "speculators", "SpecForge", "Model-Optimizer" or "SafeAILab".
  virtual std::string format() const = 0;
  const std::vector<StateSlot>& slots() const { return slots_; }
  /// Values of one state.
  int hidden() const { return hidden_; }
  /// Null for formats that do not say where their rows come from: all but Aerie's.
  virtual const TraceManifest* manifest() const { return nullptr; }

  virtual size_t size() const = 0;
  /// Conversation i < size(). kCorrupt names the file when it is damaged, has other slots or widths than slots() and hidden(), a
  /// token below 0, a mask that is not 0 or 1, or a state that is not finite. States of other types are rounded to bf16.
  virtual Expected<Conversation> read(size_t i) const = 0;

 protected:
  std::vector<StateSlot> slots_;
  int hidden_ = 0;
};

}  // namespace aerie
