// Speed of the kernels on the shapes of SmolLM2-135M (hidden 576, feed-forward 1536, 9 heads and 3 kv heads of 64).
//
// Matrix products rotate over more than 100 MB of weights, so that every pass reads them from memory, as a token does. Reported:
// GB/s of weights, GOP/s (a multiplication and an addition are two), both over all threads. `--isa=NAME` and `--threads=N` come
// before the flags of Google Benchmark; without them the best unit and all CPUs are used.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace aerie::kernels {
namespace {

const Kernels* kernels = nullptr;
ThreadPool* pool = nullptr;

constexpr size_t kWorkingSet = size_t{110} << 20;

std::vector<float> random_floats(size_t count) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> result(count);
  for (float& v : result) v = normal(engine);
  return result;
}

/// Matrices of [rows, cols] whose bytes add up to the working set; kept until another kind is asked for. Quants are arbitrary
/// bytes, scales small finite halves.
const std::vector<PackedMatrix>& matrices(TileFormat format, int rows, int cols) {
  static std::vector<PackedMatrix> kept;
  if (!kept.empty() && kept[0].format() == format && kept[0].rows() == rows && kept[0].cols() == cols) return kept;
  std::mt19937 engine(2);
  kept.clear();
  for (size_t bytes = 0; bytes < kWorkingSet; bytes += kept.back().bytes()) {
    PackedMatrix& w = kept.emplace_back(format, rows, cols);
    if (kept.size() > 1) {
      std::memcpy(w.tile(0), kept[0].tile(0), w.bytes());
      continue;
    }
    auto* halves = reinterpret_cast<uint16_t*>(w.tile(0));
    // Exponent bits cleared of their top: no infinities or NaN in any of the formats.
    for (size_t i = 0; i < w.bytes() / 2; ++i) halves[i] = static_cast<uint16_t>(engine() & 0xbbff);
  }
  return kept;
}

struct Activations {
  std::vector<float> x;
  std::vector<QuantizedBlock> rows;

  Activations(int n, int k) : x(random_floats(static_cast<size_t>(n) * k)), rows(quantized_blocks(n, k)) {
    kernels->quantize_rows(x.data(), k, 0, n, k, rows.data());
  }
};

