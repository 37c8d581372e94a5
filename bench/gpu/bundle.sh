# shellcheck shell=bash
# Sourced by bench/gpu/run: `build`, `bundle` and `pack`.

root=$(cd "${here:?}/../.." && pwd)
programs=(tandemd tandem-engine tandemctl tandem-test-client tandem-test-rogue tandem-train-digits tandem-conformance
  tandem-tune-rank tandem-fault-client bench_backend bench_collective bench_handover bare_handover fused_gemm fused_collective fused_skinny)
# What every machine with a GPU has, and must have in its own version.
own_of_the_machine='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libstdc\+\+|libgcc_s)\.so'

# build BUILD: configures for a bundle and builds its programs.
# Flags of compilation are those of tests/run, so that a compiler cache serves both.
build() {
  CCACHE_BASEDIR=$(dirname "$root")
  export CCACHE_BASEDIR CCACHE_NOHASHDIR=1
  mkdir -p "$1"
  cmake -G Ninja -S "$root" -B "$1" -DTANDEM_CUDA=ON -DTANDEM_RELOCATABLE=ON -DTANDEM_DEBUG_INFO=OFF -DTANDEM_WERROR=ON \
    "-DTANDEM_TORCH_PYTHON=${TANDEM_TORCH_PYTHON:-}" >"$1/configure.log" ||
    { cat "$1/configure.log" >&2; return 1; }
  local known targets=(gpu_tests tandem_grpc_plugin tandem_nccl) program
  [ -z "${TANDEM_TORCH_PYTHON:-}" ] || targets+=(tandem_torch tandem_c10d)
  known=$(ninja -C "$1" -t targets all | cut -d: -f1)
  for program in "${programs[@]}" tandem_jax; do
    if grep -qx "$program" <<<"$known"; then targets+=("$program"); fi
  done
  ninja -C "$1" "${targets[@]}"
}

# copy_stripped FILE TO
copy_stripped() { strip -o "$2.new" "$1" && chmod 755 "$2.new" && mv -f "$2.new" "$2"; }

# bundle [--here] BUILD FOLDER
bundle() {
  local here_only=0
  [ "${1:-}" != --here ] || { here_only=1; shift; }
  [ $# = 2 ] || { echo "usage: bench/gpu/run bundle [--here] BUILD FOLDER" >&2; return 2; }
  local build=$1 folder=$2 program file test
  [ $here_only = 1 ] || readelf -d "$build/bin/tandemd" | grep -q 'RPATH.*ORIGIN' ||
    { echo "bundle: $build is not relocatable: use 'bench/gpu/run build BUILD'" >&2; return 1; }
  rm -rf "$folder"
  mkdir -p "$folder"/{bin,lib,share/tandem/tuning,tests/bin,tests/integration,tests/gpu/recovery,peers,runner}
  for program in "${programs[@]}"; do
    if [ -x "$build/bin/$program" ]; then copy_stripped "$build/bin/$program" "$folder/bin/$program"
    else echo "bundle: $build has no $program: its jobs will fail" >&2; fi
  done
  for test in $(ctest --test-dir "$build" -L '^gpu$' --show-only=json-v1 | python3 -c '
import json, sys
for test in json.load(sys.stdin)["tests"]:
    if test.get("command") and "/tests/bin/" in test["command"][0]: print(test["command"][0])' | sort -u); do
    if [ -x "$test" ]; then copy_stripped "$test" "$folder/tests/bin/$(basename "$test")"; fi
  done
  copy_stripped "$build/lib/libtandem.so.0" "$folder/lib/libtandem.so.0"
  ln -s libtandem.so.0 "$folder/lib/libtandem.so"
  copy_stripped "$build/lib/libtandem_grpc.so" "$folder/lib/libtandem_grpc.so"
  copy_stripped "$build/lib/libtandem-nccl.so" "$folder/lib/libtandem-nccl.so"
  # Where the build had a Python with torch (TANDEM_TORCH_PYTHON).
  [ ! -e "$build/lib/libtandem_torch.so" ] || copy_stripped "$build/lib/libtandem_torch.so" "$folder/lib/libtandem_torch.so"
  for file in "$build"/lib/libtandem_c10d_*.so "$build/lib/libtandem_jax.so"; do
    [ ! -e "$file" ] || copy_stripped "$file" "$folder/lib/$(basename "$file")"
  done
  for file in $(ldd "$build"/bin/{tandemd,tandemctl,tandem-engine} "$build/lib/libtandem_grpc.so" |
                awk '$3 ~ /^\// { print $3 }' | sort -u); do
    if [[ ! $(basename "$file") =~ $own_of_the_machine ]] && [[ $file != "$build"/* ]]; then
      cp -L "$file" "$folder/lib/"
    fi
  done
  cp "$root/examples/train_digits/data/digits.csv" "$folder/share/tandem/"
  cp "$root"/deploy/tuning/*.toml "$folder/share/tandem/tuning/"
  cp "$root"/tests/integration/*.py "$folder/tests/integration/"
  cp -r "$root/tests/fixtures" "$folder/tests/"
  cp "$root"/tests/gpu/recovery/*.py "$folder/tests/gpu/recovery/"
  cp "$here"/peers/*.py "$folder/peers/"
  cp "$here"/runner/*.py "$folder/runner/"
  cp "$here"/{run,env,with_mps} "$folder/"
  { git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown; (cd "$folder" && find . -type f | sort); } \
    >"$folder/bundle.txt"
  du -sh "$folder"
}

# pack FOLDER FILE [LIMIT]: a bundle as an archive, refused above LIMIT MiB (64). Each test and benchmark holds the kernels: a window
# of 64 MiB finds them again, gzip's of 32 KiB does not.
pack() {
  if [ $# -lt 2 ] || [ $# -gt 3 ] || [ ! -f "$1/bundle.txt" ]; then
    echo "usage: bench/gpu/run pack FOLDER FILE [LIMIT]" >&2
    return 2
  fi
  local folder limit=${3:-64} bytes
  folder=$(realpath "$1")
  tar -C "$(dirname "$folder")" -c "$(basename "$folder")" | xz -T1 --lzma2=preset=1,dict=64MiB >"$2"
  bytes=$(stat -c %s "$2")
  if [ "$bytes" -gt $((limit << 20)) ]; then
    rm "$2"
    echo "pack: $1 has $bytes bytes packed, more than $limit MiB" >&2
    return 1
  fi
  du -h --apparent-size "$2"
}
