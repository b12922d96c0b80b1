#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file_io.h"
#include "formats/json_text.h"
#include "formats/printable.h"
#include "formats/traces.h"

namespace aerie {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr int kLargestSize = 1 << 24;  // of hidden widths and vocabularies: far above any model, far below overflow

bool is_sha256(const std::string& text) { return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos; }

OrderedJson source_json(const TraceManifest& manifest) {
  OrderedJson slot_names = OrderedJson::array();
  for (const int tap : manifest.taps) slot_names.push_back(boundary_name(tap));
  slot_names.push_back(boundary_name(manifest.target.blocks));
  return {{"target",
           {{"sha256", manifest.target.sha256},
            {"hidden", manifest.target.hidden},
            {"vocab", manifest.target.vocab},
            {"blocks", manifest.target.blocks},
            {"eps", manifest.target.eps}}},
          {"taps", manifest.taps},
          {"slot_names", slot_names},
          {"template_sha256", manifest.template_sha256},
          {"precision", manifest.precision}};
}

// Text of a manifest may come from anywhere; what is no UTF-8 is replaced instead of thrown at.
std::string dump(const OrderedJson& json, int indent) { return json.dump(indent, ' ', false, OrderedJson::error_handler_t::replace); }

// Reads one object's keys; errors name the key with its path.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  Expected<const Json*> get(const char* key, Json::value_t expected) const {
    const std::string name = where_ + key;
    if (!object_.is_object()) return corrupt("{}: expected an object around it", name);
    const auto at = object_.find(key);
    if (at == object_.end()) return corrupt("key {} is missing", name);
    const bool number = expected == Json::value_t::number_float;
    if (number ? !at->is_number() : at->type() != expected) {
      return corrupt("key {} should be {} but is {}", name, number ? "number" : Json(expected).type_name(), at->type_name());
    }
    return &*at;
  }

  Status read(const char* key, std::string& out) const {
    AERIE_ASSIGN(const Json* value, get(key, Json::value_t::string));
    out = value->get_ref<const std::string&>();
    return Status();
  }

  Status read(const char* key, int& out) const {
    AERIE_ASSIGN(const Json* value, get(key, Json::value_t::number_unsigned));
    return to_int(*value, where_ + key, out);
  }

  static Status to_int(const Json& value, const std::string& name, int& out) {
    const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int>::max());
    if (!fits) return corrupt("key {} should hold an integer from 0 to {}", name, std::numeric_limits<int>::max());
    out = value.get<int>();
    return Status();
  }

 private:
  const Json& object_;
  std::string where_;
};

Status read_manifest(const Json& root, TraceManifest& manifest) {
  const Fields fields(root, "");
  int version = 0;
  AERIE_TRY(fields.read("format_version", version));
  if (version != TraceManifest::kFormatVersion) {
    return unsupported("format_version is {}; this program reads {}", version, TraceManifest::kFormatVersion);
  }
  AERIE_ASSIGN(const Json* target_json, fields.get("target", Json::value_t::object));
  const Fields target(*target_json, "target.");
  AERIE_TRY(target.read("name", manifest.target.name));
  AERIE_TRY(target.read("sha256", manifest.target.sha256));
  AERIE_TRY(target.read("hidden", manifest.target.hidden));
  AERIE_TRY(target.read("vocab", manifest.target.vocab));
  AERIE_TRY(target.read("blocks", manifest.target.blocks));
  AERIE_ASSIGN(const Json* eps, target.get("eps", Json::value_t::number_float));
  manifest.target.eps = eps->get<double>();

  AERIE_ASSIGN(const Json* taps, fields.get("taps", Json::value_t::array));
  for (const Json& tap : *taps) AERIE_TRY(Fields::to_int(tap, "taps", manifest.taps.emplace_back()));
  AERIE_TRY(fields.read("template_sha256", manifest.template_sha256));
  AERIE_TRY(fields.read("precision", manifest.precision));
  AERIE_TRY(fields.read("aerie_version", manifest.aerie_version));
  AERIE_ASSIGN(const Json* generation, fields.get("generation", Json::value_t::object));
  for (const auto& [key, value] : generation->items()) {
    if (!value.is_string()) return corrupt("key generation.{} should be string but is {}", printable(key), value.type_name());
    manifest.generation[key] = value.get<std::string>();
  }
  const Status meaning = manifest.check();
  if (!meaning.ok()) return corrupt("{}", meaning.message());

  // The names are for people; a file edited by hand so that they say something else than the numbers is refused.
  AERIE_ASSIGN(const Json* names, fields.get("slot_names", Json::value_t::array));
  const OrderedJson expected = source_json(manifest)["slot_names"];
  if (names->dump(-1, ' ', false, Json::error_handler_t::replace) != dump(expected, -1)) {
    return corrupt("slot_names should be {}, as taps and target.blocks say", dump(expected, -1));
  }
  return Status();
}

