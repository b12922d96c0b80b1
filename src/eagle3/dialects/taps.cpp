#include "eagle3/dialects/taps.h"

#include <algorithm>

namespace aerie {
namespace {

LayerIdRule rule_of(LayerIdConvention convention) {
  return convention == LayerIdConvention::kBoundary ? LayerIdRule::kBoundary : LayerIdRule::kBlockOutput;
}

Status set_taps(LayerIdRule rule, const std::vector<int>& ids, int blocks, Source source, const std::string& why, SpecBuilder& build) {
  auto taps = to_boundaries(rule, ids, blocks);
  if (!taps.ok()) return taps.status().with_context("the drafter's layer ids");
  build.spec().taps = std::move(*taps);
  build.note("taps", source, why);
  return {};
}

Status use_defaults(const StatedTaps& stated, const OpenOptions& options, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  const int count = stated.fc_taps > 0 ? stated.fc_taps : 3;
  if (options.target_blocks >= 6 && count == 3) {
    spec.taps = default_taps(LayerIdRule::kBoundary, options.target_blocks);
    build.note("taps", Source::kDefaulted,
               fmt::format("no layer ids are stated: 2, N/2 and N-3 of the target's {} blocks", options.target_blocks));
    build.find(Severity::kWarning, "taps-defaulted",
               fmt::format("the files state no layer ids; the default for this target is {}", fmt::join(spec.taps, ",")),
               "state them, if the drafter was trained with them");
    return {};
  }
  spec.taps.assign(static_cast<size_t>(count), kUnknownTap);
  build.note("taps", Source::kDefaulted, "no layer ids are stated, and the target's number of blocks is not known");
  build.find(Severity::kError, "taps-unknown",
             fmt::format("{} is missing: for a target of N blocks the usual default is [2, N/2, N-3]", stated.key),
             count == 3 ? "name the target with -m, or give --taps" : fmt::format("give the {} boundaries with --taps", count));
  return {};
}

Status use_ids(const StatedTaps& stated, const OpenOptions& options, SpecBuilder& build) {
  const std::vector<int>& ids = *stated.ids;
  const int blocks = options.target_blocks;
  const std::string shown = fmt::format("{} [{}]", stated.key, fmt::join(ids, ","));
  if (options.convention) {
    return set_taps(rule_of(*options.convention), ids, blocks, Source::kInferred,
                    fmt::format("{}, read by --layer-id-convention {}", shown, layer_id_convention_name(*options.convention)), build);
  }
  if (stated.convention) {
    return set_taps(rule_of(*stated.convention), ids, blocks, Source::kRead,
                    fmt::format("{}, layer_id_convention {}", shown, layer_id_convention_name(*stated.convention)), build);
  }
  const bool named = !options.target_architecture.empty();
  AERIE_ASSIGN(const LayerIdRule rule, layer_id_rule(stated.producer, named ? options.target_architecture : stated.usual_target));
  if (stated.certain) {
    const bool boundaries = rule == LayerIdRule::kBoundary;
    return set_taps(rule, ids, blocks, Source::kRead,
                    fmt::format("{} ({} in this dialect)", shown, boundaries ? "boundaries" : "block outputs"), build);
  }
  const bool special =
      rule == LayerIdRule::kFirstOne || rule == LayerIdRule::kShiftedDefault || (rule == LayerIdRule::kLastBlock && blocks > 0);
  if (special) {
    return set_taps(
        rule, ids, blocks, Source::kInferred,
        fmt::format("{}, as {} counts for {}", shown, stated.producer,
                    named ? "the target " + options.target_architecture : stated.usual_target + ", the usual target of such drafters"),
        build);
  }
  const LayerIdGuess guess = guess_convention(ids, blocks);
  const bool usual = guess.convention == LayerIdConvention::kBlockOutput;  // what all producers without a certain meaning write
  if (guess.strength == LayerIdGuess::Strength::kCertain || (guess.strength == LayerIdGuess::Strength::kLikely && usual)) {
    const LayerIdRule used = usual ? rule : LayerIdRule::kBoundary;
    AERIE_TRY(set_taps(used, ids, blocks, Source::kInferred,
                       fmt::format("{}: {} ids, since {}", shown, layer_id_convention_name(guess.convention), guess.why), build));
    if (guess.strength == LayerIdGuess::Strength::kLikely || !usual) {
      build.find(Severity::kWarning, "layer-ids-inferred",
                 fmt::format("{} was read as {} ids, since {}; engines differ in this", shown, layer_id_convention_name(guess.convention),
                             guess.why),
                 "if the drafter was trained otherwise, give --taps or --layer-id-convention");
    }
    return {};
  }
  AERIE_TRY(set_taps(rule == LayerIdRule::kLastBlock ? LayerIdRule::kBlockOutput : rule, ids, blocks, Source::kInferred,
                     shown + ", as this dialect usually counts; the numbers fit both conventions", build));
  build.find(Severity::kError, "ambiguous-layer-ids",
             fmt::format("{} fits both conventions: boundaries {}, or block outputs, which are boundaries {}", shown, fmt::join(ids, ","),
                         fmt::join(build.spec().taps, ",")),
             "give --layer-id-convention boundary or block-output, or --taps, as the drafter was trained");
  return {};
}

}  // namespace

Status settle_taps(const StatedTaps& stated, const OpenOptions& options, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  const bool no_aux = stated.no_aux || (stated.ids && stated.ids->empty());
  spec.has_fc = !no_aux;
  build.note("has_fc", no_aux ? Source::kRead : Source::kDefaulted,
             stated.no_aux ? "use_aux_hidden_state is false"
             : no_aux      ? stated.key + " is an empty list"
                           : "the drafter reads taps of the target");
  if (!options.taps.empty()) {
    spec.taps = options.taps;
    build.note(
        "taps", Source::kInferred,
        stated.ids ? fmt::format("given with --taps, instead of {} [{}]", stated.key, fmt::join(*stated.ids, ",")) : "given with --taps");
    return {};
  }
  if (no_aux) {
    spec.taps = {kFinalNormed};
    build.note("taps", Source::kInferred, "without taps a drafter reads the target's last state after its final norm");
    return {};
  }
  if (stated.ids) return use_ids(stated, options, build);
  return use_defaults(stated, options, build);
}

}  // namespace aerie
