// Fills a DraftSpec and remembers where each value came from.
#pragma once

#include <optional>
#include <string>

#include "eagle3/checkpoint.h"
#include "eagle3/config_reader.h"

namespace aerie {

class SpecBuilder {
 public:
  explicit SpecBuilder(DraftCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  DraftSpec& spec() { return checkpoint_.spec; }

  /// `field` is what was read under `key`, or the fallback for the reason `why`.
  template <class T, class Value>
  void set(const char* field, T& out, const std::optional<Value>& read, const std::string& key, T fallback, const std::string& why,
           Source source = Source::kDefaulted) {
    out = read ? static_cast<T>(*read) : fallback;
    note(field, read ? Source::kRead : source, read ? key : why);
  }
  /// The integer under `key`, from 1 to `max`, which must be there.
  Status require(ConfigReader& config, const char* key, const char* field, int max, int& out) {
    const auto value = config.integer(key, 1, max);
    AERIE_TRY(config.status());
    if (!value) return config.missing(key);
    out = *value;
    note(field, Source::kRead, config.name(key));
    return {};
  }
  void note(const char* field, Source source, const std::string& why) { spec().provenance[field] = {source, why}; }

  void find(Severity severity, const std::string& code, const std::string& text, const std::string& fix = "") {
    checkpoint_.findings.push_back({severity, code, text, fix});
  }

 private:
  DraftCheckpoint& checkpoint_;
};

}  // namespace aerie
