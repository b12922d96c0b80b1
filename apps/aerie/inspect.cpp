// aerie inspect: what a drafter or a target is, and where each of its properties was read.
#include <cstdio>
#include <optional>
#include <set>

#include "command.h"
#include "eagle3/checkpoint.h"
#include "eagle3/compare.h"
#include "eagle3/dialects/recognise.h"
#include "eagle3/dialects/vocab_map.h"
#include "eagle3/finding_text.h"
#include "eagle3/spec_fields.h"
#include "eagle3/target_fit.h"
#include "eagle3/token_frequencies.h"
#include "inspect_served.h"
#include "models/registry.h"

namespace aerie::cli {
namespace {

struct InspectFlags {
  std::string path, target, source, token_frequencies;
  bool json = false;
  ServedFlags served;
  DrafterFlags drafter;
};

const char* source_name(Source source) {
  switch (source) {
    case Source::kRead: return "read";
    case Source::kInferred: return "inferred";
    case Source::kDefaulted: return "defaulted";
  }
  return "";
}

/// How d2t looks, in words.
std::string describe_d2t(const DraftSpec& spec) {
  const VocabMapShape shape = vocab_map_shape(spec);
  if (shape.identity) return spec.draft_vocab == spec.vocab ? "none: both vocabularies are the same" : "the target's first tokens";
  return fmt::format("{} of {} target tokens, {}", spec.draft_vocab, spec.vocab, shape.sorted ? "ascending" : "in an order of its own");
}

struct DrafterReport {
  DraftCheckpoint checkpoint;
  std::vector<Finding> findings;  // ranked: of the files, beside the target, beside a text
  std::optional<bool> fits;       // the target, where one is given
  std::optional<VocabularyCoverage> coverage;
  uint64_t parameters = 0, bytes = 0;
};

Expected<DrafterReport> examine(const InspectFlags& flags, const std::string& path) {
  DrafterReport out;
  AERIE_ASSIGN(OpenOptions known, flags.drafter.options());
  std::optional<GgufFile> target;
  if (!flags.target.empty()) {
    AERIE_ASSIGN(const std::string target_path, resolve_target(flags.target));
    AERIE_ASSIGN(target, GgufFile::open(target_path));
    AERIE_TRY(add_target_facts(*target, known));
  }
  AERIE_ASSIGN(out.checkpoint, read_drafter(path, known));
  const DraftSpec& spec = out.checkpoint.spec;
  out.findings = out.checkpoint.findings;
  const auto add = [&out](const std::vector<Finding>& more) { out.findings.insert(out.findings.end(), more.begin(), more.end()); };
  if (target) {
    AERIE_ASSIGN(const TargetFacts facts, target_facts(*target));
    AERIE_ASSIGN(const std::vector<Finding> beside, target_findings(out.checkpoint, facts));
    out.fits = check_fits_target(spec, facts.hidden, facts.vocab, facts.blocks).ok();
    add(beside);
  }
  if (!flags.source.empty()) {
    // The taps and ids that flags state are those of the drafter that is looked at.
    const OpenOptions of_source = {
        .taps = {}, .convention = {}, .target_blocks = known.target_blocks, .target_architecture = known.target_architecture};
    AERIE_ASSIGN(const DraftCheckpoint source, read_drafter(flags.source, of_source));
    AERIE_ASSIGN(const std::vector<Finding> differences, source_findings(out.checkpoint, source));
    add(differences);
  }
  if (!flags.token_frequencies.empty()) {
    AERIE_ASSIGN(const std::vector<double> frequencies, read_token_frequencies(flags.token_frequencies, spec.vocab));
    out.coverage = vocabulary_coverage(spec, frequencies);
    add(coverage_findings(spec, *out.coverage));
  }
  out.findings = ranked(std::move(out.findings));
  std::set<const uint8_t*> counted;  // a tied head is the embedding
  for (const auto& [name, tensor] : out.checkpoint.tensors) {
    if (!counted.insert(tensor.data.data()).second) continue;
    out.parameters += tensor.element_count();
    out.bytes += tensor.data.size();
  }
  return out;
}

nlohmann::json to_json(const DrafterReport& report, const std::string& path) {
  const DraftSpec& spec = report.checkpoint.spec;
  nlohmann::json values = nlohmann::json::object(), provenance = nlohmann::json::object(), tensors = nlohmann::json::object();
  for (const SpecField& field : spec_fields(spec)) values[field.name] = field.value;
  for (const auto& [field, p] : spec.provenance) provenance[field] = {{"source", source_name(p.source)}, {"why", p.why}};
  for (const auto& [name, tensor] : report.checkpoint.tensors) {
    tensors[name] = {{"shape", tensor.shape}, {"dtype", dtype_name(tensor.type)}};
  }
  const VocabMapShape map = vocab_map_shape(spec);
  nlohmann::json out = {{"kind", "drafter"},
                        {"dialect", spec.dialect},
                        {"path", path},
                        {"spec", values},
                        {"provenance", provenance},
                        {"d2t", {{"identity", map.identity}, {"sorted", map.sorted}}},
                        {"findings", findings_json(report.findings)},
                        {"tensors", tensors},
                        {"parameters", report.parameters},
                        {"bytes", report.bytes}};
  out["fits_target"] = report.fits ? nlohmann::json(*report.fits) : nlohmann::json();
  out["coverage"] = report.coverage ? nlohmann::json{{"share", report.coverage->share}, {"best", report.coverage->best}} : nlohmann::json();
  return out;
}

void print_report(const DrafterReport& report, const InspectFlags& flags, const std::string& path) {
  const DraftSpec& spec = report.checkpoint.spec;
  const auto dialect = spec.provenance.find("dialect");
  std::printf("EAGLE-3 drafter, %s dialect%s: %s\n%s parameters, %.1f MB\n", spec.dialect.c_str(),
              dialect == spec.provenance.end() ? "" : fmt::format(" ({})", dialect->second.why).c_str(), path.c_str(),
              (report.parameters < 1'000'000 ? std::to_string(report.parameters)
                                             : fmt::format("{:.2f} M", static_cast<double>(report.parameters) / 1e6))
                  .c_str(),
              static_cast<double>(report.bytes) / 1e6);
  if (report.fits.value_or(false)) std::printf("fits the target %s\n", flags.target.c_str());
  for (const Finding& finding : report.findings) std::printf("%s\n", finding_text(finding).c_str());
  for (const SpecField& field : spec_fields(spec)) {
    const auto p = spec.provenance.find(field.name);
    std::printf("  %-22s %-16s %s\n", field.name.c_str(), field.text().c_str(),
                p == spec.provenance.end() ? "" : fmt::format("{}: {}", source_name(p->second.source), p->second.why).c_str());
  }
  std::printf("  %-22s %s\n", "d2t", describe_d2t(spec).c_str());
  if (report.coverage) {
    std::printf("  %-22s %.2f %% of %s (at most %.2f %% with so many tokens)\n", "coverage", 100.0 * report.coverage->share,
                flags.token_frequencies.c_str(), 100.0 * report.coverage->best);
  }
  for (const auto& [name, tensor] : report.checkpoint.tensors) {
    std::printf("  %-34s %-4s %s\n", name.c_str(), dtype_name(tensor.type), tensor.shape_string().c_str());
  }
}

Status inspect_drafter(const InspectFlags& flags, const std::string& path) {
  AERIE_ASSIGN(const DrafterReport report, examine(flags, path));
  flags.json ? print_json(to_json(report, path)) : print_report(report, flags, path);
  return {};
}

Status inspect_target(const InspectFlags& flags, const std::string& path) {
  AERIE_ASSIGN(const GgufFile file, GgufFile::open(path));
  AERIE_ASSIGN(const std::string architecture, file.get_string("general.architecture"));
  AERIE_ASSIGN(const TargetConfig c, read_target_config(file, architecture));
  std::map<std::string, int> types;
  uint64_t parameters = 0;
  for (const TensorView& tensor : file.tensors()) {
    ++types[dtype_name(tensor.type)];
    parameters += tensor.element_count();
  }
  const nlohmann::json fields = {{"architecture", c.architecture},
                                 {"name", c.name},
                                 {"blocks", c.blocks},
                                 {"hidden", c.hidden},
                                 {"intermediate", c.intermediate},
                                 {"heads", c.heads},
                                 {"kv_heads", c.kv_heads},
                                 {"head_dim", c.head_dim},
                                 {"vocab", c.vocab},
                                 {"context", c.context},
                                 {"rope_theta", c.rope_theta},
                                 {"rms_eps", c.rms_eps},
                                 {"parameters", parameters},
                                 {"bytes", file.file_bytes()},
                                 {"tensor_types", types}};
  if (flags.json) {
    print_json({{"kind", "target"}, {"path", path}, {"config", fields}});
    return {};
  }
  std::printf("target: %s\n", path.c_str());
  for (const auto& [field, value] : fields.items()) std::printf("  %-16s %s\n", field.c_str(), value.dump().c_str());
  return {};
}

Status run_inspect(const InspectFlags& flags) {
  // A known name means its drafter here; the target has its own flag.
  AERIE_ASSIGN(const std::string path, resolve_drafter(flags.path));
  if (flags.served.given()) {
    AERIE_ASSIGN(const OpenOptions known, flags.drafter.options());
    return print_served(flags.served, path, flags.target, known, flags.json);
  }
  if (is_drafter_path(path)) return inspect_drafter(flags, path);
  for (const auto& [flag, value] : {std::pair("--token-frequencies", &flags.token_frequencies), {"--source", &flags.source}}) {
    if (!value->empty()) return invalid_argument("{}: {} is for a drafter, this is none", path, flag);
  }
  return inspect_target(flags, path);
}

}  // namespace

void add_inspect(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("inspect", "say what a drafter (folder or GGUF file) or a target (GGUF file) is");
  auto flags = std::make_shared<InspectFlags>();
  command->add_option("path", flags->path, "folder or GGUF file of a drafter, GGUF file of a target, or the name of a known drafter")
      ->required();
  command->add_option("-m,--model", flags->target, "the target: default taps are of its depth, and what does not fit it is said");
  flags->drafter.add_to(*command);
  command->add_flag("--json", flags->json, "print one JSON object");
  flags->served.add_to(*command);
  command->add_option("--source", flags->source, "the drafter that this one was converted from: fields and weights that differ are said")
      ->excludes("--served-by");
  command
      ->add_option(
          "--token-frequencies", flags->token_frequencies,
          "how often a text holds each token (a JSON object, lines ID COUNT, token_freq.pt, or a folder of traces): how much of it "
          "the draft vocabulary covers")
      ->excludes("--served-by");
  command->callback([flags, &work] { work = [flags] { return run_inspect(*flags); }; });
}

}  // namespace aerie::cli
