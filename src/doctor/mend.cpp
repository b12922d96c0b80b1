#include "doctor/mend.h"

#include <algorithm>

#include "doctor/verdict.h"
#include "eagle3/spec_fields.h"

namespace aerie {
namespace {

DraftFormat own_format(const DraftSpec& spec) {
  if (spec.dialect == "speculators") return DraftFormat::kSpeculators;
  if (spec.dialect == "modelopt") return DraftFormat::kModelOpt;
  if (spec.dialect == "gguf") return DraftFormat::kGguf;
  return DraftFormat::kSpecForge;  // whose files those of the reference, AngelSlim and NeMo resemble
}

/// The taps that were searched through neighbours stand as declared: nothing was said of them.
void restore_stand_ins(const SearchResult& result, const Reading& declared, DraftSpec& spec) {
  for (const StandIn& s : result.stand_ins) {
    if (s.tap < spec.taps.size() && spec.taps[s.tap] == s.used && declared.spec.taps[s.tap] == s.wanted) spec.taps[s.tap] = s.wanted;
  }
}

/// Why no checkpoint can state how this reading feeds the drafter; "" where one can.
std::string beyond_files(const Reading& declared, const Reading& mended, const HypothesisFacts& facts) {
  if (mended.feature_shift != 0) return "states stand beside the wrong tokens, which no file states";
  if (mended.token_shift != 0) return "the drafter was trained beside other tokens than engines feed, which no file states: train it again";
  if (mended.step_stride != 1 || mended.step_offset != 0)
    return "the drafter was trained with other positions than engines count, which no file states: train it again";
  if (mended.feature == declared.feature) return "";
  const auto taps = taps_of(mended.feature, facts.slots, facts.blocks);
  if (!taps) return "the trace does not say which boundaries its states are, so that the taps cannot be written: say it with --slots";
  if (taps->size() != mended.spec.taps.size()) return "the drafter reads another number of states";
  for (size_t i = 0; i < taps->size(); ++i) {
    if (mended.feature[i].final_normed && mended.spec.taps[i] != kFinalNormed)
      return "states go through the target's final norm first, which no file states";
  }
  return "";
}

/// The norms that a reading brought along, and what the other tensors point into.
struct Owner {
  std::shared_ptr<const void> given;
  std::map<std::string, std::vector<float>> norms;
};

}  // namespace

Expected<Mend> mend_checkpoint(const DraftCheckpoint& given, const SearchResult& result, const HypothesisFacts& facts,
                               const ServedTarget& target, int k) {
  const Reading* mended = certain_reading(result, k);
  if (mended == nullptr) return not_found("no fault of the files was named without doubt");
  const Reading& declared = result.rounds.front().base.hypothesis.reading;
  if (const std::string why = beyond_files(declared, *mended, facts); !why.empty()) return unsupported("{}", why);

  Mend out;
  DraftSpec& spec = out.checkpoint.spec = mended->spec;
  restore_stand_ins(result, declared, spec);
  AERIE_TRY(spec.validate());
  out.changes = differing_fields(declared.spec, spec);
  const auto owner = std::make_shared<Owner>(Owner{given.owner, mended->norms});
  for (const DraftTensor& tensor : draft_tensors(spec)) {
    if (const auto norm = owner->norms.find(tensor.name); norm != owner->norms.end()) {
      out.checkpoint.tensors[tensor.name] = {tensor.name,
                                             DType::kF32,
                                             tensor.shape,
                                             {reinterpret_cast<const uint8_t*>(norm->second.data()), norm->second.size() * sizeof(float)}};
      continue;
    }
    const auto at = given.tensors.find(tensor.name);
    if (at == given.tensors.end()) return unsupported("the mended drafter needs {}, which the files do not have", tensor.name);
    out.checkpoint.tensors[tensor.name] = at->second;
  }
  out.checkpoint.owner = owner;
  out.format = own_format(given.spec);
  if (const Status own = check_expressible(out.format, spec, target); !own.ok()) {
    out.format = DraftFormat::kSpeculators;
    const Status other = check_expressible(out.format, spec, target);
    if (!other.ok()) return unsupported("{}; nor do those of speculators: {}", own.message(), other.message());
  }
  return out;
}

Status write_mend(const Mend& mend, const std::string& path, const ConvertOptions& options) {
  return convert_drafter(mend.checkpoint, path, mend.format, options);
}

ReportSection describe(const Mend& mend, const std::string& path) {
  ReportSection out{"fix", fmt::format("mended: {} ({})", path, draft_format_name(mend.format)), {}, nlohmann::json::object()};
  for (const std::string& change : mend.changes) out.lines.push_back(change + " as mended");
  out.lines.push_back("read again and equal, weight by weight and forward by forward, to the reading that works");
  out.data = {{"path", path}, {"format", draft_format_name(mend.format)}, {"changes", mend.changes}};
  return out;
}

}  // namespace aerie
