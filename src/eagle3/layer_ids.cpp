#include "eagle3/layer_ids.h"

#include <algorithm>
#include <charconv>

#include "eagle3/engines/target_family.h"
#include "formats/boundary.h"
#include "formats/printable.h"

namespace aerie {
namespace {

struct Program {
  std::string_view name;
  LayerIdRule rule;
  bool depends_on_target = false;
};

constexpr Program kPrograms[] = {
    {"reference", LayerIdRule::kBoundary},
    {"vllm", LayerIdRule::kBoundary},
    {"llama.cpp", LayerIdRule::kBoundary},
    {"speculators", LayerIdRule::kBoundary},
    {"atom", LayerIdRule::kBoundary},
    {"openvino", LayerIdRule::kShiftedDefault},
    {"sglang", LayerIdRule::kBlockOutput, true},
    {"specforge", LayerIdRule::kBlockOutput, true},
    {"tensorrt-llm", LayerIdRule::kBlockOutputAndFinal},
    {"modelopt", LayerIdRule::kBlockOutputAndFinal},
    {"angelslim", LayerIdRule::kBlockOutput},
    {"nemo", LayerIdRule::kBlockOutput},
};

std::vector<int> shifted(std::vector<int> ids) {
  for (int& id : ids) ++id;
  return ids;
}

}  // namespace

const char* layer_id_convention_name(LayerIdConvention convention) {
  return convention == LayerIdConvention::kBoundary ? "boundary" : "block-output";
}

Expected<LayerIdConvention> parse_layer_id_convention(std::string_view text) {
  for (const auto convention : {LayerIdConvention::kBoundary, LayerIdConvention::kBlockOutput}) {
    if (text == layer_id_convention_name(convention)) return convention;
  }
  return invalid_argument("the layer id convention is {}, expected boundary or block-output", printable(text));
}

Expected<LayerIdRule> layer_id_rule(std::string_view program, std::string_view target_architecture) {
  const auto it = std::find_if(std::begin(kPrograms), std::end(kPrograms), [&](const Program& p) { return p.name == program; });
  if (it == std::end(kPrograms)) return not_found("no rule for the layer ids of {} is known", printable(program));
  if (it->depends_on_target) return sglang_layer_ids(target_architecture);
  return it->rule;
}

Expected<std::vector<int>> to_boundaries(LayerIdRule rule, const std::vector<int>& ids, int blocks) {
  if (ids.empty()) return ids;
  const int highest = *std::max_element(ids.begin(), ids.end()), lowest = *std::min_element(ids.begin(), ids.end());
  if (lowest < -1) return invalid_argument("the layer id {} has no meaning, expected -1 or more", lowest);
  std::vector<int> out;
  switch (rule) {
    case LayerIdRule::kBoundary: out = ids; break;
    case LayerIdRule::kBlockOutput:
    case LayerIdRule::kShiftedDefault: out = shifted(ids); break;
    case LayerIdRule::kFirstOne: out = ids.front() == 1 ? shifted(ids) : ids; break;
    case LayerIdRule::kLastBlock:
      if (blocks == 0) return invalid_argument("how these layer ids are read depends on the target's number of blocks, which is not known");
      out = highest == blocks ? ids : shifted(ids);
      break;
    case LayerIdRule::kBlockOutputAndFinal: {
      for (const int id : ids) {
        if (id != -1) out.push_back(id + 1);
      }
      std::sort(out.begin(), out.end());
      if (lowest == -1) out.push_back(kFinalNormed);
      return out;
    }
  }
  if (*std::min_element(out.begin(), out.end()) < 0) {
    return invalid_argument("the layer id -1 has no meaning where ids are boundaries, expected 0 (the embedding) or more");
  }
  return out;
}

Expected<LayerIds> to_layer_ids(LayerIdRule rule, const std::vector<int>& taps, int blocks) {
  LayerIds as_boundaries = {taps, LayerIdConvention::kBoundary}, as_outputs = {taps, LayerIdConvention::kBlockOutput};
  for (int& id : as_outputs.ids) id = id == kFinalNormed ? -1 : id - 1;
  Status unknown;
  for (LayerIds* candidate : {&as_outputs, &as_boundaries}) {
    const auto read = to_boundaries(rule, candidate->ids, blocks);
    if (read.ok() && *read == taps) return *candidate;
    if (rule == LayerIdRule::kLastBlock && blocks == 0) unknown = read.status();
  }
  AERIE_TRY(unknown);
  return unsupported("no list of layer ids is read as the boundaries {}", fmt::join(taps, ","));
}

std::vector<int> default_taps(LayerIdRule rule, int blocks) {
  const std::vector<int> taps = {2, blocks / 2, blocks - 3};
  return rule == LayerIdRule::kShiftedDefault ? shifted(taps) : taps;
}

LayerIdGuess guess_convention(const std::vector<int>& ids, int blocks) {
  using enum LayerIdConvention;
  using Strength = LayerIdGuess::Strength;
  if (ids.empty()) return {};
  if (std::find(ids.begin(), ids.end(), -1) != ids.end()) return {kBlockOutput, Strength::kCertain, "-1 is no boundary"};
  const int highest = *std::max_element(ids.begin(), ids.end());
  if (blocks > 0 && highest == blocks) {
    return {kBoundary, Strength::kCertain, fmt::format("id {} would lie beyond the target's {} blocks otherwise", highest, blocks)};
  }
  if (ids.size() == 3) {
    // Where N is not known, the last id says what it would have to be.
    for (const auto convention : {kBoundary, kBlockOutput}) {
      const int before = convention == kBlockOutput ? 1 : 0;
      const int n = blocks > 0 ? blocks : ids[2] + before + 3;
      if (ids == std::vector<int>{2 - before, n / 2 - before, n - 3 - before}) {
        return {convention, Strength::kCertain, fmt::format("exactly the default of that convention for a target of {} blocks", n)};
      }
    }
  }
  if (ids.front() == 1) return {kBlockOutput, Strength::kLikely, "the first id is 1, as with the usual first tap, boundary 2"};
  if (ids.front() == 2) return {kBoundary, Strength::kLikely, "the first id is 2, the usual first tap"};
  return {};
}

Expected<std::vector<int>> parse_taps(std::string_view text) {
  std::vector<int> out;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    int value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (item == "embed") {
      out.push_back(0);
    } else if (item == "final") {
      out.push_back(kFinalNormed);
    } else if (error == std::errc() && end == item.data() + item.size() && value >= 0 && value <= kMaxTap) {
      out.push_back(value);
    } else {
      return invalid_argument("a tap is {}, expected a boundary (0 or more), embed, or final, separated by commas", printable(item));
    }
    if (comma == std::string_view::npos) return out;
    text = text.substr(comma + 1);
  }
}

}  // namespace aerie
