// Random numbers that are the same on every machine, whatever the standard library: those of its distributions are not.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace aerie {

/// SplitMix64 (https://prng.di.unimi.it/splitmix64.c): moves `state` on, and gives 64 random bits.
inline uint64_t next_random(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// The state to draw from for whatever these numbers name: what is drawn depends on them alone, not on what was drawn before.
inline uint64_t random_stream(std::initializer_list<uint64_t> key) {
  uint64_t state = 0;
  for (const uint64_t part : key) {
    state += part;
    state = next_random(state);
  }
  return state;
}

/// Uniform in [0, 1).
inline double next_uniform(uint64_t& state) { return static_cast<double>(next_random(state) >> 11) * 0x1p-53; }

}  // namespace aerie
