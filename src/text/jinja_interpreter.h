// Runs a parsed chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja_ast.h"

namespace aerie::jinja {

/// What one rendering may use. A template over any of them is an error (kResource), never a hang.
struct Budget {
  int64_t steps = 10'000'000;             // evaluations, and work on long texts and lists in proportion
  size_t output_bytes = size_t{1} << 20;  // everything ever printed, also inside macros
  int depth = 250;                        // nested evaluations, macro calls included
};

using Variables = std::vector<std::pair<std::string, Value>>;

/// A compiled template. Immutable, thread-safe, movable.
class Template {
 public:
  static Expected<Template> compile(std::string_view source);

  /// `unix_time` is what strftime_now formats, as UTC. Errors name the template's line.
  Expected<Text> render(const Variables& variables, int64_t unix_time = 0, const Budget& budget = {}) const;

 private:
  explicit Template(Body body) : body_(std::make_shared<const Body>(std::move(body))) {}
  std::shared_ptr<const Body> body_;
};

}  // namespace aerie::jinja
