#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test; then the tests of the lower layers once more under the
# address and undefined-behaviour sanitizers.
#   AERIE_TEST_ASAN   1 (default): the sanitizers on the fast folders; all: on every folder; 0: not at all
#   AERIE_TEST_JOBS   tests that run at a time (default: the CPUs)
. "$(dirname "$0")/lib.sh"
cd "$repo"

asan=${AERIE_TEST_ASAN:-1}
jobs=${AERIE_TEST_JOBS:-$(nproc)}
case $asan in 0 | 1 | all) ;; *) die "AERIE_TEST_ASAN is 0, 1 or all, not $asan" ;; esac

need_packages "${build_packages[@]}" "${python_packages[@]}" "${test_packages[@]}"
need_compiler
./scripts/fetch-model.sh >/dev/null
need_torch

# build FOLDER CMAKE-ARGUMENT...
build() {
  local folder=$1
  shift
  step "building $folder"
  quietly cmake -S . -B "$folder" -G Ninja -DAERIE_BUILD_TESTS=ON "$@"
  quietly cmake --build "$folder"
}

# run_tests FOLDER CTEST-ARGUMENT...: sets closing to ctest's closing line; a failure is remembered, not fatal.
failed=0
run_tests() {
  local folder=$1 log=$1/ctest.log
  shift
  step "testing $folder"
  ctest --test-dir "$folder" --output-on-failure --no-tests=error --parallel "$jobs" "$@" </dev/null 2>&1 | tee "$log" || failed=1
  closing=$(grep -E '^[0-9]+% tests passed' "$log" || echo "ctest of $folder came to no end")
}

build build/test -DCMAKE_BUILD_TYPE=Release -DAERIE_BUILD_TRAIN=ON "-DCMAKE_PREFIX_PATH=$torch_prefix"
[ "$asan" = 0 ] || build build/asan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DAERIE_SANITIZE=address,undefined

run_tests build/test
release_closing=$closing
if [ "$asan" != 0 ]; then
  filter=()
  [ "$asan" = all ] || filter=(--tests-regex '^(base|formats|kernels|text|eagle3)\.')
  run_tests build/asan ${filter[@]+"${filter[@]}"}
  printf '\naddress and undefined-behaviour sanitizers: %s\n' "$closing"
fi
printf '%s\n' "$release_closing"
exit "$failed"
