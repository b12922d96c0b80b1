// Attention over one chunk of a KV cache, for any vector width. Included inside the anonymous namespace of an instruction-set
// unit that defines Simd.
//
// Queries are taken in groups that share every load of a key or value. A score has one accumulator and adds over head_dim in
// order; a value has one and adds over positions in order, between the query's own limits: the group never enters a result.

// Scores of one query. The softmax of a query that starts inside the chunk stores whole vectors up to one vector beyond its end.
constexpr int kScoreStride = kAttentionChunk + 16;
constexpr int kMaxTailEnd = kAttentionChunk + 64;  // behind every position that a query may see, counted from the chunk's begin

/// The positions of a chunk, counted from its begin, that a query sees: [begin, end), empty where end is not beyond begin.
struct Limits {
  int begin, end;
};

/// Where the positions from `begin` on (counted from the chunk's) really are: place[i][j] is that of query i's ancestor j.
template <int G>
struct Tail {
  int begin;
  int place[G][64];
  int at(int query, int p) const { return p < begin ? p : place[query][p - begin]; }
};

inline Simd::F exp_vector(Simd::F x);

/// Scores of G queries against P vectors of positions; keys[v] points at dimension 0 of the v-th vector's positions. On the way it
/// reads ahead what the caller will need `ahead` bytes behind each key: a head's keys and values are too short a run for the
/// hardware to follow.
template <int G, int P, class Element>
inline void score_positions(const Element* const* keys, const Element* const* next, const float* const* q, int head_dim,
                            float (*scores)[kScoreStride]) {
  Simd::F acc[G][P];
#pragma GCC unroll 8
  for (int i = 0; i < G; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < P; ++v) acc[i][v] = Simd::zero();
  }
  for (int d = 0; d < head_dim; ++d) {
    Simd::F key[P];
#pragma GCC unroll 4
    for (int v = 0; v < P; ++v) {
      const size_t at = static_cast<size_t>(d) * kKvBlock;
      key[v] = Simd::load_kv(keys[v] + at);
      Simd::prefetch(keys[v] + static_cast<size_t>(head_dim) * kKvBlock + at);  // the values of the same positions
      Simd::prefetch(next[v] + at);
    }
#pragma GCC unroll 8
    for (int i = 0; i < G; ++i) {
      const Simd::F query = Simd::set1(q[i][d]);
#pragma GCC unroll 4
      for (int v = 0; v < P; ++v) acc[i][v] = Simd::fma(query, key[v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < G; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < P; ++v) Simd::store(scores[i] + v * Simd::kLanes, acc[i][v]);
  }
}

/// Replaces scores by exp(score - max) below `limit` and by 0 from there to the end of its vector.
inline void softmax_numerators(float* scores, int limit, float* max, float* sum) {
  const Simd::F lowest = Simd::set1(-__builtin_inff());
  Simd::F top = lowest;
  for (int p = 0; p < limit; p += Simd::kLanes) top = Simd::max(Simd::select_first(limit - p, Simd::load(scores + p), lowest), top);
  *max = Simd::reduce_max(top);
  const Simd::F subtract = Simd::set1(*max);
  Simd::F total = Simd::zero();
  for (int p = 0; p < limit; p += Simd::kLanes) {
    const Simd::F e = Simd::select_first(limit - p, exp_vector(Simd::sub(Simd::load(scores + p), subtract)), Simd::zero());
    Simd::store(scores + p, e);
    total = Simd::add(total, e);
  }
  *sum = Simd::reduce_add(total);
}

/// Weighted sums of D vectors of the values from dimension `dim` on. Only the last vector may be partial: `last` dimensions.
template <int G, int D, class Element>
inline void weigh_values(const AttendChunk& c, size_t values, int dim, int last, const float (*weights)[kScoreStride], const Limits* limits,
                         Limits common, const Tail<G>& tail, float* out) {
  const auto value = [&](int p, int v) __attribute__((always_inline)) {
    const Element* at = static_cast<const Element*>(c.blocks[(c.begin + p) / kKvBlock]) + values +
                        static_cast<size_t>(p % kKvBlock) * c.head_dim + dim + v * Simd::kLanes;
    return v == D - 1 && last < Simd::kLanes ? Simd::load_kv_n(at, last) : Simd::load_kv(at);
  };
  Simd::F acc[G][D];
#pragma GCC unroll 8
  for (int i = 0; i < G; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < D; ++v) acc[i][v] = Simd::zero();
  }
  // Where queries see different positions each goes alone: a zero weight would still let another row's NaN in.
  const auto alone = [&](int i, int from, int to) __attribute__((always_inline)) {
    for (int p = from; p < to; ++p) {
      const Simd::F weight = Simd::set1(weights[i][p]);
      const int place = tail.at(i, p);
#pragma GCC unroll 4
      for (int v = 0; v < D; ++v) acc[i][v] = Simd::fma(weight, value(place, v), acc[i][v]);
    }
  };
#pragma GCC unroll 8
  for (int i = 0; i < G; ++i) alone(i, limits[i].begin, limits[i].end < common.begin ? limits[i].end : common.begin);
  for (int p = common.begin; p < common.end; ++p) {
    Simd::F loaded[D];
#pragma GCC unroll 4
    for (int v = 0; v < D; ++v) loaded[v] = value(p, v);
#pragma GCC unroll 8
    for (int i = 0; i < G; ++i) {
      const Simd::F weight = Simd::set1(weights[i][p]);
#pragma GCC unroll 4
      for (int v = 0; v < D; ++v) acc[i][v] = Simd::fma(weight, loaded[v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < G; ++i) {
    alone(i, common.end, limits[i].end);
#pragma GCC unroll 4
    for (int v = 0; v < D; ++v) {
      float* target = out + static_cast<size_t>(i) * c.head_dim + dim + v * Simd::kLanes;
      if (v == D - 1 && last < Simd::kLanes) {
        Simd::store_n(target, acc[i][v], last);
      } else {
        Simd::store(target, acc[i][v]);
      }
    }
  }
}

/// Fills tail.place, and the scores of what the queries see behind the tail's begin, each at the position that it counts as.
template <int G, class Score>
inline void score_tail(const AttendChunk& c, int first, const Limits* limits, Tail<G>& tail, Score&& score, float (*scores)[kScoreStride]) {
  int least = kMaxTailEnd, end = 0;
  for (int i = 0; i < G; ++i) {
    uint64_t left = c.ancestors[first + i];
    for (int j = 0; left != 0; ++j, left &= left - 1) tail.place[i][j] = tail.begin + __builtin_ctzll(left);
    for (int p = limits[i].begin > tail.begin ? limits[i].begin : tail.begin; p < limits[i].end; ++p) {
      const int place = tail.at(i, p);
      least = place < least ? place : least;
      end = place >= end ? place + 1 : end;
    }
  }
  if (least >= end) return;
  alignas(64) float found[G][kScoreStride];
  score(least, end, found);
  const int base = least / Simd::kLanes * Simd::kLanes;
  for (int i = 0; i < G; ++i) {
    for (int p = limits[i].begin > tail.begin ? limits[i].begin : tail.begin; p < limits[i].end; ++p)
      scores[i][p] = found[i][tail.at(i, p) - base];
  }
}

template <int G, class Element>
[[gnu::noinline]] void attend_group(const AttendChunk& c, int first) {
  constexpr int kVectorsPerBlock = kKvBlock / Simd::kLanes;
  constexpr int kWide = G <= 3 && Simd::kLanes == 16 ? 4 : 2;  // enough chains to fill the FMA units, few enough to stay in registers
  const size_t keys = 2 * static_cast<size_t>(c.kv_head) * c.head_dim * kKvBlock;
  const size_t values = keys + static_cast<size_t>(c.head_dim) * kKvBlock;

  alignas(64) float scores[G][kScoreStride];
  Tail<G> tail;
  tail.begin = c.ancestors != nullptr ? c.tail - c.begin : kAttentionChunk;
  Limits limits[G], common{0, kAttentionChunk};
  int least = kAttentionChunk, most = 0;
  for (int i = 0; i < G; ++i) {
    const int end = c.visible[first + i] < c.end ? c.visible[first + i] : c.end;
    const int begin = c.first != nullptr && c.first[first + i] > c.begin ? c.first[first + i] : c.begin;
    limits[i] = end > begin ? Limits{begin - c.begin, end - c.begin} : Limits{0, 0};
    least = limits[i].begin < least ? limits[i].begin : least;
    most = limits[i].end > most ? limits[i].end : most;
    common.begin = limits[i].begin > common.begin ? limits[i].begin : common.begin;
    common.end = limits[i].end < common.end ? limits[i].end : common.end;
  }
  common.end = tail.begin < common.end ? tail.begin : common.end;
  // Nothing in common: each query goes alone all the way, before the place where the common positions would begin.
  if (common.end < common.begin) common = {kAttentionChunk, kAttentionChunk};
  const float* const* q = c.q + first;
  const auto key_vector = [&](int v) {
    return static_cast<const Element*>(c.blocks[c.begin / kKvBlock + v / kVectorsPerBlock]) + keys + v % kVectorsPerBlock * Simd::kLanes;
  };
  // Scores of the vectors that hold positions from..to-1, the first of them at target[i][0].
  const auto score = [&](int from, int to, float(*target)[kScoreStride]) {
    const int begin = from / Simd::kLanes, vectors = (to + Simd::kLanes - 1) / Simd::kLanes;
    for (int v = begin; v < vectors;) {
      auto* out = reinterpret_cast<float(*)[kScoreStride]>(&target[0][(v - begin) * Simd::kLanes]);
      const Element *pointers[kWide], *next[kWide];
      const int wide = v + kWide <= vectors ? kWide : 1;
      for (int j = 0; j < wide; ++j) {
        pointers[j] = key_vector(v + j);
        next[j] = v + wide + j < vectors ? key_vector(v + wide + j) : pointers[j];
      }
      if (wide == kWide) {
        score_positions<G, kWide>(pointers, next, q, c.head_dim, out);
      } else {
        score_positions<G, 1>(pointers, next, q, c.head_dim, out);
      }
      v += wide;
    }
  };
  score(least, most < tail.begin ? most : tail.begin,
        reinterpret_cast<float(*)[kScoreStride]>(&scores[0][least / Simd::kLanes * Simd::kLanes]));
  if (most > tail.begin) score_tail<G>(c, first, limits, tail, score, scores);
  for (int i = 0; i < G; ++i) {
    softmax_numerators(scores[i] + limits[i].begin, limits[i].end - limits[i].begin, c.max + first + i, c.sum + first + i);
  }

  float* out = c.acc + static_cast<size_t>(first) * c.head_dim;
  constexpr int kSpan = Simd::kValueVectors * Simd::kLanes;
  int dim = 0;
  for (; dim + kSpan <= c.head_dim; dim += kSpan) {
    weigh_values<G, Simd::kValueVectors, Element>(c, values, dim, Simd::kLanes, scores, limits, common, tail, out);
  }
  for (; dim < c.head_dim; dim += Simd::kLanes) {
    const int left = c.head_dim - dim;
    weigh_values<G, 1, Element>(c, values, dim, left < Simd::kLanes ? left : Simd::kLanes, scores, limits, common, tail, out);
  }
}

template <class Element>
void attend_chunk_as(const AttendChunk& c) {
  const int groups = (c.n + Simd::kQueryGroup - 1) / Simd::kQueryGroup;
  for (int g = 0, first = 0; g < groups; ++g) {
    const int queries = c.n / groups + (g < c.n % groups);
    switch (queries) {
      case 1: attend_group<1, Element>(c, first); break;
      case 2: attend_group<2, Element>(c, first); break;
      case 3: attend_group<3, Element>(c, first); break;
      case 4: attend_group<4, Element>(c, first); break;
      case 5: attend_group<5, Element>(c, first); break;
      case 6: attend_group<6, Element>(c, first); break;
    }
    first += queries;
  }
}

void attend_chunk(const AttendChunk& c) {
  if (c.type == KvType::kF16) {
    attend_chunk_as<uint16_t>(c);
  } else {
    attend_chunk_as<float>(c);
  }
}
