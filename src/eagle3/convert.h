// From one dialect to another, where the other can say the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "eagle3/checkpoint.h"
#include "eagle3/engines/as_served.h"
#include "formats/gguf.h"

namespace aerie {

enum class DraftFormat {
  kSpeculators,
  kSpecForge,  // as SpecForge exports, and as AngelSlim and the reference do but for the ids
  kSglang,     // the same files, refused unless SGLang would serve the very spec
  kModelOpt,
  kGguf,
};

/// "speculators", "specforge", "sglang", "modelopt", "gguf".
const char* draft_format_name(DraftFormat format);
Expected<DraftFormat> parse_draft_format(std::string_view text);

/// Ok if files of the format can state this spec; kUnsupported names the first field that they cannot, its value, and why. How
/// layer ids are read depends on the target in SpecForge's files and SGLang's.
Status check_expressible(DraftFormat format, const DraftSpec& spec, const ServedTarget& target = {});

/// The ids that state the spec's taps in a folder of SpecForge's, SGLang's or ModelOpt's; none for a spec without fc.
Expected<LayerIds> layer_ids_of(DraftFormat format, const DraftSpec& spec, const ServedTarget& target);

struct ConvertOptions {
  bool float32 = false;                 // weights as F32; otherwise as they are stored
  const GgufFile* tokenizer = nullptr;  // GGUF: the target whose tokenizer goes along; null: none
  std::string target_name;              // speculators: the verifier; GGUF: part of general.name
  ServedTarget target;                  // as far as it is known
};

/// Writes `checkpoint` to `path` (a folder, or a GGUF file), opens what was written and compares it with what was given: the spec
/// field by field, every weight, and the drafter's forward on random rows, which must have the same bytes. Only then is it put in
/// place; on any error nothing is left and `path` is as it was. A path that exists is refused.
Status convert_drafter(const DraftCheckpoint& checkpoint, const std::string& path, DraftFormat format, const ConvertOptions& options);

}  // namespace aerie
