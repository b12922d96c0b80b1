// aerie forward: a drafter's logits for stored features, with no engine.
#include <algorithm>
#include <cmath>

#include "command.h"
#include "eagle3/unroll.h"
#include "formats/printable.h"
#include "formats/safetensors.h"

namespace aerie::cli {
namespace {

struct ForwardFlags {
  StandaloneFlags drafter;
  std::string input, output;
  UnrollOptions unroll;
};

struct ForwardInput {
  std::vector<float> features;     // [L, k*Ht]
  std::vector<int32_t> token_ids;  // [L]
};

Expected<ForwardInput> read_input(const std::string& path, const DraftSpec& spec) {
  AERIE_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path));
  for (const TensorView& tensor : file.tensors()) {
    if (tensor.name == "features" || tensor.name == "token_ids") continue;
    spdlog::warn("{}: the tensor {} is not used", path, printable(tensor.name));
  }
  AERIE_ASSIGN(const TensorView* features, file.find("features"));
  AERIE_ASSIGN(const TensorView* token_ids, file.find("token_ids"));
  const uint64_t width = static_cast<uint64_t>(spec.feature_width());
  if (features->shape.size() != 2 || features->shape[1] != width) {
    return invalid_argument("{}: features has the shape {}, expected [L, {}]: the {} states of width {} that the drafter reads", path,
                            features->shape_string(), width, spec.taps.size(), spec.target_hidden);
  }
  if (token_ids->shape != std::vector<uint64_t>{features->shape[0]}) {
    return invalid_argument("{}: token_ids has the shape {}, expected [{}], one for each row of features", path, token_ids->shape_string(),
                            features->shape[0]);
  }
  ForwardInput out;
  AERIE_ASSIGN(const std::vector<int64_t> ids, to_integers(*token_ids));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= spec.vocab) {
      return invalid_argument("{}: token_ids[{}] is {}, outside the target's vocabulary of {}", path, i, ids[i], spec.vocab);
    }
    out.token_ids.push_back(static_cast<int32_t>(ids[i]));
  }
  AERIE_ASSIGN(out.features, to_float(*features));
  for (size_t i = 0; i < out.features.size(); ++i) {
    if (!std::isfinite(out.features[i])) {
      return invalid_argument("{}: features[{}, {}] is {}, expected a finite number", path, i / width, i % width, out.features[i]);
    }
  }
  return out;
}

Status run_forward(ForwardFlags& flags) {
  AERIE_ASSIGN(const auto standalone, flags.drafter.load());
  const Drafter& drafter = standalone->drafter();
  const DraftSpec& spec = drafter.spec();
  AERIE_ASSIGN(const ForwardInput input, read_input(flags.input, spec));

  const size_t rows = input.token_ids.size(), vocab = static_cast<size_t>(spec.draft_vocab);
  std::vector<std::vector<float>> logits(static_cast<size_t>(flags.unroll.steps), std::vector<float>(rows * vocab));
  const auto keep = [&](int step, int first, int count, const float* from) {
    std::copy_n(from, static_cast<size_t>(count) * vocab, logits[static_cast<size_t>(step)].data() + static_cast<size_t>(first) * vocab);
  };
  AERIE_TRY(unroll_logits(drafter, standalone->ops(), input.features, input.token_ids, flags.unroll, keep));
  std::vector<TensorView> tensors;
  for (size_t s = 0; s < logits.size(); ++s) {
    TensorView& view = tensors.emplace_back();
    view.name = fmt::format("logits_{}", s);
    view.type = DType::kF32;
    view.shape = {rows, vocab};
    view.data = {reinterpret_cast<const uint8_t*>(logits[s].data()), logits[s].size() * sizeof(float)};
  }
  return write_safetensors(flags.output, tensors);
}

}  // namespace

void add_forward(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("forward", "compute a drafter's logits for stored features, step by step");
  auto flags = std::make_shared<ForwardFlags>();
  flags->drafter.add_to(*command);
  command
      ->add_option("--input", flags->input, "safetensors: features [L, k*Ht], and token_ids [L], each paired with the feature of its row")
      ->required();
  command->add_option("--output", flags->output, "safetensors to write: logits_0 .. [L, Vd]; step s reads token_ids[i+s], 0 past the end")
      ->required();
  command->add_option("--steps", flags->unroll.steps, "draft steps")->check(CLI::Range(1, kMaxUnrollSteps))->capture_default_str();
  command->add_option("--first-position", flags->unroll.first_position, "position of row 0: speculators' trainer counts from 1")
      ->check(CLI::Range(0, 1))
      ->capture_default_str();
  command->callback([flags, &work] { work = [flags] { return run_forward(*flags); }; });
}

}  // namespace aerie::cli
