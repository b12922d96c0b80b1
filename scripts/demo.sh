#!/usr/bin/env bash
# The main job, from nothing: installs what is missing, fetches the target, builds `aerie`, and answers one prompt without and
# with the shipped drafter. Ends with both speeds, the acceptance length and whether the two answers are the same bytes;
# fails if they are not.
#   AERIE_DEMO_PROMPT, AERIE_DEMO_TOKENS   another prompt, another length
. "$(dirname "$0")/lib.sh"
cd "$repo"

prompt=${AERIE_DEMO_PROMPT:-"A shop sells pencils at 3 for 2 dollars. How much do 24 pencils cost? Explain step by step."}
tokens=${AERIE_DEMO_TOKENS:-200}
drafter=models/smollm2-135m-eagle3

need_packages "${build_packages[@]}" "${python_packages[@]}"
need_compiler
target=$(./scripts/fetch-model.sh)
step "building build/release/aerie"
quietly cmake --preset release
quietly cmake --build --preset release --target aerie

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# answer NAME ARGUMENT...: streams an answer, keeping its text and its figures under NAME. The summary on stderr is kept back,
# since the table below says the same; it is shown if the run fails.
answer() {
  local name=$1
  shift
  if ! build/release/aerie run -m "$target" "$@" -p "$prompt" -n "$tokens" --stats "$work/$name.json" 2>"$work/$name.log" |
      tee "$work/$name.txt"; then
    cat "$work/$name.log" >&2
    die "aerie run failed"
  fi
  printf '\n'
}

printf '\nPrompt: %s\n' "$prompt"
printf '\n--- drafter off ---\n'
answer off
printf '\n--- drafter on ---\n'
answer on -d "$drafter"
printf '\n'
python3 scripts/demo_report.py "$work/off" "$work/on"
