#!/usr/bin/env bash
# Runs llama.cpp and aerie on the same files, alternately in one run, and prints a table of medians and ratios.
# Builds llama.cpp from the source that the PyPI package llama-cpp-python carries (about 20 minutes on two cores, kept in the model
# cache), and makes the Q4_0 and Q8_0 files of the same model with its llama-quantize. Wants a quiet machine.
#   AERIE_PEERS          where llama.cpp is built (default: `peers` in the model cache)
#   AERIE_PEER_ROUNDS    alternations (default 5)
#   AERIE_PEER_TWIN      a drafter with raw feedback, to compare speculation too (speculation.py says how it is trained)
#   AERIE_PEER_PREFIX    put before every measured command, e.g. "chrt -f 50" where others share the machine
. "$(dirname "$0")/../../scripts/lib.sh"
cd "$repo"

package=llama-cpp-python==0.3.36
peers=${AERIE_PEERS:-$(models_root)/peers}
need_packages "${build_packages[@]}" "${python_packages[@]}"
need_compiler
model=$(./scripts/fetch-model.sh)

bin=$peers/build/bin
tools=(llama-bench llama-batched-bench llama-quantize llama-tokenize llama-speculative-simple)
if [ ! -x "$bin/llama-speculative-simple" ]; then
  need_venv
  step "fetching $package"
  mkdir -p "$peers/source"
  venv_pip install scikit-build-core  # the package's build backend, asked for before the source is handed out
  venv_pip download --no-deps --no-binary :all: --no-build-isolation --dest "$peers" "$package"
  tar -xzf "$peers"/llama_cpp_python-*.tar.gz -C "$peers/source" --strip-components=1
  # Not GGML_NATIVE: with g++ 12 its AMX path dies of an incomplete tile configuration (the compiler's ldtilecfg intrinsic).
  flags=()
  for flag in avx2:AVX2 avx2:AVX fma:FMA f16c:F16C bmi2:BMI2 avx512f:AVX512 avx512_vbmi:AVX512_VBMI avx512_vnni:AVX512_VNNI avx512_bf16:AVX512_BF16; do
    if grep -qw "${flag%%:*}" /proc/cpuinfo; then flags+=("-DGGML_${flag##*:}=ON"); fi
  done
  step "building llama.cpp in $peers (this takes a while)"
  quietly cmake -S "$peers/source/vendor/llama.cpp" -B "$peers/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=OFF "${flags[@]}" -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DLLAMA_BUILD_COMMIT=release -DLLAMA_BUILD_NUMBER=0
  quietly cmake --build "$peers/build" --target "${tools[@]}"
fi

step "building aerie"
quietly cmake --preset release
quietly cmake --build build/release --target aerie

models=("$model")
for type in Q4_0 Q8_0; do
  file=$peers/$(basename "${model%.*.gguf}").$type.gguf
  [ -s "$file" ] || quietly "$bin/llama-quantize" --allow-requantize "$model" "$file" "$type" "$(nproc)"
  models+=("$file")
done

python3 bench/peers/compare.py --bin "$bin" --aerie build/release/aerie --rounds "${AERIE_PEER_ROUNDS:-5}" \
  --prefix "${AERIE_PEER_PREFIX:-}" "${models[@]}"
[ -n "${AERIE_PEER_TWIN:-}" ] || exit 0
for precision in "" --float32; do
  # shellcheck disable=SC2086  # no precision is no argument
  python3 bench/peers/speculation.py --bin "$bin" --aerie build/release/aerie --model "$model" --drafter "$AERIE_PEER_TWIN" \
    --prefix "${AERIE_PEER_PREFIX:-}" $precision
done
