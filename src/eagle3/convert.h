// From one dialect to another, where the other can say the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "eagle3/checkpoint.h"
#include "formats/gguf.h"

namespace aerie {

enum class DraftFormat { kSpeculators, kGguf };

/// "speculators", "gguf".
const char* draft_format_name(DraftFormat format);
Expected<DraftFormat> parse_draft_format(std::string_view text);

/// Ok if files of the format can state this spec; kUnsupported names the first field that they cannot, its value, and why.
Status check_expressible(DraftFormat format, const DraftSpec& spec);

struct ConvertOptions {
  bool float32 = false;                 // matrices as F32; otherwise as they are stored
  const GgufFile* tokenizer = nullptr;  // GGUF: the target whose tokenizer goes along; null: none
  std::string target_name;              // speculators: the verifier; GGUF: part of general.name
};

/// Writes `checkpoint` to `path` (a folder, or a GGUF file), opens what was written and compares it with what was given: the spec
/// field by field, every weight, and the drafter's forward on random rows, which must have the same bytes. Only then is it put in
/// place; on any error nothing is left and `path` is as it was. A path that exists is refused.
Status convert_drafter(const DraftCheckpoint& checkpoint, const std::string& path, DraftFormat format, const ConvertOptions& options);

}  // namespace aerie
