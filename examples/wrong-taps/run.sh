#!/usr/bin/env bash
# A drafter that validated well and is slow when served: four faults, one on top of the other, and the doctor that takes them off.
# See README.md beside this file. What was made is kept, and going on after an interruption costs nothing twice.
#   AERIE_EXAMPLE_DIR     where everything goes (default build/wrong-taps); about 0.7 GB
#   AERIE_EXAMPLE_BUILD   a build folder with aerie and aerie-train that is there already
. "$(dirname "$0")/../../scripts/lib.sh"
cd "$repo"
here=examples/wrong-taps
out=${AERIE_EXAMPLE_DIR:-build/wrong-taps}
conversations=240 answer=128 held_out=48 k=3

target=$(./scripts/fetch-model.sh)
if [ -n "${AERIE_EXAMPLE_BUILD:-}" ]; then
  aerie=$AERIE_EXAMPLE_BUILD/aerie
else
  need_packages "${build_packages[@]}" "${python_packages[@]}"
  need_compiler
  need_torch
  step "building aerie and aerie-train"
  quietly cmake -S . -B build/train -G Ninja -DCMAKE_BUILD_TYPE=Release -DAERIE_BUILD_TRAIN=ON "-DCMAKE_PREFIX_PATH=$torch_prefix"
  quietly cmake --build build/train --target aerie aerie-train
  aerie=build/train/aerie
fi
mkdir -p "$out"

step "the trace: four states a position, of the embedding and of an early, a middle and a late block"
prompts=data/train_prompts.jsonl.gz
"$aerie" capture -m "$target" --prompts $prompts --first 40000 --limit $conversations -n $answer --max-length 384 --taps 0,2,15,28 --out "$out/traces"
"$aerie" capture -m "$target" --prompts $prompts --first 42000 --limit $held_out -n 100 --taps 0,2,15,28 --out "$out/held-out"

# train NAME FLAG...: a drafter on the embedding, the early and the middle block.
train() {
  local name=$1 resume=()
  shift
  [ ! -e "$out/$name/training_state.safetensors" ] || resume=(--resume)
  "$aerie" train -m "$target" --data "$out/traces" --out "$out/$name" --taps 0,2,15 --ttt-steps $k --feature-norm none --feedback pre \
    --tokens-per-step 1024 --epochs 3 --holdout 16 "$@" ${resume[@]+"${resume[@]}"}
}

step "the story's trainer: all but the last state are taps, and the head over the last one is the teacher"
train story --teacher 28
[ -e "$out/story-sglang" ] || "$aerie" convert "$out/story" "$out/story-sglang" --to sglang -m "$target"

# look NUMBER TITLE DOCTOR-FLAG...
look() {
  local number=$1 title=$2
  shift 2
  printf '\n--- %s. %s ---\n' "$number" "$title"
  "$aerie" doctor --traces "$out/held-out" -m "$target" "$@" 2>/dev/null | tee "$out/look-$number.txt"
}

launch='python -m sglang.launch_server --model-path SmolLM2-135M-Instruct --speculative-algorithm EAGLE3 --speculative-draft-model-path story'
python3 $here/plant.py "$out/story-sglang" "$out/served-1" --absolute-d2t --no-layer-ids
look 1 "as it was served" -d "$out/served-1" --engine sglang:0.5.23 --target-arch LlamaForCausalLM \
  --command-line "$launch --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"

python3 $here/plant.py "$out/story-sglang" "$out/served-2" --no-layer-ids
rm -rf "$out/mended-2"
look 2 "d2t and the number of steps mended" -d "$out/served-2" --fix "$out/mended-2" --teacher 28 --engine sglang:0.5.23 --target-arch LlamaForCausalLM \
  --command-line "$launch --speculative-num-steps $k --speculative-eagle-topk 1 --speculative-num-draft-tokens $((k + 1))"

look 3 "the layer ids written, by --fix" -d "$out/mended-2" --teacher 28 -k $k

step "the same training with the target's own words"
train mended
[ -e "$out/mended-sglang" ] || "$aerie" convert "$out/mended" "$out/mended-sglang" --to sglang -m "$target"
look 4 "trained again with the right teacher" -d "$out/mended-sglang" -k $k

printf '\n--- 5. served, against the walk of the stored states ---\n'
python3 $here/prompts.py $prompts "$out/held-out" "$out/one-turn"
"$aerie" eval -m "$target" -d "$out/mended-sglang" --traces "$out/one-turn/traces" -k $k --json >"$out/walk.json"
mkdir -p "$out/answers"
rm -f "$out"/answers/*
for prompt in "$out"/one-turn/messages/*.json; do
  "$aerie" run -m "$target" -d "$out/mended-sglang" -k $k -n 100 --messages "$prompt" --json >"$out/answers/$(basename "$prompt")" 2>/dev/null
done
python3 $here/served.py "$out/walk.json" "$out"/answers/*.json
