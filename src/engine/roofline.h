// How near the machine's limits a forward is: its bytes and operations against measured ceilings (Williams, Waterman, Patterson 2009).
#pragma once

#include <map>

#include "engine/runtime.h"
#include "kernels/ceilings.h"

namespace aerie {

/// Measured with all threads. Reads are of zeroed huge pages: as many bytes as the target's weights, which a large cache keeps in part
/// from one pass to the next as it does the weights, and 256 MiB, which hardly any does.
struct Ceilings {
  double read_gb_s = 0, far_read_gb_s = 0;
  std::map<kernels::Unit, double> gop_s;  // empty for the scalar kernels
};

Ceilings measure_ceilings(Runtime& runtime, int repetitions);

/// One forward of `rows` rows behind `depth` tokens, of which `logit_rows` need logits.
struct ForwardShape {
  int rows = 1, depth = 0, logit_rows = 1;
  int sequences = 1;  // that share the rows, each with a cache of `depth` tokens
};

/// Seconds that the forward takes at least: the longer of reading weights and caches once, and of its operations at `share` of their
/// units' ceilings. A quantised product counts twice, since activations are two bytes (kernels::QuantizedBlock). 0 where the
/// ceilings are not known.
double roofline_seconds(Runtime& runtime, const Ceilings& ceilings, const ForwardShape& shape, double share = 1.0);

}  // namespace aerie
