#!/usr/bin/env bash
# Reproduces the shipped drafter with the delivered commands: the target answers the prompts while its states are stored, a
# drafter is trained on them, and replay measures it on held-out prompts. Capturing and training can each be interrupted
# (Ctrl-C, a kill) and go on where they were when this is run again.
#   AERIE_RETRAIN_DIR       where traces and the drafter go (default build/retrain); 4.6 kB of disk a token
#   AERIE_RETRAIN_PROMPTS   prompts used, from the first of data/train_prompts.jsonl.gz (they are shuffled)
. "$(dirname "$0")/lib.sh"
cd "$repo"

out=${AERIE_RETRAIN_DIR:-build/retrain}
prompts=${AERIE_RETRAIN_PROMPTS:-12950}
aerie=build/train/aerie

need_packages "${build_packages[@]}" "${python_packages[@]}"
need_compiler
target=$(./scripts/fetch-model.sh)
need_torch
step "building $aerie and aerie-train"
quietly cmake -S . -B build/train -G Ninja -DCMAKE_BUILD_TYPE=Release -DAERIE_BUILD_TRAIN=ON "-DCMAKE_PREFIX_PATH=$torch_prefix"
quietly cmake --build build/train

mkdir -p "$out"
step "capturing the answers to $prompts prompts"
"$aerie" capture -m "$target" --prompts data/train_prompts.jsonl.gz --limit "$prompts" -n 200 --max-length 512 --out "$out/traces"
step "training"
resume=()
[ ! -e "$out/drafter" ] || resume=(--resume)
"$aerie" train -m "$target" --data "$out/traces" --out "$out/drafter" --epochs 2 --holdout 64 \
  --feature-norm concat --lr 0.001 ${resume[@]+"${resume[@]}"}
for name in mt_bench humaneval gsm8k; do
  step "held-out prompts: $name"
  "$aerie" capture -m "$target" --prompts "data/eval/$name.jsonl" -n 200 --out "$out/eval-$name"
  "$aerie" eval -m "$target" -d "$out/drafter" --traces "$out/eval-$name"
done
