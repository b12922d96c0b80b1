// Faults in a drafter's files, which reading them shows.
#include "diagnosis.h"
#include "eagle3/checkpoint_parts.h"
#include "eagle3/dialects/speculators.h"
#include "eagle3/engines/as_served.h"
#include "support/temp_folder.h"
#include "table.h"

namespace aerie {
namespace {

/// The drawn drafter as the speculators library would write it.
Parts drawn_parts() {
  const TempFolder folder;
  const DraftSpec spec = drawn_spec();
  const DraftCheckpoint checkpoint = drawn_checkpoint(spec, 7);
  const Status saved = speculators::save_checkpoint(folder / "drafter", spec, checkpoint.tensors);
  EXPECT_TRUE(saved.ok()) << saved.message();
  return parts_of(folder / "drafter");
}

/// What reading the damaged files says. A refusal is the right one where its sentence has `words`.
std::function<std::vector<Finding>()> files(const std::function<void(Parts&)>& damage, const std::string& words) {
  return [=] {
    Parts parts = drawn_parts();
    damage(parts);
    const TempFolder folder;
    parts.write(folder / "drafter");
    OpenOptions known;
    known.target_blocks = kDrawnBlocks;
    const auto read = read_drafter(folder / "drafter", known);
    if (read.ok()) return read->findings;
    const bool says = read.status().message().find(words) != std::string::npos;
    return std::vector<Finding>{
        {Severity::kError, says ? "files-refused" : "files-refused-for-another-reason", read.status().message(), ""}};
  };
}

}  // namespace

// clang-format off
std::vector<TableRow> file_faults() {
  const std::vector<std::string> refused = {"files-refused"};
  return {
      {{2}, "input_norm stored, its flag off", refused,
       files([](Parts& p) { p.config["norm_before_fc"] = false; }, "input_norm.weight")},
      {{2}, "fc as wide as another number of taps", refused, files([](Parts& p) { p.set_zeros("fc.weight", {32, 64}); }, "fc.weight")},
      {{9}, "a DFlash drafter, which is no EAGLE-3 drafter", refused, files([](Parts& p) { p.config["dflash_config"] = nlohmann::json::object(); }, "DFlash")},
      {{13}, "an EAGLE-1 drafter", refused, files([](Parts& p) { p.config["architectures"] = {"EAGLEModel"}; p.config.erase("speculators_model_type"); }, "EAGLE-1")},
      {{22}, "q_norm stored without a k_norm", refused, files([](Parts& p) { p.set_zeros("layers.0.self_attn.q_norm.weight", {8}); }, "k_norm.weight")},
      {{28}, "lm_head absent", refused, files([](Parts& p) { p.tensors.erase("lm_head.weight"); }, "lm_head.weight")},
      {{30}, "the embedding has the target's width, the drafter another", refused, files([](Parts& p) { p.set_zeros("embed_tokens.weight", {60, 48}); }, "embed_tokens.weight")},
      {{33}, "draft_vocab_size is not the tensors'", refused, files([](Parts& p) { p.config["draft_vocab_size"] = 41; }, "41")},
      {{34}, "a tensor is missing", refused, files([](Parts& p) { p.tensors.erase("layers.0.hidden_norm.weight"); }, "hidden_norm.weight")},
      {{35}, "a tensor of another shape", refused, files([](Parts& p) { p.set_zeros("layers.0.self_attn.k_proj.weight", {16, 32}); }, "k_proj.weight")},
      {{36}, "d2t of target ids, and t2d that contradicts it", refused,
       files([](Parts& p) {
         std::vector<int64_t> ids;
         std::vector<uint8_t> known(60, 0);
         for (int64_t d = 0; d < 40; ++d) {
           ids.push_back(d * 3 / 2);
           known[static_cast<size_t>(ids.back())] = 1;
         }
         p.set_i64("d2t", ids);
         p.tensors["t2d"] = {DType::kBool, {60}, known};
       }, "d2t")},
      {{37}, "d2t is missing", refused, files([](Parts& p) { p.tensors.erase("d2t"); p.tensors.erase("t2d"); }, "d2t is missing")},
      {{38}, "d2t is all zeros", refused, files([](Parts& p) { p.set_i64("d2t", std::vector<int64_t>(40, 0)); p.tensors.erase("t2d"); }, "all zeros")},
      {{41, 42}, "the drafter's config carries the target's quantisation", refused,
       files([](Parts& p) { p.config["quantization_config"] = {{"quant_method", "fp8"}}; }, "quantised")},
      {{48}, "rope_theta and rope_parameters disagree", refused,
       files([](Parts& p) {
         p.layer()["rope_theta"] = 10000.0;
         p.layer()["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1000000.0}};
       }, "rope_theta")},
  };
}
// clang-format on

}  // namespace aerie
