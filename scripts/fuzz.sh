#!/usr/bin/env bash
# Builds the fuzz targets with clang's libFuzzer, the address and the undefined-behaviour sanitizer, and runs each for SECONDS.
#   fuzz.sh [SECONDS] [TARGET...]      SECONDS: 60; TARGET: all (the files of fuzz/targets)
# An input that crashes, hangs for 30 s or takes too much memory ends its target's run and lies in build/fuzz/findings.
. "$(dirname "$0")/lib.sh"
cd "$repo"

seconds=${1:-60}
[[ $seconds =~ ^[0-9]+$ ]] || die "SECONDS is a number, not $seconds: fuzz.sh [SECONDS] [TARGET...]"
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for file in fuzz/targets/*.cpp; do targets+=("$(basename "$file" .cpp)"); done
fi
for target in "${targets[@]}"; do
  [ -f "fuzz/targets/$target.cpp" ] || die "there is no target $target; there are: $(cd fuzz/targets && echo *.cpp | sed 's/\.cpp//g')"
done

need_packages "${build_packages[@]}" clang
step "building build/fuzz"
quietly cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DAERIE_BUILD_FUZZ=ON \
  -DAERIE_SANITIZE=fuzzer-no-link,address,undefined
quietly cmake --build build/fuzz --target "${targets[@]/#/fuzz_}"

# The goldens that serve as seeds, as targets.cpp names them for TARGET.
seeds_of() { sed -n "s/^ *{\"$1\", .*{\\(\".*\"\\)}},\$/\\1/p" fuzz/targets.cpp | tr -d '",'; }

# Some targets write files; memory is faster than a disk.
if [ -w /dev/shm ]; then export TMPDIR=/dev/shm; fi

mkdir -p build/fuzz/findings
failed=()
for target in "${targets[@]}"; do
  step "fuzzing $target for $seconds s"
  learnt=build/fuzz/corpus/$target
  mkdir -p "$learnt"
  seeds=("fuzz/corpus/$target")
  for seed in $(seeds_of "$target"); do
    if [ -d "$seed" ]; then seeds+=("$seed"); else cp -f "$seed" "$learnt/"; fi
  done
  log=build/fuzz/$target.log
  if build/fuzz/fuzz/fuzz_"$target" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=2048 -malloc_limit_mb=256 -max_len=65536 \
      -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$target-" "$learnt" "${seeds[@]}" >"$log" 2>&1; then
    grep -E '^stat::(number_of_executed_units|peak_rss_mb)' "$log" >&2 || true
  else
    grep -m 1 -A 12 -E 'ERROR|bytes of memory|runtime error' "$log" >&2 || tail -n 20 "$log" >&2
    failed+=("$target")
  fi
done
[ ${#failed[@]} -eq 0 ] || die "findings in ${failed[*]}: see build/fuzz/findings and build/fuzz/TARGET.log"
printf 'no findings in %s s each: %s\n' "$seconds" "${targets[*]}"
