// Which family a checkpoint belongs to, and which families are no EAGLE-3 drafters.
#pragma once

#include "base/status.h"
#include "eagle3/raw_checkpoint.h"

namespace aerie {

/// kUnsupported names the family: P-EAGLE, DFlash, DSpark, EAGLE-1/2/4, Medusa, weights in fp8 or quantised ones, ...; ok where
/// nothing speaks against an EAGLE-3 drafter.
Status check_family(const RawCheckpoint& raw);

}  // namespace aerie
