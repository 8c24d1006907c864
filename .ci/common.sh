# What .ci/run and .ci/nightly begin with: packages of the system, a folder for all work, data.
# They source it; ${BASH_SOURCE[1]} is the script that does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[1]}")/.."

say() { printf '\n=== %s (after %d s)\n' "$*" "$SECONDS"; }

apt_install() {
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"
}

if ! command -v cc >/dev/null || ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
  say "compiler and venv"
  apt_install gcc libc6-dev python3-dev python3-venv
fi
command -v ccache >/dev/null || apt_install ccache

# A server for tests/storage/test_stores.py and others, and a browser for tests/reporting/test_dashboard.py.
install_packages() {
  local packages=()
  [ -n "$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || packages+=(postgresql)
  command -v chromium >/dev/null || packages+=(chromium)
  [ ${#packages[@]} -eq 0 ] || apt_install "${packages[@]}"
}

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
# Python compiles a module when it is first imported; pip would compile all of plotly, too. (0 is "no".)
export PIP_NO_COMPILE=0
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1  # stages run beside each other, one per core
unset PYTHONDONTWRITEBYTECODE  # so that a module is compiled once, not in each process
# Several builds have the same sources. Paths inside CCACHE_BASEDIR are compared relative to the
# folder of the build, so that builds in other folders find what the first one has compiled.
export CMAKE_C_COMPILER_LAUNCHER=ccache CCACHE_DIR="$work/ccache" CCACHE_BASEDIR="$work"

if [ -d ../shared/data/scikit_learn_data ]; then
  export SCIKIT_LEARN_DATA="$PWD/../shared/data/scikit_learn_data"
  export OPTUNA_TREECV_DATA="$PWD/../shared/data"
fi

# What is checked is what is committed, or all files where there is no repository.
clone() { git clone --quiet . "$1" 2>/dev/null || cp -r . "$1"; }

# Make an environment with what pip is given, and name it: environment NAME ARGUMENTS...
environment() {
  local folder="$work/$1"
  python3 -m venv "$folder"
  shift
  [ $# -eq 0 ] || "$folder/bin/python" -m pip install "$@"
}
