#include "inspect_served.h"

#include <cstdio>

#include "command.h"
#include "eagle3/checkpoint.h"
#include "eagle3/engines/as_served.h"
#include "eagle3/finding_text.h"
#include "eagle3/spec_fields.h"

namespace aerie::cli {
namespace {

nlohmann::json to_json(const ServedReading& reading) {
  nlohmann::json differences = nlohmann::json::array(), spec;
  for (const ServedDifference& d : reading.differences) {
    differences.push_back({{"field", d.field}, {"trained", d.trained}, {"served", d.served}, {"reported_cost", d.cost}});
  }
  if (reading.spec) {
    spec = nlohmann::json::object();
    for (const SpecField& field : spec_fields(*reading.spec)) spec[field.name] = field.value;
  }
  return {{"engine", reading.engine},
          {"caveats", reading.caveats},
          {"refuses", reading.refuses()},
          {"refusals", findings_json(reading.refusals)},
          {"misreadings", findings_json(reading.misreadings)},
          {"unknown", reading.unknown},
          {"taps", reading.taps},
          {"spec", spec},
          {"differences", differences}};
}

void print_finding(const Finding& finding, const char* word) { std::printf("%s\n", finding_text(finding, "  ", word).c_str()); }

void print_reading(const ServedReading& reading, bool compared) {
  const bool clean = !reading.refuses() && reading.misreadings.empty() && reading.differences.empty() && reading.unknown.empty();
  const char* verdict = !reading.unknown.empty()       ? "not known"
                        : reading.refuses()            ? "refuses"
                        : !reading.differences.empty() ? "serves another forward"
                        : clean                        ? (compared ? "serves what was trained" : "serves it")
                                                       : "serves it, with remarks";
  std::printf("%s: %s\n", reading.engine.c_str(), verdict);
  if (!reading.unknown.empty()) std::printf("  %s\n", reading.unknown.c_str());
  for (const Finding& f : reading.refusals) print_finding(f, "refuses");
  if (!reading.taps.empty()) std::printf("  %-10s %s\n", "captures:", reading.taps.c_str());
  for (const ServedDifference& d : reading.differences) {
    std::printf("  %-10s %s: trained %s, served %s\n", "differs:", d.field.c_str(), d.trained.c_str(), d.served.c_str());
    if (!d.cost.empty()) std::printf("             reported cost: %s\n", d.cost.c_str());
  }
  for (const Finding& f : reading.misreadings) print_finding(f, f.severity == Severity::kNote ? "note" : "misreads");
  for (const std::string& caveat : reading.caveats) std::printf("  %-10s %s\n", "caveat:", caveat.c_str());
}

}  // namespace

void ServedFlags::add_to(CLI::App& app) {
  auto* by =
      app.add_option("--served-by", engine,
                     "what an engine would make of these files: vllm:0.33, sglang:0.5.23, llama.cpp, tensorrt-llm, openvino, or all");
  app.add_option("--target-arch", target_arch, "architecture of the target that it serves (LlamaForCausalLM, KimiK25)")->needs(by);
  app.add_option("--target-blocks", target_blocks, "number of the target's blocks, for layer ids that depend on it")
      ->needs(by)
      ->check(CLI::Range(6, 10000));
}

Status print_served(const ServedFlags& flags, const std::string& path, const std::string& target, OpenOptions known, bool json) {
  std::vector<EngineVersion> engines;
  if (flags.engine == "all") {
    engines = known_engines();
  } else {
    AERIE_ASSIGN(EngineVersion engine, parse_engine(flags.engine));
    engines.push_back(std::move(engine));
  }
  AERIE_ASSIGN(const RawCheckpoint raw, RawCheckpoint::open(path));
  const DrafterFiles files = drafter_files(raw);
  ServedTarget served{flags.target_arch, flags.target_blocks};
  if (!target.empty()) {
    AERIE_ASSIGN(const std::string target_path, resolve_target(target));
    AERIE_ASSIGN(const GgufFile file, GgufFile::open(target_path));
    AERIE_TRY(add_target_facts(file, known));
    if (served.architecture.empty()) served.architecture = known.target_architecture;
    if (served.blocks == 0) served.blocks = known.target_blocks;
  }
  const auto own = open_drafter(path, known);
  if (own.ok()) warn_of(own->findings);
  std::vector<ServedReading> readings;
  for (const EngineVersion& engine : engines) {
    for (ServedReading& reading : read_as_served(files, engine, served, own.ok() ? &own->spec : nullptr)) {
      readings.push_back(std::move(reading));
    }
  }
  if (json) {
    nlohmann::json out = nlohmann::json::array();
    for (const ServedReading& reading : readings) out.push_back(to_json(reading));
    print_json({{"kind", "served"},
                {"path", path},
                {"compared", own.ok()},
                {"compared_why_not", own.ok() ? "" : own.status().message()},
                {"served_by", out}});
    return {};
  }
  std::printf("%s, as other engines would serve it\n", path.c_str());
  if (!own.ok()) std::printf("not compared with a forward of its own: %s\n", own.status().message().c_str());
  for (const ServedReading& reading : readings) {
    std::printf("\n");
    print_reading(reading, own.ok());
  }
  return {};
}

}  // namespace aerie::cli
