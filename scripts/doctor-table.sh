#!/usr/bin/env bash
# The doctor's confusion table on the real model: faults planted in the shipped drafter and in what an engine makes of it, and what
# `aerie doctor` names first. (The table over all kinds of faults, on small drafters, is tests/doctor/table_test.cpp.) About twenty minutes on
# two cores; the captured states are kept.
#   AERIE_TABLE_DIR     where states go (default build/doctor-table), about 0.5 GB
#   AERIE_TABLE_AERIE   an aerie that is built already
. "$(dirname "$0")/lib.sh"
cd "$repo"
out=${AERIE_TABLE_DIR:-build/doctor-table}
target=$(./scripts/fetch-model.sh)
aerie=${AERIE_TABLE_AERIE:-build/release/aerie}
if [ -z "${AERIE_TABLE_AERIE:-}" ]; then
  need_packages "${build_packages[@]}" "${python_packages[@]}"
  need_compiler
  step "building $aerie"
  quietly cmake --preset release
  quietly cmake --build --preset release --target aerie
fi
python3 -B scripts/doctor_table.py "$aerie" "$target" "$out"