template <class T>
Status same(const char* field, const T& mine, const T& theirs) {
  if (mine == theirs) return Status();
  return invalid_argument("{} differs: {} here, {} there; hidden states of different sources cannot be mixed", field, mine, theirs);
}

}  // namespace

std::optional<int> TraceManifest::slot_of(int boundary) const {
  const auto at = std::find(taps.begin(), taps.end(), boundary);
  if (at == taps.end() && boundary != target.blocks) return std::nullopt;
  return static_cast<int>(at - taps.begin());
}

std::string TraceManifest::sampled_at() const {
  const auto decoding = generation.find("decoding"), temperature = generation.find("temperature");
  if (decoding == generation.end() || decoding->second != "sampled" || temperature == generation.end()) return "";
  return temperature->second;
}

std::string TraceManifest::to_json() const {
  OrderedJson source = source_json(*this);
  OrderedJson root = {{"format_version", kFormatVersion}, {"target", {{"name", target.name}}}};
  root["target"].update(source["target"]);
  source.erase("target");
  root.update(source);
  root["aerie_version"] = aerie_version;
  root["generation"] = generation;
  return dump(root, 2) + "\n";
}

Expected<TraceManifest> TraceManifest::from_json(std::string_view text) {
  AERIE_ASSIGN(const Json root, parse_json(text, 8));
  TraceManifest manifest;
  AERIE_TRY(read_manifest(root, manifest));
  return manifest;
}

Status TraceManifest::check() const {
  const auto size = [](const char* field, int value) {
    if (value >= 1 && value <= kLargestSize) return Status();
    return invalid_argument("{} is {}; expected 1 to {}", field, value, kLargestSize);
  };
  AERIE_TRY(size("target.hidden", target.hidden));
  AERIE_TRY(size("target.vocab", target.vocab));
  AERIE_TRY(size("target.blocks", target.blocks));
  if (!(target.eps >= 0 && target.eps < 1)) return invalid_argument("target.eps is {}; expected 0 to 1", target.eps);
  if (!is_sha256(target.sha256)) return invalid_argument("target.sha256 is {}; expected 64 hex digits", printable(target.sha256));
  if (!is_sha256(template_sha256)) return invalid_argument("template_sha256 is {}; expected 64 hex digits", printable(template_sha256));
  if (taps.empty()) return invalid_argument("taps is empty; expected at least one boundary");
  for (const int tap : taps) {
    if (tap < 0 || tap > target.blocks) return invalid_argument("taps names boundary {}; expected 0 to {}", tap, target.blocks);
  }
  if (std::set<int>(taps.begin(), taps.end()).size() != taps.size()) {
    return invalid_argument("taps [{}] names a boundary twice", fmt::join(taps, ", "));
  }
  return Status();
}

Status TraceManifest::check_same_source(const TraceManifest& other) const {
  AERIE_TRY(same("target.sha256", target.sha256, other.target.sha256));
  AERIE_TRY(same("target.hidden", target.hidden, other.target.hidden));
  AERIE_TRY(same("target.vocab", target.vocab, other.target.vocab));
  AERIE_TRY(same("target.blocks", target.blocks, other.target.blocks));
  AERIE_TRY(same("target.eps", target.eps, other.target.eps));
  AERIE_TRY(same("taps", taps, other.taps));
  AERIE_TRY(same("template_sha256", template_sha256, other.template_sha256));
  return same("precision", precision, other.precision);
}

std::string TraceManifest::source_id() const {
  const std::string text = dump(source_json(*this), -1);
  return sha256_hex({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

}  // namespace aerie
