// Logging goes to stderr, so that stdout holds nothing but the program's answer.
#pragma once

#include <spdlog/spdlog.h>

namespace aerie {

/// Sends spdlog's default logger to stderr with a plain pattern. Called once by each program's main().
void init_logging(bool verbose);

}  // namespace aerie
