// Reads a JSON object of a checkpoint's config key by key and knows which keys nobody asked for.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"

namespace aerie {

/// A getter returns nothing where the key is absent or null. A value of another type or range makes status() an error, the first
/// of which is kept; so a reader asks for everything and checks status() once. Borrows the object.
class ConfigReader {
 public:
  /// `where` is put before a key in errors: "" or "transformer_layer_config."; `file` before that.
  ConfigReader(const nlohmann::json& object, std::string where, std::string file = "config.json");

  std::optional<int> integer(const std::string& key, int min, int max);
  std::optional<double> number(const std::string& key);  // finite
  std::optional<bool> boolean(const std::string& key);
  std::optional<std::string> text(const std::string& key);
  std::optional<std::vector<int>> integers(const std::string& key, int min, int max);
  std::optional<std::vector<std::string>> texts(const std::string& key);
  /// Null where absent.
  const nlohmann::json* object(const std::string& key);

  /// Keys that cannot change the forward; their values are not looked at.
  void ignore(std::initializer_list<const char*> keys);
  /// The error of a key that must be there but is not; `hint` says what to do.
  Status missing(const std::string& key, const std::string& hint = "") const;
  std::string name(const std::string& key) const { return where_ + key; }

  /// The first error of a getter.
  const Status& status() const { return status_; }
  /// status(), or the error that names a key which was neither asked for nor ignored.
  Status finish() const;

 private:
  const nlohmann::json* value(const std::string& key);
  void fail(const std::string& key, const nlohmann::json& found, const std::string& expected);

  const nlohmann::json& object_;
  std::string where_, file_;
  std::set<std::string> known_;
  Status status_;
};

}  // namespace aerie
