// One engine reading one drafter's files; not for others than as_served.cpp and its parts.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "eagle3/config_reader.h"
#include "eagle3/engines/as_served.h"
#include "eagle3/engines/engine_rules.h"

namespace aerie {

class Emulation {
 public:
  Emulation(const DrafterFiles& files, const EngineVersion& version, VllmRunner runner, const ServedTarget& target);
  ServedReading run();

 private:
  /// The config as the engine's classes see it: that of the speculators dialect is flattened.
  void flatten();
  void read_config();
  bool choose_class(const nlohmann::json& config);
  void read_shapes(ConfigReader& top);
  void read_vocabulary(ConfigReader& top);
  void read_norms(ConfigReader& top, ConfigReader& nested);
  void read_layers(ConfigReader& top, ConfigReader& nested);
  void read_window(ConfigReader& top);
  void read_rope();  // served_rope.cpp
  void read_taps(ConfigReader& top, ConfigReader& nested);
  void check_taps(const std::vector<int>& listed, bool by_default);
  bool read_flag(FlagPlace place, const char* key, ConfigReader& top, ConfigReader& nested);

  // Tensors (served_tensors.cpp).
  void account_tensors();
  /// The name that the engine looks for, or "" if it finds none in this one.
  std::string engine_name(const std::string& stored) const;
  std::set<std::string> needed_names() const;
  bool tolerated(const std::string& name) const;
  void check_missing(const std::set<std::string>& found);
  void check_unknown(const std::set<std::string>& dropped);
  void check_fc();
  void read_d2t();

  void misread_flag(const char* key) {
    misread(Severity::kError, "flag-ignored", fmt::format("{} is true and is not read by {}", key, out_.engine),
            "use a release or an engine that reads it");
  }

  bool mla() const { return class_ == DrafterClass::kMla; }
  bool stored(const std::string& name) const { return stored_.count(name) != 0; }
  void refuse(const char* code, std::string text, std::string fix = "") {
    out_.refusals.push_back({Severity::kError, code, std::move(text), std::move(fix)});
  }
  void misread(Severity severity, const char* code, std::string text, std::string fix = "") {
    out_.misreadings.push_back({severity, code, std::move(text), std::move(fix)});
  }

  const DrafterFiles& files_;
  const EngineVersion& version_;
  const ServedTarget& target_;
  const TargetFamily* family_;
  const EngineRules rules_;
  const char* engine_;  // "SGLang"
  int blocks_ = 0;      // N, 0: not known
  nlohmann::json config_;
  DrafterClass class_ = DrafterClass::kLlama;
  bool head_of_target_ = false, input_norm_too_ = false;
  int aux_ = 3;
  DraftSpec spec_;
  std::set<std::string> stored_;  // by the name that the engine looks for
  ServedReading out_;
};

}  // namespace aerie
