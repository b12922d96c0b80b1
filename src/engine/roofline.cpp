#include "engine/roofline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>

#include "base/page_memory.h"

namespace aerie {
namespace {

constexpr size_t kPiece = size_t{1} << 18;
constexpr size_t kFar = size_t{256} << 20;

double best_seconds(int repetitions, const std::function<void()>& work) {
  double best = 0;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (i == 0 || seconds < best) best = seconds;
  }
  return best;
}

double read_rate(Runtime& runtime, size_t bytes, int repetitions) {
  bytes = std::max(kPiece, bytes / kPiece * kPiece);
  const PageMemory memory(bytes);
  if (memory.empty()) return 0;
  std::memset(memory.data(), 0, bytes);  // untouched pages would all be one page of zeros
  const kernels::Isa isa = runtime.target().kernels().isa;
  std::atomic<uint64_t> sink{0};
  const double seconds = best_seconds(repetitions + 1, [&] {
    runtime.pool().parallel_for(bytes / kPiece, 1, [&](size_t begin, size_t end) {
      for (size_t piece = begin; piece < end; ++piece) sink ^= kernels::read_all(isa, memory.data() + piece * kPiece, kPiece);
    });
  });
  return static_cast<double>(bytes) / seconds / 1e9;
}

double unit_rate(Runtime& runtime, kernels::Unit unit, int repetitions) {
  constexpr int64_t kRounds = 200'000;  // some hundred microseconds
  const kernels::Isa isa = runtime.target().kernels().isa;
  const size_t pieces = static_cast<size_t>(runtime.pool().size()) * 8;
  std::atomic<uint64_t> operations{0};
  const double seconds = best_seconds(repetitions + 1, [&] {
    operations = 0;
    runtime.pool().parallel_for(pieces, 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) operations += static_cast<uint64_t>(kernels::run_unit(isa, unit, kRounds));
    });
  });
  return static_cast<double>(operations.load()) / seconds / 1e9;
}

}  // namespace

Ceilings measure_ceilings(Runtime& runtime, int repetitions) {
  Ceilings out;
  out.read_gb_s = read_rate(runtime, runtime.target().weight_bytes(), 4 * repetitions);
  out.far_read_gb_s = read_rate(runtime, kFar, repetitions);
  // Tiles come last in units_of(): they lower the clock of what follows.
  for (const kernels::Unit unit : kernels::units_of(runtime.target().kernels().isa))
    out.gop_s[unit] = unit_rate(runtime, unit, repetitions);
  return out;
}

double roofline_seconds(Runtime& runtime, const Ceilings& ceilings, const ForwardShape& shape, double share) {
  if (ceilings.gop_s.empty()) return 0;
  const Target& target = runtime.target();
  const TargetConfig& c = target.config();
  const double rows = shape.rows, head = static_cast<double>(c.vocab) * c.hidden,
               blocks = static_cast<double>(target.weight_elements()) - head;
  const double products = 2 * (rows * blocks + shape.logit_rows * head);
  // Each row sees the rows of its own sequence before it, half of them on average.
  const double seen = shape.depth + 0.5 * (rows / shape.sequences);
  double float_operations = rows * 4.0 * c.heads * c.head_dim * c.blocks * seen;
  double bytes = static_cast<double>(target.weight_bytes());
  bytes += static_cast<double>(shape.sequences) * shape.depth * c.blocks * 2.0 * c.kv_heads * c.head_dim *
           static_cast<double>(kernels::kv_element_bytes(target.kv_type()));

  const bool quantized = static_cast<double>(target.weight_bytes()) < 1.5 * static_cast<double>(target.weight_elements());
  double unit_seconds = 0;
  if (quantized) {
    unit_seconds += 2 * products / (share * 1e9 * ceilings.gop_s.at(kernels::int8_unit(target.kernels().isa, shape.rows)));
  } else {
    float_operations += products;
  }
  unit_seconds += float_operations / (share * 1e9 * ceilings.gop_s.at(kernels::Unit::kFloat32));
  return std::max(bytes / (1e9 * ceilings.read_gb_s), unit_seconds);
}

}  // namespace aerie