void matmul(benchmark::State& state, TileFormat format, int rows, int cols) {
  const int n = static_cast<int>(state.range(0));
  const std::vector<PackedMatrix>& weights = matrices(format, rows, cols);
  const Activations activations(n, cols);
  std::vector<float> y(static_cast<size_t>(n) * rows);
  const bool quantized = format == TileFormat::kQ4 || format == TileFormat::kQ8;
  for (auto _ : state) {
    for (const PackedMatrix& w : weights) {
      pool->parallel_for(w.tiles(), 1, [&](size_t begin, size_t end) {
        if (quantized) {
          kernels->matmul_quantized(w, activations.rows.data(), n, static_cast<int>(begin), static_cast<int>(end), y.data(), rows);
        } else {
          kernels->matmul_float(w, activations.x.data(), cols, n, static_cast<int>(begin), static_cast<int>(end), y.data(), rows);
        }
      });
    }
    benchmark::ClobberMemory();
  }
  const double matrices_done = static_cast<double>(state.iterations()) * static_cast<double>(weights.size());
  state.counters["GB/s"] = benchmark::Counter(matrices_done * static_cast<double>(weights[0].bytes()) * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GOP/s"] = benchmark::Counter(matrices_done * 2e-9 * rows * cols * n, benchmark::Counter::kIsRate);
}

void attention(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0)), length = static_cast<int>(state.range(1));
  constexpr int kKvHeads = 3, kGroup = 3, kHeadDim = 64, kLayers = 30;
  const size_t block_bytes = kv_block_elements(kKvHeads, kHeadDim) * sizeof(uint16_t);
  const int blocks = (length + kKvBlock - 1) / kKvBlock, chunks = (length + kAttentionChunk - 1) / kAttentionChunk;
  std::vector<uint16_t> memory(static_cast<size_t>(kLayers) * blocks * block_bytes / 2, uint16_t{0x2e66});
  std::vector<const void*> table(static_cast<size_t>(kLayers) * blocks);
  for (size_t b = 0; b < table.size(); ++b) table[b] = memory.data() + b * block_bytes / 2;
  const std::vector<float> q = random_floats(static_cast<size_t>(rows) * kKvHeads * kGroup * kHeadDim);
  const int n = rows * kGroup;
  std::vector<float> acc(static_cast<size_t>(kKvHeads) * chunks * n * kHeadDim), max(static_cast<size_t>(kKvHeads) * chunks * n),
      sum(max.size());
  std::vector<const float*> queries;
  std::vector<int> visible(n);
  for (int i = 0; i < n * kKvHeads; ++i) queries.push_back(q.data() + static_cast<size_t>(i) * kHeadDim);
  for (int i = 0; i < n; ++i) visible[i] = length - rows + i / kGroup + 1;
  for (auto _ : state) {
    for (int layer = 0; layer < kLayers; ++layer) {
      pool->parallel_for(static_cast<size_t>(kKvHeads) * chunks, 1, [&](size_t begin, size_t end) {
        for (size_t task = begin; task < end; ++task) {
          const int head = static_cast<int>(task) / chunks, chunk = static_cast<int>(task) % chunks;
          AttendChunk c;
          c.blocks = table.data() + static_cast<size_t>(layer) * blocks;
          c.kv_head = head;
          c.head_dim = kHeadDim;
          c.begin = chunk * kAttentionChunk;
          c.end = std::min(length, c.begin + kAttentionChunk);
          c.n = n;
          c.q = queries.data() + static_cast<size_t>(head) * n;
          c.visible = visible.data();
          c.acc = acc.data() + task * n * kHeadDim;
          c.max = max.data() + task * n;
          c.sum = sum.data() + task * n;
          kernels->attend_chunk(c);
        }
      });
    }
    benchmark::ClobberMemory();
  }
  const double layers = static_cast<double>(state.iterations()) * kLayers;
  state.counters["GB/s"] = benchmark::Counter(layers * blocks * static_cast<double>(block_bytes) * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GOP/s"] = benchmark::Counter(layers * 4e-9 * n * kKvHeads * kHeadDim * length, benchmark::Counter::kIsRate);
}

/// The small kernels, on one thread: time of one call over one row.
template <class Call>
void small(benchmark::State& state, int width, Call call) {
  std::vector<float> a = random_floats(width), b = random_floats(width), y(width);
  for (auto _ : state) {
    call(a.data(), b.data(), y.data());
    benchmark::ClobberMemory();
  }
  state.counters["G/s"] = benchmark::Counter(static_cast<double>(state.iterations()) * width * 1e-9, benchmark::Counter::kIsRate);
}

void empty_loop(benchmark::State& state) {
  for (auto _ : state) pool->parallel_for(64, 1, [](size_t, size_t) {});
}

/// What this machine gives a plain read of the same working set: the ceiling of every product with few rows.
void read_ceiling(benchmark::State& state) {
  const std::vector<PackedMatrix>& memory = matrices(TileFormat::kF32, 1536, 576);
  std::vector<uint64_t> sums(static_cast<size_t>(memory[0].tiles()) * 8);
  for (auto _ : state) {
    for (const PackedMatrix& w : memory) {
      pool->parallel_for(w.tiles(), 1, [&](size_t begin, size_t end) {
        uint64_t sum[8] = {};
        for (size_t t = begin; t < end; ++t) {
          const auto* words = reinterpret_cast<const uint64_t*>(w.tile(static_cast<int>(t)));
          for (size_t i = 0; i < static_cast<size_t>(w.cols()) * 8; i += 8) {
            for (size_t j = 0; j < 8; ++j) sum[j] ^= words[i + j];
          }
        }
        for (size_t j = 0; j < 8; ++j) sums[begin * 8 + j] = sum[j];
      });
    }
    benchmark::DoNotOptimize(sums.data());
  }
  const double done = static_cast<double>(state.iterations()) * static_cast<double>(memory.size());
  state.counters["GB/s"] = benchmark::Counter(done * static_cast<double>(memory[0].bytes()) * 1e-9, benchmark::Counter::kIsRate);
}

