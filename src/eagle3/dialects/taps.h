// From the layer ids of a checkpoint to taps, with every doubt said.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eagle3/dialects/spec_builder.h"

namespace aerie {

/// What the files say of the layers that the drafter reads.
struct StatedTaps {
  std::optional<std::vector<int>> ids;          // absent and empty differ: an empty list reads none
  std::string key;                              // where they were read
  std::optional<LayerIdConvention> convention;  // if the files name it (`layer_id_convention`)
  std::string producer;                         // of layer_id_rule(): who wrote them
  std::string usual_target;                     // the architecture that such drafters are made for, where the target's matters; or ""
  bool certain = false;                         // this producer's files have one meaning only
  bool no_aux = false;                          // use_aux_hidden_state is false
  int fc_taps = 0;                              // how many of the target's width fit into fc, 0: not known
};

/// Sets spec.taps and spec.has_fc. Order of what decides: OpenOptions::taps, the convention of the options, of the files, of the
/// producer. Ids that fit both conventions are a finding "ambiguous-layer-ids", ids that are absent with N not known one
/// "taps-unknown"; both are errors that the options can settle.
Status settle_taps(const StatedTaps& stated, const OpenOptions& options, SpecBuilder& build);

}  // namespace aerie
