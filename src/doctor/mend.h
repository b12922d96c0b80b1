// What the search named, as files: the checkpoint with the faults mended that a checkpoint can state.
#pragma once

#include <string>
#include <vector>

#include "doctor/hypothesis_search.h"
#include "doctor/report.h"
#include "eagle3/convert.h"

namespace aerie {

struct Mend {
  DraftCheckpoint checkpoint;
  DraftFormat format = DraftFormat::kSpeculators;  // the checkpoint's own where that can state it, else speculators'
  std::vector<std::string> changes;                // "taps: 0,2,15 against 2,15,27": as it was, as it is
};

/// `given` with every fault mended that was named without doubt. kNotFound: none was. kUnsupported: it lies in how the drafter is fed, or
/// neither format can state it; the message says what. The mend shares the tensors of `given`.
Expected<Mend> mend_checkpoint(const DraftCheckpoint& given, const SearchResult& result, const HypothesisFacts& facts,
                               const ServedTarget& target, int k);

/// Writes it to `path`, read again and proved equal before it is in place (eagle3/convert.h).
Status write_mend(const Mend& mend, const std::string& path, const ConvertOptions& options);

/// What was written where.
ReportSection describe(const Mend& mend, const std::string& path);

}  // namespace aerie
