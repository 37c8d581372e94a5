# shellcheck shell=bash
# Shared by deploy/quickstart and tests/run: says what is going on, installs packages, configures and builds.
# Sourced by bash; expects `root` to be the repository's folder.

: "${root:?}"
started=$(date +%s)

say() { printf '[%4ds] %s\n' "$(($(date +%s) - started))" "$*"; }
fail() { printf '\n%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

packages=(g++ cmake ninja-build ccache pkg-config libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libspdlog-dev libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev libtomlplusplus-dev libeigen3-dev libsystemd-dev
  nlohmann-json3-dev prometheus-cpp-dev libssl-dev)

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else fail "needs root or sudo to install packages: ${packages[*]}"; fi
}

# explain_apt LOG: one sentence on why apt-get failed.
explain_apt() {
  # apt-get update succeeds without a network (it keeps its old lists), so the cause shows only here.
  if grep -qE 'Temporary failure resolving|Could not (resolve|connect)|Network is unreachable' "$1"; then
    echo "packages cannot be fetched: this machine has no network, or no way to its package mirror"
  else
    echo "a package cannot be installed: $(grep -m 1 '^E:' "$1" || tail -n 1 "$1")"
  fi
}

# install_packages [MORE …]: installs what is missing; touches the network only if something is.
install_packages() {
  local missing=() package
  for package in "${packages[@]}" "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  if [ ${#missing[@]} = 0 ]; then say "packages: all ${#packages[@]} present"; return; fi
  command -v apt-get >/dev/null || fail "needs Debian 12 or Ubuntu 24.04 (apt-get), or these packages: ${missing[*]}"
  say "packages: installing ${#missing[@]}: ${missing[*]}"
  local log; log=$(mktemp)
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >"$log" 2>&1 ||
    fail "the package lists cannot be fetched: is there a network? ($(tail -n 1 "$log"))"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
    fail "$(explain_apt "$log")"
  rm -f "$log"
}

# build FOLDER "CMAKE OPTIONS" [TARGET …]: configures and builds, with ninja's progress.
build() {
  local folder=$1 options=$2; shift 2
  local log=$folder/configure.log
  mkdir -p "$folder"
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
  say "configuring"
  # shellcheck disable=SC2086
  cmake -G Ninja -S "$root" -B "$folder" $options >"$log" 2>&1 ||
    fail "cmake failed: $(grep -m 1 -A 2 'CMake Error' "$log" | tr '\n' ' ') (see $log)"
  say "building in ${folder#"$root"/} (progress by ninja)"
  NINJA_STATUS='[%f/%t %es] ' ninja -C "$folder" "$@" || fail "the build failed; the first error is above"
}
