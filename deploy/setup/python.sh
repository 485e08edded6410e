#!/usr/bin/env bash
# Makes .venv with everything in requirements.lock, and torch. Safe to run again: it does nothing when neither the locks
# nor pyproject.toml have changed. Installs wheels only, by their hashes, because a build from a source distribution
# would fetch build tools without hashes. pip's own configuration selects the index.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh

venv=${MUSTER_VENV:-.venv}
stamp="$venv/.installed"
want=$(cat requirements.lock deploy/locks/torch-*.lock deploy/locks/reasoning-gym.lock pyproject.toml | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then exit 0; fi

find_python() {
  for name in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
    [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 || continue
    "$name" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || continue
    command -v "$name"
    return
  done
}

python=$(find_python)
if [ -z "$python" ] && can_install; then
  say "installing Python"
  install_packages python3 python3-venv
  python=$(find_python)
fi
[ -n "$python" ] || fail "Python 3.11, 3.12 or 3.13 is needed and was not found; install it, or set PYTHON=/path/to/python3"

again="run the same command again; it goes on from here"

if [ ! -x "$venv/bin/python" ]; then
  if [ -d "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
    fail "$venv holds files that are no virtual environment; choose another place: make VENV=/path"
  fi
  { mkdir -p "$venv" && [ -w "$venv" ]; } 2>/dev/null || fail "can't write $venv; choose another place: make VENV=/path"
  say "making $venv with $("$python" --version)"
  log=$(mktemp)
  if ! "$python" -m venv "$venv" >"$log" 2>&1; then
    if can_install && "$python" -c 'import sys; sys.exit(sys.prefix != "/usr")'; then
      install_packages python3-venv || true
    fi
    if ! "$python" -m venv --clear "$venv" >"$log" 2>&1 &&
      ! { "$python" -m pip install --quiet --user --require-hashes --only-binary=:all: -r deploy/locks/virtualenv.lock &&
        "$python" -m virtualenv --quiet "$venv"; } >>"$log" 2>&1; then
      tail -3 "$log" >&2
      rm -rf "$venv" "$log"
      fail "this Python can't make $venv; see above (Debian: apt install python3-venv; or is the disk full?)"
    fi
  fi
  rm -f "$log"
fi

say "installing $(grep -c '^[a-z0-9].*==' requirements.lock) pinned packages (about a minute)"
install_locked() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: "$@"; }
install_locked -r requirements.lock ||
  fail "pip could not install requirements.lock; when the cause above is mended, $again"
# reasoning-gym's metadata name packages that have no wheels and are not used.
install_locked --no-deps -r deploy/locks/reasoning-gym.lock ||
  fail "pip could not install deploy/locks/reasoning-gym.lock; when the cause above is mended, $again"

# The lock omits torch: a machine without an NVIDIA driver gets the CPU build, which saves three gigabytes of CUDA, if pip's
# index or torch's own index has that build.
torch=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' deploy/locks/torch-cuda.lock)
if ! "$venv/bin/python" -c "import sys, importlib.metadata as m; sys.exit(m.version('torch').split('+')[0] != '$torch')" 2>/dev/null; then
  say "installing torch $torch"
  cpu=deploy/locks/torch-cpu.lock
  { [ ! -e /dev/nvidiactl ] && { install_locked --no-deps -r "$cpu" ||
    install_locked --no-deps --index-url https://download.pytorch.org/whl/cpu -r "$cpu"; } 2>/dev/null; } ||
    install_locked -r deploy/locks/torch-cuda.lock || fail "pip could not install torch $torch; when the cause above is mended, $again"
fi
# The distribution had another name before; an old installation would own the same command.
"$venv/bin/python" -m pip uninstall --quiet --disable-pip-version-check --yes muster 2>/dev/null || true
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . ||
  fail "pip could not install this folder; when the cause above is mended, $again"
echo "$want" >"$stamp"
say "$venv is ready"
