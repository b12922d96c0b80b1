#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace aerie {

void init_logging(bool verbose) {
  auto logger = spdlog::stderr_color_mt("aerie");
  logger->set_pattern("%^%l%$: %v");
  logger->set_level(verbose ? spdlog::level::debug : spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace aerie
