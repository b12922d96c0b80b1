// Traces in files of torch.save. Private to src/formats: see trace_source.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/trace_source.h"

namespace aerie {

/// The files of `folder` that may be traces: data_*.ckpt and data_*.ckpt.gz in it and in folders one level down, else *.pt.
/// Numbers in names sort by value.
Expected<std::vector<std::string>> list_torch_traces(const std::string& folder);

/// One conversation a file, at least one; the keys of the first say the format.
Expected<std::unique_ptr<TraceSource>> open_torch_traces(std::vector<std::string> files);

}  // namespace aerie
