// Writes a drafter as a folder, in whatever dialect its config.json is.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "eagle3/checkpoint.h"
#include "formats/tensor.h"

namespace aerie {

/// What a dialect decides of a folder.
struct DraftFolder {
  nlohmann::ordered_json config;          // torch_dtype is added by the writer
  std::string first_layer = "layers.0.";  // what the first layer's tensors are called
  bool t2d = true;                        // t2d goes along with d2t
};

/// Writes the drafter so that `folder` holds either the whole new checkpoint or what it held before; other files in the folder
/// (a model card) are kept. The tensors are keyed by canonical name, keep their types, and must be exactly those of
/// draft_tensors(spec), all of them finite. What was written is read again and compared, spec and bytes, before it is put in place.
Status write_draft_folder(const std::string& folder, const DraftFolder& as, const DraftSpec& spec,
                          const std::map<std::string, TensorView>& tensors);

}  // namespace aerie
