// Which instruction-set units this machine can run. Looked up once; thread-safe.
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <array>
#include <span>

#include "kernels/isa.h"

namespace aerie::kernels {
namespace {

constexpr std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvxVnni: return "avxvnni";
    case Isa::kAvx512: return "avx512";
    case Isa::kAmx: return "amx";
  }
  return "unknown";
}

#if defined(__x86_64__)

// Bits of XCR0: the operating system saves these registers when it switches threads. A CPU flag without its bit is a trap.
constexpr uint64_t kYmmState = 0x6, kZmmState = 0xe6, kTileState = 0x60000;

struct CpuId {
  uint32_t eax, ebx, ecx, edx;
};
CpuId cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuId out{leaf, 0, subleaf, 0};
  asm volatile("cpuid" : "+a"(out.eax), "=b"(out.ebx), "+c"(out.ecx), "=d"(out.edx));
  return out;
}

uint64_t enabled_register_state() {
  constexpr uint32_t kOsxsave = 1u << 27;
  if ((cpuid(1, 0).ecx & kOsxsave) == 0) return 0;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

/// Linux saves the large tile registers only for processes that have asked for them (Documentation/arch/x86/xstate.rst).
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

/// What `isa` needs and this machine lacks; empty if it can run.
std::string missing_for(Isa isa) {
  if (isa == Isa::kScalar) return "";
  __builtin_cpu_init();
  std::string missing;
  const auto need = [&](const char* name, bool present) {
    if (present) return;
    if (!missing.empty()) missing += ", ";
    missing += name;
  };
  // F16C has no name in __builtin_cpu_supports of the compilers we support.
  need("f16c", (cpuid(1, 0).ecx & 1u << 29) != 0);
  need("avx2", __builtin_cpu_supports("avx2"));
  need("fma", __builtin_cpu_supports("fma"));
  const uint64_t state = enabled_register_state();
  if (isa == Isa::kAvx2 || isa == Isa::kAvxVnni) {
    need("the operating system's support of 256-bit registers", (state & kYmmState) == kYmmState);
    if (isa == Isa::kAvxVnni) need("avxvnni", (cpuid(7, 1).eax & 1u << 4) != 0);  // its name is unknown to clang 14
    return missing;
  }
  need("avx512f", __builtin_cpu_supports("avx512f"));
  need("avx512bw", __builtin_cpu_supports("avx512bw"));
  need("avx512vl", __builtin_cpu_supports("avx512vl"));
  need("avx512dq", __builtin_cpu_supports("avx512dq"));
  need("avx512vnni", __builtin_cpu_supports("avx512vnni"));
  need("the operating system's support of 512-bit registers", (state & kZmmState) == kZmmState);
  if (isa == Isa::kAvx512) return missing;
  const CpuId features = cpuid(7, 0);
  need("amx-tile", (features.edx & 1u << 24) != 0);
  need("amx-int8", (features.edx & 1u << 25) != 0);
  need("the operating system's support of AMX tiles", (state & kTileState) == kTileState && may_use_tiles());
  return missing;
}

const Kernels& table_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return avx2_table();
    case Isa::kAvxVnni: return avx_vnni_table();
    case Isa::kAvx512: return avx512_table();
    case Isa::kAmx: return amx_table();
    case Isa::kScalar: break;
  }
  return scalar_table();
}

#else

std::string missing_for(Isa isa) { return isa == Isa::kScalar ? "" : "an x86-64 CPU"; }
const Kernels& table_of(Isa) { return scalar_table(); }

#endif

constexpr std::array kSlowestFirst = {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx};

}  // namespace

Expected<Isa> parse_isa(std::string_view name) {
  for (Isa isa : kSlowestFirst) {
    if (name == isa_name(isa)) return isa;
  }
  return invalid_argument("expected an instruction set (scalar, avx2, avxvnni, avx512 or amx), found '{}'", name);
}

std::vector<Isa> available_isas() {
  std::vector<Isa> result;
  for (Isa isa : kSlowestFirst) {
    if (missing_for(isa).empty()) result.push_back(isa);
  }
  return result;
}

Expected<const Kernels*> kernels_for(Isa isa) {
  const std::string missing = missing_for(isa);
  if (missing.empty()) return &table_of(isa);
  std::string others;
  for (Isa other : available_isas()) others += (others.empty() ? "" : " or ") + std::string(isa_name(other));
  return unsupported("the {} kernels need {}, which this machine lacks; choose {}", isa_name(isa), missing, others);
}

const Kernels& best_kernels() {
  static const Kernels& best = table_of(available_isas().back());
  return best;
}

}  // namespace aerie::kernels
