#include "eagle3/config_reader.h"

#include <cmath>

#include "formats/printable.h"

namespace aerie {

using Json = nlohmann::json;

ConfigReader::ConfigReader(const Json& object, std::string where, std::string file)
    : object_(object), where_(std::move(where)), file_(std::move(file)) {}

const Json* ConfigReader::value(const std::string& key) {
  known_.insert(key);
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigReader::fail(const std::string& key, const Json& found, const std::string& expected) {
  if (!status_.ok()) return;
  // Replacement of broken UTF-8, so that no value can make dump() throw.
  status_ = corrupt("{}: {} is {}, expected {}", file_, name(key), printable(found.dump(-1, ' ', true, Json::error_handler_t::replace)),
                    expected);
}

std::optional<int> ConfigReader::integer(const std::string& key, int min, int max) {
  const Json* found = value(key);
  if (found == nullptr) return std::nullopt;
  const bool fits = found->is_number_integer() && (!found->is_number_unsigned() || found->get<uint64_t>() <= INT32_MAX) &&
                    found->get<int64_t>() >= min && found->get<int64_t>() <= max;
  if (fits) return found->get<int>();
  fail(key, *found, fmt::format("an integer from {} to {}", min, max));
  return std::nullopt;
}

std::optional<double> ConfigReader::number(const std::string& key) {
  const Json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (found->is_number() && std::isfinite(found->get<double>())) return found->get<double>();
  fail(key, *found, "a number");
  return std::nullopt;
}

std::optional<bool> ConfigReader::boolean(const std::string& key) {
  const Json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (found->is_boolean()) return found->get<bool>();
  fail(key, *found, "true or false");
  return std::nullopt;
}

std::optional<std::string> ConfigReader::text(const std::string& key) {
  const Json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  fail(key, *found, "a string");
  return std::nullopt;
}

std::optional<std::vector<int>> ConfigReader::integers(const std::string& key, int min, int max) {
  const Json* found = value(key);
  if (found == nullptr) return std::nullopt;
  std::vector<int> out;
  bool fits = found->is_array();
  for (size_t i = 0; fits && i < found->size(); ++i) {
    const Json& item = (*found)[i];
    fits = item.is_number_integer() && (!item.is_number_unsigned() || item.get<uint64_t>() <= INT32_MAX) && item.get<int64_t>() >= min &&
           item.get<int64_t>() <= max;
    if (fits) out.push_back(item.get<int>());
  }
  if (fits) return out;
  fail(key, *found, fmt::format("a list of integers from {} to {}", min, max));
  return std::nullopt;
}

std::optional<std::vector<std::string>> ConfigReader::texts(const std::string& key) {
  const Json* found = value(key);
  if (found == nullptr) return std::nullopt;
  std::vector<std::string> out;
  bool fits = found->is_array();
  for (size_t i = 0; fits && i < found->size(); ++i) {
    fits = (*found)[i].is_string();
    if (fits) out.push_back((*found)[i].get<std::string>());
  }
  if (fits) return out;
  fail(key, *found, "a list of strings");
  return std::nullopt;
}

const Json* ConfigReader::object(const std::string& key) {
  const Json* found = value(key);
  if (found == nullptr || found->is_object()) return found;
  fail(key, *found, "an object");
  return nullptr;
}

void ConfigReader::ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }

Status ConfigReader::missing(const std::string& key, const std::string& hint) const {
  return not_found("{}: {} is missing{}{}", file_, name(key), hint.empty() ? "" : ": ", hint);
}

Status ConfigReader::finish() const {
  AERIE_TRY(status_);
  for (const auto& [key, unused] : object_.items()) {
    if (known_.count(key) == 0) {
      return unsupported("{}: the key {} is not known and might change the forward; remove it if it does not", file_,
                         printable(where_ + key));
    }
  }
  return {};
}

}  // namespace aerie
