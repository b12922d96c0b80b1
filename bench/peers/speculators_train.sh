#!/usr/bin/env bash
# Trains the same drafter on the same data with aerie-train and with the PyPI package speculators, alternately in one run, and prints a
# table of medians and ratios (speculators_train.py says what is compared). Wants a quiet machine: three rounds of everything take most of
# an hour on two cores. Arguments are handed on, e.g. --rows 512 --variants sdpa/bf16,sdpa/f32 for the two that are fast on such cores.
#   AERIE_PEERS          where the virtual environment is made (default: `peers` in the model cache)
#   AERIE_PEER_VENV      one that has speculators already, used instead
#   AERIE_PEER_TRAIN     an aerie-train that is built already (default: built in build/train)
#   AERIE_PEER_ROUNDS    alternations (default 3)
#   AERIE_PEER_PREFIX    put before every measured command, e.g. "chrt -f 50" where others share the machine
. "$(dirname "$0")/../../scripts/lib.sh"
cd "$repo"

package=speculators==0.9.0
venv=${AERIE_PEER_VENV:-${AERIE_PEERS:-$(models_root)/peers}/${package/==/-}}
if [ -n "${AERIE_PEER_VENV:-}" ]; then
  [ -x "$venv/bin/python" ] || { say "error: AERIE_PEER_VENV must name a virtual environment, and $venv has no bin/python"; exit 2; }
elif [ ! -e "$venv/complete" ]; then
  need_packages "${python_packages[@]}"
  step "installing $package into $venv"
  mkdir -p "$(dirname "$venv")"
  quietly python3 -m venv --clear "$venv"
  pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input)
  # First, or the package pulls one with CUDA; an index may have the build for CPUs under its label, or without.
  "${pip[@]}" "torch==$torch_version+cpu" >/dev/null 2>&1 </dev/null || quietly "${pip[@]}" "torch==$torch_version"
  quietly "${pip[@]}" "$package" "torch==$torch_version" transformers==5.19.0
  # Pulled as dependencies, not used here, and built for CUDA: transformers would import torchvision and die of it.
  quietly "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio
  touch "$venv/complete"
fi

model=$(./scripts/fetch-model.sh)
train=${AERIE_PEER_TRAIN:-build/train/aerie-train}
if [ -z "${AERIE_PEER_TRAIN:-}" ]; then
  need_packages "${build_packages[@]}" "${python_packages[@]}"
  need_compiler
  need_torch
  step "building aerie-train"
  quietly cmake -S . -B build/train -G Ninja -DCMAKE_BUILD_TYPE=Release -DAERIE_BUILD_TRAIN=ON "-DCMAKE_PREFIX_PATH=$torch_prefix"
  quietly cmake --build build/train --target aerie-train
fi

"$venv/bin/python" bench/peers/speculators_train.py --aerie-train "$train" --target "$model" --rounds "${AERIE_PEER_ROUNDS:-3}" \
  --prefix "${AERIE_PEER_PREFIX:-}" "$@"
