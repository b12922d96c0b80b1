// aerie convert: a drafter in another dialect, proved equal before it is put in place.
#include <cstdio>
#include <filesystem>

#include "command.h"
#include "eagle3/convert.h"
#include "eagle3/target_fit.h"

namespace aerie::cli {
namespace {

struct ConvertFlags {
  std::string in, out, to, target;
  bool float32 = false;
  DrafterFlags drafter;
};

Status run_convert(const ConvertFlags& flags) {
  AERIE_ASSIGN(const DraftFormat format, parse_draft_format(flags.to));
  std::optional<GgufFile> target;
  ConvertOptions options;
  options.float32 = flags.float32;
  if (!flags.target.empty()) {
    AERIE_ASSIGN(const std::string path, resolve_target(flags.target));
    AERIE_ASSIGN(target, GgufFile::open(path));
    options.tokenizer = &*target;
    const auto name = target->get_string("general.name");
    options.target_name = name.ok() ? *name : std::filesystem::path(path).stem().string();
  }
  AERIE_ASSIGN(OpenOptions known, flags.drafter.options());
  if (target) AERIE_TRY(add_target_facts(*target, known));
  options.target = {known.target_architecture, known.target_blocks};
  AERIE_ASSIGN(const std::string in, resolve_drafter(flags.in));
  AERIE_ASSIGN(DraftCheckpoint checkpoint, open_drafter(in, known));
  warn_of(checkpoint.findings);
  if (target && format == DraftFormat::kSglang) {
    AERIE_ASSIGN(const TargetFacts facts, target_facts(*target));
    AERIE_ASSIGN(const bool dropped, drop_targets_embedding(checkpoint, facts));
    if (dropped) spdlog::warn("the drafter's embedding is the target's and is left out: SGLang takes the target's in any case");
  }
  AERIE_TRY(convert_drafter(checkpoint, flags.out, format, options));
  std::printf("%s: %s, read again and equal to %s\n", flags.out.c_str(), draft_format_name(format), in.c_str());
  return {};
}

}  // namespace

void add_convert(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("convert", "write a drafter in another dialect");
  auto flags = std::make_shared<ConvertFlags>();
  command->add_option("in", flags->in, "the drafter: a folder, a GGUF file, or a known name")->required();
  command->add_option("out", flags->out, "what to write, which must not exist: a folder, or for gguf a file NAME.gguf")->required();
  command->add_option("--to", flags->to, "speculators, specforge, sglang, modelopt, or gguf (llama.cpp's eagle3)")->required();
  command->add_option("-m,--model", flags->target,
                      "the target (GGUF): its tokenizer goes into a GGUF file, which llama.cpp needs; SGLang's layer ids depend on it");
  command->add_flag("--float32", flags->float32, "write weights as F32 rather than in the type they have");
  flags->drafter.add_to(*command);
  command->callback([flags, &work] { work = [flags] { return run_convert(*flags); }; });
}

}  // namespace aerie::cli
