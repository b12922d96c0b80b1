// aerie inspect: what a drafter or a target is, and where each of its properties was read.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "command.h"
#include "eagle3/checkpoint.h"
#include "eagle3/dialects/vocab_map.h"
#include "eagle3/spec_fields.h"
#include "inspect_served.h"
#include "models/registry.h"

namespace aerie::cli {
namespace {

struct InspectFlags {
  std::string path, target;
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

Status check_target(const GgufFile& file, const DraftSpec& spec) {
  AERIE_ASSIGN(const std::string architecture, file.get_string("general.architecture"));
  AERIE_ASSIGN(const TargetConfig target, read_target_config(file, architecture));
  return check_fits_target(spec, target.hidden, target.vocab, target.blocks);
}

void print_finding(const Finding& finding) {
  std::printf("%-8s %s: %s%s%s\n", severity_name(finding.severity), finding.code.c_str(), finding.text.c_str(),
              finding.fix.empty() ? "" : "\n         -> ", finding.fix.c_str());
}

Status inspect_drafter(const InspectFlags& flags, const std::string& path) {
  std::optional<GgufFile> target;
  if (!flags.target.empty()) {
    AERIE_ASSIGN(const std::string target_path, resolve_target(flags.target));
    AERIE_ASSIGN(target, GgufFile::open(target_path));
  }
  AERIE_ASSIGN(OpenOptions known, flags.drafter.options());
  if (target) AERIE_TRY(add_target_facts(*target, known));
  AERIE_ASSIGN(DraftCheckpoint checkpoint, read_drafter(path, known));
  const DraftSpec& spec = checkpoint.spec;
  if (target) AERIE_TRY(check_target(*target, spec));
  std::stable_sort(checkpoint.findings.begin(), checkpoint.findings.end(), [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  uint64_t parameters = 0, bytes = 0;
  nlohmann::json tensors = nlohmann::json::object(), findings = nlohmann::json::array();
  for (const auto& [name, tensor] : checkpoint.tensors) {
    parameters += tensor.element_count();
    bytes += tensor.data.size();
    tensors[name] = {{"shape", tensor.shape}, {"dtype", dtype_name(tensor.type)}};
  }
  for (const Finding& f : checkpoint.findings) {
    findings.push_back({{"severity", severity_name(f.severity)}, {"code", f.code}, {"text", f.text}, {"fix", f.fix}});
  }
  const std::vector<SpecField> fields = spec_fields(spec);
  if (flags.json) {
    nlohmann::json values = nlohmann::json::object();
    for (const SpecField& field : fields) values[field.name] = field.value;
    nlohmann::json provenance = nlohmann::json::object();
    for (const auto& [field, p] : spec.provenance) provenance[field] = {{"source", source_name(p.source)}, {"why", p.why}};
    const VocabMapShape map = vocab_map_shape(spec);
    print_json({{"kind", "drafter"}, {"dialect", spec.dialect}, {"path", path}, {"spec", values}, {"provenance", provenance},
                {"d2t", {{"identity", map.identity}, {"sorted", map.sorted}}}, {"findings", findings},
                {"tensors", tensors}, {"parameters", parameters}, {"bytes", bytes}, {"fits_target", !flags.target.empty()}});
    return {};
  }
  const auto dialect = spec.provenance.find("dialect");
  std::printf("EAGLE-3 drafter, %s dialect%s: %s\n%.2f M parameters, %.1f MB\n", spec.dialect.c_str(),
              dialect == spec.provenance.end() ? "" : fmt::format(" ({})", dialect->second.why).c_str(), path.c_str(),
              static_cast<double>(parameters) / 1e6, static_cast<double>(bytes) / 1e6);
  for (const Finding& finding : checkpoint.findings) print_finding(finding);
  for (const SpecField& field : fields) {
    const auto p = spec.provenance.find(field.name);
    std::printf("  %-22s %-16s %s\n", field.name.c_str(), field.text().c_str(),
                p == spec.provenance.end() ? "" : fmt::format("{}: {}", source_name(p->second.source), p->second.why).c_str());
  }
  std::printf("  %-22s %s\n", "d2t", describe_d2t(spec).c_str());
  for (const auto& [name, tensor] : checkpoint.tensors) std::printf("  %-28s %-4s %s\n", name.c_str(), dtype_name(tensor.type), tensor.shape_string().c_str());
  if (!flags.target.empty()) std::printf("fits the target %s\n", flags.target.c_str());
  return {};
}

/// Whether a GGUF file is a drafter rather than a target; a file that is neither is left to the target's reader to refuse.
bool is_gguf_drafter(const std::string& path) {
  const auto file = GgufFile::open(path);
  if (!file.ok()) return false;
  const auto architecture = file->get_string("general.architecture");
  return architecture.ok() && *architecture == "eagle3";
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
  const nlohmann::json fields = {{"architecture", c.architecture}, {"name", c.name}, {"blocks", c.blocks}, {"hidden", c.hidden},
                                 {"intermediate", c.intermediate}, {"heads", c.heads}, {"kv_heads", c.kv_heads}, {"head_dim", c.head_dim},
                                 {"vocab", c.vocab}, {"context", c.context}, {"rope_theta", c.rope_theta}, {"rms_eps", c.rms_eps},
                                 {"parameters", parameters}, {"bytes", file.file_bytes()}, {"tensor_types", types}};
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
  return std::filesystem::is_directory(path) || is_gguf_drafter(path) ? inspect_drafter(flags, path) : inspect_target(flags, path);
}

}  // namespace

void add_inspect(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("inspect", "say what a drafter (folder or GGUF file) or a target (GGUF file) is");
  auto flags = std::make_shared<InspectFlags>();
  command->add_option("path", flags->path, "folder or GGUF file of a drafter, GGUF file of a target, or the name of a known drafter")->required();
  command->add_option("-m,--model", flags->target, "the target: default taps are of its depth, and the drafter must fit it");
  flags->drafter.add_to(*command);
  command->add_flag("--json", flags->json, "print one JSON object");
  flags->served.add_to(*command);
  command->callback([flags, &work] { work = [flags] { return run_inspect(*flags); }; });
}

}  // namespace aerie::cli
