// libFuzzer's entry point for the target that AERIE_FUZZ_TARGET names.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fuzz/targets.h"

namespace {

const aerie::fuzz::Target& chosen() {
  for (const auto& target : aerie::fuzz::targets()) {
    if (std::strcmp(target.name, AERIE_FUZZ_TARGET) == 0) return target;
  }
  std::fprintf(stderr, "there is no target %s\n", AERIE_FUZZ_TARGET);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const aerie::fuzz::Target& target = chosen();
  // The first run also fills what is made once per process, such as tables.
  static const bool warm = [] { return aerie::fuzz::peak_bytes(target, {}) != UINT64_MAX; }();
  const uint64_t peak = aerie::fuzz::peak_bytes(target, {data, size});
  const uint64_t allowed = aerie::fuzz::allowed_bytes(target, {data, size});
  if (warm && peak <= allowed) return 0;
  std::fprintf(stderr, "%zu bytes of input took %llu bytes of memory; allowed are %llu\n", size, static_cast<unsigned long long>(peak),
               static_cast<unsigned long long>(allowed));
  std::abort();
}