void register_all() {
  benchmark::RegisterBenchmark("read_ceiling", read_ceiling)->UseRealTime()->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("empty_parallel_loop", empty_loop)->UseRealTime()->Unit(benchmark::kMicrosecond);
  const struct {
    const char* name;
    TileFormat format;
  } formats[] = {{"q4", TileFormat::kQ4}, {"q8", TileFormat::kQ8}, {"bf16", TileFormat::kBf16}, {"f32", TileFormat::kF32}};
  const struct {
    const char* name;
    int rows, cols;
  } shapes[] = {{"1536x576", 1536, 576}, {"576x1536", 576, 1536}, {"576x576", 576, 576}};
  for (const auto& format : formats) {
    for (const auto& shape : shapes) {
      auto* b = benchmark::RegisterBenchmark((std::string(format.name) + "/" + shape.name).c_str(), matmul, format.format, shape.rows,
                                             shape.cols);
      b->UseRealTime()->Unit(benchmark::kMillisecond);
      for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 128, 512}) b->Arg(n);
    }
  }
  auto* a = benchmark::RegisterBenchmark("attention_30_layers", attention)->UseRealTime()->Unit(benchmark::kMillisecond);
  for (int length : {256, 1024, 4096}) {
    for (int rows : {1, 2, 4, 8, 16, 128}) a->Args({rows, length});
  }
  benchmark::RegisterBenchmark("quantize_rows/1536", [](benchmark::State& state) {
    Activations activations(1, 1536);
    small(state, 1536, [&](const float* x, const float*, float*) { kernels->quantize_rows(x, 1536, 0, 1, 1536, activations.rows.data()); });
  });
  benchmark::RegisterBenchmark("rms_norm/576", [](benchmark::State& state) {
    small(state, 576, [](const float* x, const float* w, float* y) { kernels->rms_norm(x, w, 1e-5f, 576, y); });
  });
  benchmark::RegisterBenchmark("silu_mul/1536", [](benchmark::State& state) {
    small(state, 1536, [](const float* gate, const float* up, float* y) { kernels->silu_mul(gate, up, 1536, y); });
  });
  benchmark::RegisterBenchmark("argmax/49152", [](benchmark::State& state) {
    small(state, 49152, [](const float* x, const float*, float* y) { y[0] = static_cast<float>(kernels->argmax(x, 49152)); });
  });
  benchmark::RegisterBenchmark("store_kv/3x64", [](benchmark::State& state) {
    std::vector<uint16_t> block(kv_block_elements(3, 64));
    small(state, 192, [&](const float* k, const float* v, float*) { store_kv(KvType::kF16, block.data(), 5, 3, 64, k, v); });
  });
}

}  // namespace
}  // namespace aerie::kernels

int main(int argc, char** argv) {
  using namespace aerie;
  int threads = default_thread_count();
  kernels::kernels = &kernels::best_kernels();
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--isa=", 6) == 0) {
      const Expected<kernels::Isa> isa = kernels::parse_isa(argv[i] + 6);
      const Expected<const kernels::Kernels*> table = isa.ok() ? kernels::kernels_for(*isa) : isa.status();
      if (!table.ok()) {
        std::fprintf(stderr, "%s\n", table.status().message().c_str());
        return 2;
      }
      kernels::kernels = *table;
    } else if (std::strncmp(argv[i], "--threads=", 10) == 0) {
      threads = std::max(1, std::atoi(argv[i] + 10));
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  ThreadPool pool(threads);
  kernels::pool = &pool;
  std::printf("kernels: %s, threads: %d\n", kernels::kernels->name, threads);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  kernels::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
