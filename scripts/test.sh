#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test; then the tests of what reads files and text once more under
# the address and undefined-behaviour sanitizers.
#   AERIE_TEST_ASAN   1 (default): the sanitizers on formats and text; all: on every folder; 0: not at all
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

# build FOLDER "TARGET..." CMAKE-ARGUMENT...
build() {
  local folder=$1 targets=$2
  shift 2
  step "building $folder"
  quietly cmake -S . -B "$folder" -G Ninja -DAERIE_BUILD_TESTS=ON "$@"
  # shellcheck disable=SC2086  # a list of targets
  quietly cmake --build "$folder" --target $targets
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

build build/test all -DCMAKE_BUILD_TYPE=Release -DAERIE_BUILD_TRAIN=ON "-DCMAKE_PREFIX_PATH=$torch_prefix"
asan_targets=all
[ "$asan" = all ] || asan_targets="test_formats test_text"
[ "$asan" = 0 ] || build build/asan "$asan_targets" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DAERIE_SANITIZE=address,undefined

run_tests build/test
release_closing=$closing
if [ "$asan" != 0 ]; then
  filter=()
  [ "$asan" = all ] || filter=(--tests-regex '^(formats|text)\.')
  run_tests build/asan ${filter[@]+"${filter[@]}"}
  printf '\naddress and undefined-behaviour sanitizers: %s\n' "$closing"
fi
printf '%s\n' "$release_closing"
exit "$failed"
