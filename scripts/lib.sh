# Functions that the scripts of this folder share. Sourced, never run:  . "$(dirname "$0")/lib.sh"
# shellcheck shell=bash disable=SC2034  # the variables are for those that source this file

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }
step() { printf '== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Where the models are kept, outside the repository: $AERIE_MODELS, or `aerie` in the user's cache folder.
models_root() {
  if [ -n "${AERIE_MODELS:-}" ]; then
    printf '%s\n' "$AERIE_MODELS"
  else
    printf '%s\n' "${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/aerie"
  fi
}

# What building `aerie` needs, what fetching the model needs, and what the tests need on top, by Debian's names.
build_packages=(g++ cmake ninja-build pkg-config libpcre2-dev libssl-dev zlib1g-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev)
python_packages=(python3 python3-venv ca-certificates)
test_packages=(libgtest-dev librapidcheck-dev)

is_debian() {
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null &&
    grep -qsE '^ID(_LIKE)?=.*\b(debian|ubuntu)\b' /etc/os-release
}

# need_packages NAME...: installs those that are missing. AERIE_SKIP_PACKAGES=1 leaves the system as it is.
need_packages() {
  [ "${AERIE_SKIP_PACKAGES:-0}" != 1 ] || return 0
  is_debian || die "this is not Debian or Ubuntu. Install what these packages hold: $*. Then run again with AERIE_SKIP_PACKAGES=1."
  local name missing=()
  for name in "$@"; do
    case $(dpkg-query -W -f='${db:Status-Abbrev} ' "$name" 2>/dev/null) in
      *ii\ *) ;;
      *) missing+=("$name") ;;
    esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing and there is no sudo; as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  step "installing ${missing[*]}"
  # The ${a[@]+...} form keeps an empty array legal under `set -u`.
  quietly ${as_root[@]+"${as_root[@]}"} apt-get update -qq
  quietly ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# quietly COMMAND...: its output is shown only if it fails.
quietly() {
  local output
  output=$(mktemp)
  if "$@" >"$output" 2>&1 </dev/null; then
    rm -f "$output"
  else
    local status=$?
    cat "$output" >&2
    rm -f "$output"
    die "failed with status $status: $*"
  fi
}

need_compiler() {
  local compiler=${CXX:-g++} version
  command -v "$compiler" >/dev/null || die "the compiler $compiler is not installed"
  case $("$compiler" --version) in *clang*) return 0 ;; esac
  version=$("$compiler" -dumpversion)
  [ "${version%%.*}" -ge 11 ] || die "C++20 needs g++ 11 or newer, and $compiler is version $version"
}

# All Python packages of the project live in .venv, so that the system's Python is never touched.
venv_python() { printf '%s\n' "$repo/.venv/bin/python"; }
need_venv() {
  local python
  python=$(venv_python)
  if [ -x "$python" ] && "$python" -m pip --version >/dev/null 2>&1; then return 0; fi
  command -v python3 >/dev/null || die "python3 is not installed"
  step "creating .venv"
  quietly python3 -m venv --clear "$repo/.venv"
}

# pip with neither questions nor progress bars.
venv_pip() {
  local command=$1
  shift
  quietly "$(venv_python)" -m pip "$command" --quiet --disable-pip-version-check --no-input "$@"
}

# The CMake prefix of LibTorch, which only aerie-train and its tests link: one that CMAKE_PREFIX_PATH names, or else the
# wheel in .venv, installed there if it is missing. Sets torch_prefix.
torch_version=2.13.0
torch_prefix=
need_torch() {
  local entry
  local IFS=':;'
  for entry in ${CMAKE_PREFIX_PATH:-}; do
    if [ -f "$entry/share/cmake/Torch/TorchConfig.cmake" ]; then torch_prefix=$entry; return 0; fi
  done
  unset IFS
  need_venv
  local site
  site=$("$(venv_python)" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')
  if ! grep -qs "^__version__ = '$torch_version" "$site/torch/version.py"; then
    step "installing torch $torch_version into .venv"
    # Only the C++ half is used, so the wheel's Python dependencies stay away. The build for CPUs is asked for by its label;
    # where an index has none under that label, its plain build may still be one for CPUs.
    if ! "$(venv_python)" -m pip install --quiet --disable-pip-version-check --no-input --no-deps "torch==$torch_version+cpu" \
        >/dev/null 2>&1 </dev/null; then
      venv_pip install --no-deps "torch==$torch_version"
    fi
  fi
  if ! grep -qsE '^cuda(: [^=]*)? = None' "$site/torch/version.py"; then
    die "the torch in .venv is built for CUDA, and its CMake package then wants the CUDA toolkit. Remove .venv, let pip find" \
      "PyTorch's CPU wheels (PIP_EXTRA_INDEX_URL, see pytorch.org, Get started) or name a LibTorch in CMAKE_PREFIX_PATH, and run this again."
  fi
  torch_prefix=$site/torch
}
