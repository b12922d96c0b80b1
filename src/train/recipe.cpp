#include "train/recipe.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <spdlog/spdlog.h>

#include <charconv>
#include <cstdlib>

#include "eagle3/convert.h"
#include "eagle3/target_fit.h"

namespace aerie::train {
namespace {

constexpr int kMostDevices = 127;  // of c10's index

bool cpu_has_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

const char* name_of(FeatureNorm norm) { return norm == FeatureNorm::kNone ? "none" : norm == FeatureNorm::kConcat ? "concat" : "per-tap"; }
const char* name_of(Feedback feedback) { return feedback == Feedback::kPreNorm ? "pre" : "post"; }
const char* name_of(Loss loss) { return loss == Loss::kKl ? "kl" : "lk-hybrid"; }
const char* name_of(HeadMode head) { return head == HeadMode::kWarm ? "warm" : head == HeadMode::kFrozen ? "frozen" : "free"; }

}  // namespace

Expected<at::Device> device_of(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  const auto wrong = [&] { return invalid_argument("the device {} is not known; expected cpu, cuda or cuda:NUMBER", name); };
  if (name != "cuda" && !name.starts_with("cuda:")) return wrong();
  const char* local_rank = std::getenv("LOCAL_RANK");
  const std::string number = name != "cuda" ? name.substr(5) : local_rank != nullptr ? local_rank : "0";
  int index = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
  if (error != std::errc() || end != number.data() + number.size() || index < 0 || index > kMostDevices) return wrong();
  const int here = at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0;
  if (index < here) return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  return unsupported("the device {} is not there: {}; use --device cpu", name,
                     at::hasCUDA() ? fmt::format("this machine has {}", here)
                                   : "the LibTorch that aerie-train is linked with has no CUDA, or finds no driver");
}

MatmulPrecision precision_on(const at::Device& device, MatmulPrecision asked) {
  if (asked != MatmulPrecision::kAuto) return asked;
  return device.is_cuda() || cpu_has_bf16() ? MatmulPrecision::kBf16 : MatmulPrecision::kFloat32;
}

Expected<DraftSpec> make_spec(const TrainOptions& o, const TargetTensors& target, const Dataset& data) {
  const TargetConfig& c = target.config;
  DraftSpec spec;
  spec.taps = data.taps();
  spec.target_hidden = spec.hidden = c.hidden;
  spec.heads = c.heads;
  spec.kv_heads = c.kv_heads;
  spec.head_dim = c.head_dim;
  spec.rope_dim = c.head_dim;
  spec.intermediate = c.intermediate;
  spec.feature_norm = o.feature_norm;
  spec.norm_before_residual = o.norm_before_residual;
  spec.feedback = o.feedback;
  spec.rope_theta = c.rope_theta;
  spec.rms_eps = c.rms_eps;
  spec.max_positions = c.context;
  spec.own_embedding = false;
  spec.own_head = true;
  spec.vocab = c.vocab;
  spec.draft_vocab = o.draft_coverage ? draft_vocab_for(data.told_by(), *o.draft_coverage, c.vocab, target.end_tokens) : o.draft_vocab;
  AERIE_ASSIGN(spec.d2t, choose_draft_vocab(data.told_by(), spec.draft_vocab, c.vocab, target.end_tokens));
  spdlog::info("a draft vocabulary of {} tokens, which covers {:.2f} % of the answers", spec.draft_vocab,
               100 * coverage_of(spec.d2t, data.told_by(), c.vocab));
  AERIE_TRY(spec.validate());
  return spec;
}

Expected<DraftCheckpoint> open_source(const std::string& path, const TargetTensors& target) {
  OpenOptions known;
  known.target_blocks = target.config.blocks;
  AERIE_ASSIGN(DraftCheckpoint out, open_drafter(path, known));
  AERIE_TRY(check_fits_target(out.spec, target.config.hidden, target.config.vocab, target.config.blocks).with_context(path));
  TensorView embedding;
  AERIE_TRY(drop_targets_embedding(out, facts_of(target, embedding)).status());
  const auto cannot = [&](const char* why) { return unsupported("{}: cannot be trained further: {}", path, why); };
  if (out.spec.own_embedding) return cannot("it has an embedding of its own, and the trainer takes the target's");
  if (!out.spec.own_head) return cannot("it shares the target's head, which is not trained");
  AERIE_TRY(check_expressible(DraftFormat::kSpeculators, out.spec).with_context(path));
  return out;
}

nlohmann::json recipe_of(const TrainOptions& o, const DraftSpec& spec, const Dataset& data, MatmulPrecision precision) {
  nlohmann::json out = {{"source", data.manifest().source_id()},
                        {"data", data.contents_id()},
                        {"held_out", data.held_out().size()},
                        {"draft_vocab", spec.draft_vocab},
                        {"feature_norm", name_of(spec.feature_norm)},
                        {"feedback", name_of(spec.feedback)},
                        {"norm_before_residual", spec.norm_before_residual},
                        {"head", name_of(o.head)},
                        {"ttt_steps", o.ttt_steps},
                        {"step_decay", o.step_decay},
                        {"loss", name_of(o.loss)},
                        {"teacher_temperature", o.teacher_temperature},
                        {"optimizer", o.optimizer == Optimizer::kMuon ? "muon" : "adamw"},
                        {"tokens_per_step", o.tokens_per_step},
                        {"row_length", o.row_length},
                        {"lr", o.learning_rate},
                        {"warmup", o.warmup_steps},
                        {"seed", o.seed},
                        {"bf16", precision == MatmulPrecision::kBf16}};
  if (!data.training().empty()) {  // else how many there will be is not known
    out["conversations"] = data.training().size();
    out["tokens"] = data.training_tokens();
  }
  if (o.device != "cpu") out["device"] = "cuda";
  if (data.taps() != data.manifest().taps) out["taps"] = data.taps();
  if (o.draft_coverage) out["draft_coverage"] = *o.draft_coverage;
  if (o.noise != 0) out["noise"] = o.noise;
  if (o.anchors != 0) out["anchors"] = o.anchors;
  if (data.teacher() != data.manifest().target.blocks) out["teacher_boundary"] = data.teacher();
  return out;
}

}  // namespace aerie::train
